"""Processors that share a store: one sub-topology, records in order, and one outcome per record."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.log.appfile import AppChanged
from holdfast.pipeline.driver import TaskFailed
from holdfast.testing import TestDriver, records

GAMES = "player string, points bigint, at timestamp"
scores = hf.KeyValueStore("scores", value=list[str])


class Wins(hf.Processor):
    scores = scores
    total = hf.KeyValueStore("total", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.scores[key] = [*self.scores.get(key, []), f"win {event.points}"]
        self.total[key] = self.total.get(key, 0) + event.points
        ctx.forward(key, {"what": "win"})

    @hf.punctuate(every="1m", time="wall")
    def tick(self, now: int, ctx: hf.Context) -> None:
        ctx.forward("wins", {"what": "tick"})


class Bonus(hf.Processor):
    kept = scores
    seen = hf.KeyValueStore("bonus-seen", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        assert self.kept[key][-1] == f"win {event.points}", "it sees what the first one has written"
        self.kept[key] = [*self.kept[key], "bonus"]
        self.seen[key] = event.points
        ctx.forward(key, {"n": len(self.kept[key])})
        ctx.forward(key, {"n": 1}, to="more")
        ctx.count("bonuses")
        if event.points < 0:
            raise ValueError("negative")

    @hf.punctuate(every="1m", time="wall")
    def tick(self, now: int, ctx: hf.Context) -> None:
        ctx.forward("bonus", {"n": -1})


def game(player: str, points: int, second: int) -> dict[str, object]:
    return {"player": player, "points": points, "at": f"2030-01-01 00:00:{second:02}"}


def stream_of(app: hf.App) -> hf.Stream:
    return app.stream(records(GAMES), key="player", timestamp="at", name="games")


def shared_app(*processors: type[hf.Processor], **options: Any) -> hf.App:
    app = hf.App("shared", settings=hf.Settings(partitions=2))
    stream = stream_of(app)
    for each in processors or (Wins, Bonus):
        if each is Wins:
            stream.process(Wins, output="player string, what string", **options)
        else:
            columns = "player string, n bigint"
            stream.process(Bonus, output=columns, outputs={"more": columns}, **options)
    return app


def test_a_record_goes_to_one_after_the_other() -> None:
    app = shared_app()
    assert [each.name for each in app._topology.subtopologies] == ["wins"]
    description = app.describe()
    assert "processor wins (Wins)" in description
    assert "processor bonus (Bonus)" in description
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 2, 2), game("ann", 1, 1), game("bob", 3, 3)])
    assert driver.store("scores").get("ann") == ["win 1", "bonus", "win 2", "bonus"]
    assert dict(driver.store("total").items()) == {"ann": 3, "bob": 3}
    assert dict(driver.store("bonus-seen").items()) == {"ann": 2, "bob": 3}
    assert [row["what"] for row in driver.output("wins")] == ["win"] * 3
    assert sorted(row["n"] for row in driver.output("bonus")) == [2, 2, 4]
    assert len(driver.output("bonus/more")) == 3
    assert driver.counts["user/bonuses"] == 3
    driver.crash().pipe("games", [game("ann", 5, 9)])
    assert driver.store("scores").get("ann")[-2:] == ["win 5", "bonus"]


def test_punctuators_of_both_are_called() -> None:
    driver = TestDriver(shared_app())
    driver.pipe("games", [game("ann", 2, 2)])
    driver.output("wins")
    driver.output("bonus")
    driver.advance("1m")
    assert {row["what"] for row in driver.output("wins")} == {"tick"}
    assert {row["n"] for row in driver.output("bonus")} == {-1}


def test_a_punctuator_writes_at_its_own_time() -> None:
    times = hf.TimestampedKeyValueStore("times", value=int)

    class Seen(hf.Processor):
        seen = times

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.seen[key] = ctx.timestamp

    class Ticks(hf.Processor):
        ticks = times

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.ticks[f"again {key}"] = ctx.timestamp

        @hf.punctuate(every="10s", time="stream")
        def tick(self, now: int, ctx: hf.Context) -> None:
            self.ticks["tick"] = now

    app = hf.App("shared", settings=hf.Settings(partitions=1))
    stream = stream_of(app)
    stream.process(Seen)
    stream.process(Ticks)
    driver = TestDriver(app)
    for second in (2, 35, 20):  # the last record is older than the time of the punctuator that fires after it
        driver.pipe("games", [game("ann", 2, second)])
    found = dict(driver.store("times").items())
    assert found.keys() == {"ann", "again ann", "tick"}
    assert all(each.timestamp == each.value for each in found.values())


def test_a_record_that_fails_in_one_is_undone_in_both() -> None:
    with pytest.raises(TaskFailed, match=r"Bonus.process\(\) raised ValueError: negative"):
        TestDriver(shared_app()).pipe("games", [game("ann", -1, 1)])
    driver = TestDriver(shared_app(on_error="dead_letter"))
    driver.pipe("games", [game("ann", 1, 1), game("ann", -1, 2), game("bob", -1, 2)])
    assert dict(driver.store("scores").items()) == {"ann": ["win 1", "bonus"]}
    assert dict(driver.store("total").items()) == {"ann": 1}
    assert [row["what"] for row in driver.output("wins")] == ["win"]
    assert [row["n"] for row in driver.output("bonus")] == [2]
    assert driver.counts["user/bonuses"] == 1
    letters = driver.dead_letters()
    assert sorted(letter["record"]["player"] for letter in letters) == ["ann", "bob"]
    assert driver.counts["dead"] == 2


def test_outputs_and_changes_of_each_can_be_streams_and_sinks() -> None:
    app = hf.App("shared", settings=hf.Settings(partitions=2))
    stream = stream_of(app)
    wins = stream.process(Wins, output="player string, what string")
    bonus = stream.process(Bonus, output="player string, n bigint", outputs={"more": "player string, n bigint"})
    assert [spec.name for spec in bonus.specs] == ["scores", "bonus-seen"]
    assert [spec.name for spec in wins.specs] == ["scores", "total"]
    bonus.to_stream(key="player").group_by().aggregate(n=hf.sum("n")).store("sums")
    bonus.sink_changes("scores", hf.memory())
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 2, 2), game("ann", 1, 1)])
    assert driver.store("sums").get("ann") == {"n": 6}
    assert [row["key"] for row in driver.output("wins/scores")] == ["ann"]


def test_what_cannot_share_a_store_is_refused() -> None:
    app = hf.App("refused")
    stream = stream_of(app)
    stream.process(Wins, output="player string, what string")
    with pytest.raises(TopologyError, match=r"Bonus shares a store with 'wins', whose stream has the key \(player\)"):
        stream.key_by("points").process(Bonus)
    with pytest.raises(TopologyError, match="which reads another stream.*merge"):
        stream.select("player", "points", "at").process(Bonus)
    with pytest.raises(TopologyError, match="There are two stores named 'scores'"):
        stream.process(Wins, name="again")
    with pytest.raises(TopologyError, match="has on_error='fail' and not 'skip'"):
        stream.process(Bonus, on_error="skip")

    class Other(hf.Processor):
        scores = hf.KeyValueStore("scores", value=list[str])

        def process(self, key: str, event: Any, ctx: hf.Context) -> None: ...

    with pytest.raises(TopologyError, match="There are two stores named 'scores'.*declare it once"):
        stream.process(Other)
    numbers = hf.KeyValueStore("others", value=int)

    class Alone(hf.Processor):
        others = numbers

        def process(self, key: str, event: Any, ctx: hf.Context) -> None: ...

    class Between(Alone):
        kept = scores

    stream.process(Alone)
    with pytest.raises(TopologyError, match="shares stores with processors that share none with each other"):
        stream.process(Between)


def started_after(driver: TestDriver, app: hf.App) -> TestDriver:
    """Another release, on the log of a former one."""
    later = TestDriver(app)
    later._log_url, later._done = driver._log_url, driver._done
    return later.crash()


def test_a_second_processor_comes_and_goes() -> None:
    first = TestDriver(shared_app(Wins))
    first.pipe("games", [game("ann", 1, 1)])
    both = started_after(first, shared_app())
    both.pipe("games", [game("ann", 2, 2)])
    assert both.store("scores").get("ann") == ["win 1", "win 2", "bonus"]
    assert both.store("bonus-seen").get("ann") == 2
    again = started_after(both, shared_app(Wins))
    again.pipe("games", [game("ann", 3, 3)])
    assert again.store("scores").get("ann") == ["win 1", "win 2", "bonus", "win 3"]


def test_stores_that_were_apart_cannot_be_shared_later() -> None:
    numbers = hf.KeyValueStore("apart", value=int)

    class Other(hf.Processor):
        apart = numbers

        def process(self, key: str, event: Any, ctx: hf.Context) -> None: ...

    def app_of(bridge: bool) -> hf.App:
        class Wide(Wins):
            if bridge:
                also = numbers

        app = hf.App("shared", settings=hf.Settings(partitions=2))
        stream = stream_of(app)
        stream.process(Wide, output="player string, what string", name="wins")
        stream.process(Other)
        return app

    driver = TestDriver(app_of(bridge=False))
    driver.pipe("games", [game("ann", 1, 1)])
    with pytest.raises(AppChanged, match="has stores that belong to different sub-topologies in the log"):
        started_after(driver, app_of(bridge=True))
