"""The test driver: whole topologies in one process, without Spark."""

import math
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

import holdfast as hf
from holdfast.errors import BadValue, TopologyError
from holdfast.pipeline.driver import TaskFailed
from holdfast.testing import TestDriver, records
from holdfast.testing.ahead import RecordAhead
from holdfast.testing.attributes import AttributeLost
from holdfast.words import TaskId

GAMES = "player string, points bigint, at timestamp"
START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for Spark fails, also while another test's session is there."""

    def refuse() -> None:
        raise AssertionError("this starts Spark")

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", refuse)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def game(player: str | None, points: int | None, seconds: float) -> dict[str, object]:
    return {"player": player, "points": points, "at": at(seconds)}


def city(player: str, name: str, seconds: float) -> dict[str, object]:
    return {"player": player, "city": name, "at": at(seconds)}


def games_app() -> tuple[hf.App, "hf.Stream"]:
    app = hf.App("games")
    return app, app.stream(records(GAMES), key="player", timestamp="at", name="games")


class Totals(hf.Processor):
    totals = hf.KeyValueStore("totals", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        total = self.totals.get(key, 0) + event.points
        self.totals[key] = total
        ctx.forward(key, {"total": total})
        if total > 9:
            ctx.forward(key, {"total": total}, to="alerts")


def test_aggregates_over_several_versions_need_no_spark() -> None:
    app, games = games_app()
    games.group_by().aggregate(
        n=hf.count(),
        some=hf.count("points"),
        total=hf.sum("points"),
        low=hf.min("points"),
        best=hf.max("points"),
        mean=hf.mean("points"),
        first=hf.first("points"),
        last=hf.last("points"),
        name=hf.max("player"),
    ).store("players")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 2), game("bob", 1, 1), game("ann", 5, 1)])
    driver.pipe("games", [game("ann", None, 3)])
    ann = {"n": 3, "some": 2, "total": 8, "low": 3, "best": 5, "mean": 4.0, "first": 5, "last": None, "name": "ann"}
    assert driver.store("players").get("ann") == ann
    assert [key for key, _ in driver.store("players").items()] == ["ann", "bob"]
    assert [row["player"] for row in driver.output("players")].count("ann") == 2
    assert driver.output("players") == []
    assert driver.version == 2
    assert driver.now.event == at(3).timestamp() * 1000


def test_a_record_that_cant_be_used_is_a_dead_letter() -> None:
    app, games = games_app()
    games.group_by().count().store("players")
    driver = TestDriver(app)
    late = r"'games' has the event time 2030-01-01 02:00:00 UTC, .* wall clock, 2030-01-01 00:00:00 UTC.*advance.*wall="
    with pytest.warns(RecordAhead, match=late) as found:
        driver.pipe("games", [game(None, 3, 2), game("ann", 1, 7200), game("bob", 1, 1)])
    assert [each.filename for each in found] == [__file__]
    letters = driver.dead_letters()
    assert [letter["reason"] for letter in letters] == [
        "no key: player is null",
        "event time is more than batch.max_ahead (3600000 ms) ahead of the clock",
    ]
    assert letters[0]["record"] == {"player": None, "at": "2030-01-01T00:00:02.000Z"}
    assert driver.store("players").items() == [("bob", {"count": 1})]
    assert driver.counts["dead"] == 2


def test_a_record_that_several_cant_use_is_one_dead_letter() -> None:
    app, games = games_app()
    games.group_by().count().store("players")
    games.select("player", "at").group_by().count().store("times")
    driver = TestDriver(app)
    driver.pipe("games", [game(None, 3, 2), game("bob", 1, 1)])
    assert [letter["reason"] for letter in driver.dead_letters()] == ["no key: player is null"]
    assert (driver.counts["records"], driver.counts["dead"]) == (2, 1)


@pytest.mark.parametrize("order", ["count first", "sum first"])
def test_a_dead_letter_has_the_columns_that_all_readers_of_its_source_use(order: str) -> None:
    app = hf.App("letters")
    stream = app.stream(records("k string, v int, w int, x int, y int, at timestamp"), key="k", timestamp="at")
    declarations: list[Callable[[], object]] = [
        lambda: stream.group_by().count().store("count"),
        lambda: stream.group_by().aggregate(total=hf.sum("v")).store("sum"),
        lambda: stream.select("k", "at", "w").group_by().aggregate(top=hf.max("w")).store("top"),
    ]
    for declare in declarations if order == "count first" else declarations[1::-1] + declarations[2:]:
        declare()
    app.stream(records("k string, y int"), key="k", name="other").group_by().aggregate(y=hf.max("y")).store("other")
    driver = TestDriver(app)
    driver.pipe("main", {"k": None, "v": 1, "w": 2, "x": 3, "y": 4, "at": at(1)})
    (letter,) = driver.dead_letters()
    assert letter["record"] == {"k": None, "v": 1, "w": 2, "at": "2030-01-01T00:00:01.000Z"}


def test_a_table_with_history_shows_its_own_columns_alone() -> None:
    app, games = games_app()
    games.group_by().aggregate(mean=hf.mean("points"), last=hf.last("points")).store("old", history="1h")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 2)])
    table = driver.store("old")
    found = table.get("ann")
    for record in (found, table.items()[0][1], table.history("ann")[0]):
        assert type(record) is hf.VersionedRecord and record == found
        assert set(record.value) == {"mean", "last"}
    assert found.valid_to is None and found.value["mean"] == 3.0


def test_a_leaderboard_has_a_list_of_rows_with_its_time() -> None:
    app, games = games_app()
    table = games.group_by().aggregate(best=hf.max("points"), n=hf.count())
    table.store("players").top(1, by="best", name="top")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 2), game("bob", 4, 1)])
    rows = [{"player": "bob", "best": 4, "n": 1}]
    assert driver.store("top").get("all").value == rows
    assert isinstance(driver.store("top").get("all"), hf.ValueAndTimestamp)
    assert driver.store("top-scores").rank(("all", "ann")) == 2


class Named(hf.Processor):
    """Forwards to an output that it doesn't have."""

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        ctx.forward(key, {"n": 1}, to="zz")


def test_the_columns_to_name_begin_with_the_streams_own_key() -> None:
    app = hf.App("named")
    stream = app.stream(records("town string, v bigint"), key="town")
    named = stream.process(Named, output="town string, v bigint")
    with pytest.raises(TopologyError, match=r"outputs=\{'zz': 'town string, n bigint'\}"):
        named.output("zz")
    with pytest.raises(TaskFailed, match=r"outputs=\{'zz': 'town string, n bigint'\}"):
        TestDriver(app).pipe("main", {"town": "oslo", "v": 1})
    silent = stream.process(Totals)
    with pytest.raises(TopologyError, match="output='town string, n bigint'"):
        silent.sink(hf.memory())


class Misfit(hf.Processor):
    """Forwards a text where a number is needed."""

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        ctx.forward(key, {"n": "text" if event.points == 13 else event.points})

    @hf.punctuate(every="10s", time="wall")
    def late(self, now: int, ctx: hf.Context) -> None:
        ctx.forward("ann", {"n": "late"})


def test_a_forwarded_row_of_the_wrong_type_names_its_record() -> None:
    app, games = games_app()
    games.process(Misfit, output="player string, n bigint")
    driver = TestDriver(app)
    wrong = r"Misfit.process\(\) raised .*BadValue: The forwarded row \('ann', 'text'\) has 'text' as n"
    with pytest.raises(TaskFailed, match=wrong + r".* for the key 'ann' .*points=13.*batch was committed"):
        driver.pipe("games", [game("ann", 1, 1), game("ann", 13, 2), game("ann", 2, 3)])
    with pytest.raises(
        TaskFailed, match=wrong + r".* for the key 'ann' .*, or for another of 2 records with the same time"
    ):
        driver.pipe("games", [game("ann", 1, 1), game("bob", 2, 1), game("ann", 13, 1)])
    driver.pipe("games", game("bob", 1, 1))
    with pytest.raises(TaskFailed, match=r"Misfit.forward\(\) of a punctuator .*\('ann', 'late'\) has 'late' as n"):
        driver.advance("1m")


@pytest.mark.parametrize("value", [1.9, Decimal("1.9")])
@pytest.mark.parametrize("column", ["k", "n", "many", "by"])
def test_a_fraction_is_no_whole_number(column: str, value: float | Decimal) -> None:
    app = hf.App("whole")
    by, many = MapType(StringType(), IntegerType()), ArrayType(LongType())
    columns = StructType().add("k", LongType()).add("n", IntegerType()).add("many", many).add("by", by)
    app.stream(records(columns), key="k").group_by().count().store("numbers")
    driver = TestDriver(app)
    given = {"many": [value], "by": {"a": value}}.get(column, value)
    with pytest.raises(BadValue, match=rf"'{column}' can't be .*1.9 is not a whole number"):
        driver.pipe("main", {"k": 1, "n": 2, column: given})
    driver.pipe("main", {"k": 1.0, "n": 2.0, "many": [3.0], "by": {"a": 4.0}})
    assert driver.store("numbers").get(1) == {"count": 1}


def test_what_expires_in_a_second_takes_a_few_versions() -> None:
    app, games = games_app()
    games.group_by().aggregate(best=hf.max("points")).store("best", ttl="20s")
    driver = TestDriver(app)
    for n in range(4):
        driver.pipe("games", game(f"p{n}", n, n / 5))
        driver.advance("200ms")
    before = driver.version
    assert 0 < driver.advance("40s") - before < 6
    assert driver.store("best").items() == []


def test_the_app_of_a_test_stays_as_it_was(tmp_path: Path) -> None:
    app, games = games_app()
    best = games.group_by().aggregate(best=hf.max("points")).store("best")
    best.sink(hf.files(str(tmp_path)), name="mine")
    described = app.describe()
    first, second = TestDriver(app), TestDriver(app)
    for driver in (first, second):
        driver.pipe("games", game("ann", 3, 1))
        assert driver.output("best") == [{"player": "ann", "best": 3}]
    assert app.describe() == described and "mine" in described
    games.group_by().count().store("count")
    assert "count" in app.describe() and not any(tmp_path.iterdir())


def test_processors_outputs_and_derived_streams() -> None:
    app, games = games_app()
    totals = games.process(
        Totals, output="player string, total bigint", outputs={"alerts": "player string, total bigint"}
    )
    totals.to_stream(key="total").group_by().count().store("by-total")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 8, 2), game("bob", 8, 1)])
    driver.pipe("games", [game("ann", 4, 3)])
    assert driver.store("totals").items() == [("ann", 12), ("bob", 8)]
    assert dict(driver.store("by-total").items()) == {8: {"count": 2}, 12: {"count": 1}}
    assert driver.output("alerts") == [{"player": "ann", "total": 12}]
    assert len(driver.output("totals")) == 3


def test_a_processor_that_raises_refuses_the_batch() -> None:
    app, games = games_app()
    games.process(Totals, output="player string, total bigint")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1)])
    with pytest.raises(TaskFailed, match="there is no such output"):
        driver.pipe("games", [game("ann", 100, 2)])
    assert driver.store("totals").get("ann") == 1
    driver.pipe("games", [game("ann", 2, 2)])
    assert driver.store("totals").get("ann") == 3


class Forgetful(hf.Processor):
    __slots__ = ("last",)
    seen = hf.KeyValueStore("seen", value=int)

    def __init__(self) -> None:
        self.limit = 3

    def init(self, ctx: hf.Context) -> None:
        self.started = ctx.version
        self.waiting: list[str] = []

    @cached_property
    def table(self) -> dict[str, int]:
        return {"ann": 1}

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = self.table.get(key, 0) + self.limit
        match event.points:
            case 1:
                self.number = 1
            case 2:
                self.waiting.append(key)
            case 3:
                self.last = key


@pytest.mark.parametrize(("points", "attribute"), [(1, "number"), (2, "waiting"), (3, "last")])
def test_an_attribute_that_is_set_while_processing_is_warned_about_once(points: int, attribute: str) -> None:
    app, games = games_app()
    games.process(Forgetful)
    driver = TestDriver(app)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driver.pipe("games", [game("ann", 0, 1)])
    with pytest.warns(AttributeLost, match=rf"Forgetful.{attribute} was changed in process\(\).*use a store") as found:
        [driver.pipe("games", [game("ann", points, second)]) for second in (2, 3)]
    assert len(found) == 1


def test_windows_close_when_stream_time_passes() -> None:
    app, games = games_app()
    windowed = games.group_by().window(hf.tumbling("60s", grace="5s")).count().store("minutes")
    windowed.final()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1), game("ann", 1, 2), game("bob", 1, 59)])
    assert driver.output("final") == []
    driver.advance(stream="10s")
    rows = driver.output("final")
    assert {(row["player"], row["count"]) for row in rows} == {("ann", 2), ("bob", 1)}
    driver.pipe("games", [game("ann", 1, 3), game("ann", 1, 3)])
    assert len(driver.output("late")) == 2
    assert [value for _, value in driver.store("minutes").items()] == [{"count": 2}, {"count": 1}]


def test_sessions_and_hopping_windows() -> None:
    app, games = games_app()
    games.group_by().window(hf.session("30s", grace="1m")).aggregate(n=hf.count(), last=hf.last("points")).store(
        "sessions"
    )
    games.group_by().window(hf.hopping("60s", every="30s", grace="1m")).aggregate(total=hf.sum("points")).store("hops")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0), game("ann", 2, 40)])
    driver.pipe("games", [game("ann", 3, 20)])
    ((key, value),) = driver.store("sessions").items()
    assert key.key == "ann" and value == {"n": 3, "last": 2}
    assert sorted(value["total"] for _, value in driver.store("hops").items()) == [2, 4, 6]


def test_tables_and_joins() -> None:
    app, games = games_app()
    cities = app.table(
        records("player string, city string, gone boolean, at timestamp"),
        "cities",
        key="player",
        timestamp="at",
        deleted="gone",
    )
    joined = games.join(cities, how="left", name="with-city", prefix="city_")
    joined.to_stream().key_by("city_city").group_by("city_city").count().store("by-city")
    driver = TestDriver(app)
    driver.pipe("cities", [city("ann", "Bern", 0), city("bob", "Ulm", 0)])
    driver.pipe("games", [game("ann", 1, 1), game("cid", 1, 1)])
    driver.pipe_all({"games": [game("bob", 2, 2)], "cities": [{"player": "bob", "gone": True, "at": at(1)}]})
    assert [(row["player"], row["city_city"]) for row in driver.output("with-city")] == [
        ("ann", "Bern"),
        ("cid", None),
        ("bob", None),
    ]
    assert driver.store("by-city").items() == [("Bern", {"count": 1})]
    assert driver.store("cities").get("bob") is None


def test_tables_joined_with_each_other() -> None:
    app, games = games_app()
    counts = games.group_by().count().store("counts")
    cities = app.table(records("player string, city string, at timestamp"), "cities", key="player", timestamp="at")
    counts.join(cities, how="outer", name="both")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1)])
    driver.pipe("cities", [city("ann", "Bern", 2), city("bob", "Ulm", 2)])
    assert dict(driver.store("both").items()) == {
        "ann": {"count": 1, "city": "Bern", "at": at(2)},
        "bob": {"count": None, "city": "Ulm", "at": at(2)},
    }


def test_streams_joined_within_a_window() -> None:
    app, games = games_app()
    chats = app.stream(records("player string, text string, at timestamp"), key="player", timestamp="at", name="chats")
    games.join(chats, within=hf.join_window("10s"), how="left", name="talk", prefix="chat_")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0), game("bob", 2, 0)])
    driver.pipe(
        "chats", [{"player": "ann", "text": "hi", "at": at(5)}, {"player": "bob", "text": "late", "at": at(11)}]
    )
    assert [(row["player"], row["chat_text"]) for row in driver.output("talk")] == [("ann", "hi")]
    driver.advance(stream="1m")
    assert [(row["player"], row["chat_text"]) for row in driver.output("talk")] == [("bob", None)]


class Player(msgspec.Struct):
    points: int = 0
    city: str = ""


def scored(player: Player, event: Any) -> Player:
    return Player(player.points + event.points, player.city)


def moved(player: Player, event: Any) -> Player | None:
    return None if event.city == "" else Player(player.points, event.city)


def test_several_streams_keep_one_value_per_key() -> None:
    app, games = games_app()
    moves = app.stream(records("who string, city string, at timestamp"), key="who", timestamp="at", name="moves")
    both = hf.cogroup((games.group_by(), scored), (moves.group_by(), moved))
    both.aggregate_with(Player, value=Player).store("players")
    games.group_by().reduce(max, of="points").store("best")
    driver = TestDriver(app)
    home = [{"who": "ann", "city": "Bern", "at": at(2)}, {"who": "bob", "city": "", "at": at(2)}]
    driver.pipe_all({"games": [game("ann", 3, 1), game("bob", 5, 1)], "moves": home})
    assert [(key, found.value) for key, found in driver.store("players").items()] == [("ann", Player(3, "Bern"))]
    assert [key for key, _ in driver.store("best").items()] == ["ann", "bob"]


def test_a_leaderboard() -> None:
    app, games = games_app()
    best = games.group_by().aggregate(best=hf.max("points")).store("best")
    best.top(2, by="best", name="top2")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 1), game("bob", 5, 1), game("cid", 4, 1)])
    ((_, found),) = driver.store("top2").items()
    assert "bob" in str(found) and "cid" in str(found) and "ann" not in str(found)
    scores = driver.store("top2-scores")
    assert [scores.rank(("all", player)) for player in ("bob", "cid", "ann", "dora")] == [1, 2, 3, None]
    assert driver.store("best").get_many(["ann", "dora", "bob", "cid"]) == {
        "ann": {"best": 3},
        "bob": {"best": 5},
        "cid": {"best": 4},
    }


def test_sliding_windows_updates_and_collected_values() -> None:
    app, games = games_app()
    games.group_by().window(hf.sliding("10s", grace="1m")).count().store("sliding")
    games.group_by().window(hf.tumbling("1m")).aggregate(total=hf.sum("points")).store("updates", emit="updates")
    games.group_by().aggregate(last=hf.collect("points", limit=2)).store("recent")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 3, 20), game("ann", 1, 0), game("ann", 2, 5)])
    assert [row["total"] for row in driver.output("updates")] == [1, 3, 6]
    assert driver.store("recent").get("ann") == {"last": "[2,3]"}
    assert sorted(value["count"] for _, value in driver.store("sliding").items()) == [1, 1, 1, 2]


class Silent(hf.Processor):
    seen = hf.KeyValueStore("seen", value=int, ttl="1m")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = event.points

    @hf.punctuate(every="10s", time="wall")
    def look(self, now: int, ctx: hf.Context) -> None:
        for key in self.seen.keys():  # noqa: SIM118  a store is no dictionary
            ctx.forward(key, {"second": now // 1000 % 60})


def test_an_aggregate_needs_a_name() -> None:
    _, games = games_app()
    grouped: Any = games.group_by()
    for each in (grouped, grouped.window(hf.tumbling("1m"))):
        with pytest.raises(TopologyError, match=r"aggregate\(sum\(points\)\): an aggregate needs a name.*n=hf.count"):
            each.aggregate(hf.sum("points"), n=hf.count())


@pytest.mark.parametrize("call", [hf.App.start, hf.App.plan])
def test_an_app_with_records_of_a_test_is_not_started(call: Callable[[hf.App], object], tmp_path: Path) -> None:
    app = hf.App("games", settings=hf.Settings(base_dir=str(tmp_path)))
    app.stream(records(GAMES), key="player", name="games").group_by().count().store("totals")
    with pytest.raises(TopologyError, match=r"The source 'games' is made with records\(...\).*TestDriver\(app\)"):
        call(app)
    assert not list(tmp_path.iterdir())


def test_wall_clock_time_passes_without_records() -> None:
    app, games = games_app()
    games.process(Silent, output="player string, second bigint")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0)])
    driver.advance("30s")
    assert [row["second"] for row in driver.output("silent")] == [10, 20, 30]
    assert driver.now.wall == at(30).timestamp() * 1000
    driver.advance("40s")
    assert driver.store("seen").items() == []


def test_merged_streams_have_clocks_per_source() -> None:
    app, games = games_app()
    others = app.stream(records(GAMES), key="player", timestamp="at", name="others")
    games.merge(others).group_by().aggregate(n=hf.count(), last=hf.last("points")).store("players")
    driver = TestDriver(app)
    driver.pipe_all({"games": [game("ann", 1, 10)], "others": [game("ann", 2, 5)]})
    assert driver.store("players").get("ann") == {"n": 2, "last": 1}
    assert driver.now.event == at(5).timestamp() * 1000


def test_a_crash_loses_nothing() -> None:
    app, games = games_app()
    games.process(Totals, output="player string, total bigint", outputs={"alerts": "player string, total bigint"})
    games.group_by().count().store("players")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1)])
    driver.crash().pipe("games", [game("ann", 2, 2)])
    assert driver.store("totals").get("ann") == 3
    assert driver.store("players").get("ann") == {"count": 2}
    assert [row["total"] for row in driver.output("totals")] == [1, 3]


def test_mistakes_are_named() -> None:
    app, games = games_app()
    games.group_by().count().store("players")
    driver = TestDriver(app)
    with pytest.raises(TopologyError, match="no such source. Did you mean 'games'"):
        driver.pipe("game", [])
    with pytest.raises(TopologyError, match="Did you mean 'points'"):
        driver.pipe("games", [{"player": "ann", "point": 1}])
    with pytest.raises(BadValue, match="'points' can't be int64"):
        driver.pipe("games", [{"player": "ann", "points": "many"}])
    with pytest.raises(BadValue, match="'at' can't be timestamp.*'noon'"):
        driver.pipe("games", [{"player": "ann", "at": "noon"}])
    with pytest.raises(TopologyError, match="no output has this name"):
        driver.output("alerts")
    with pytest.raises(TopologyError, match="Did you mean 'players'"):
        driver.store("player")
    with pytest.raises(TopologyError, match="Pipe one first"):
        driver.advance(stream="1s")


def test_mistakes_in_a_topology_are_named() -> None:
    _, games = games_app()
    totals = games.group_by().aggregate(total=hf.sum("points")).store("totals")
    with pytest.raises(TopologyError, match=r"select\('player', 'point'\).* no column 'point'. Did you mean 'points'"):
        games.select("player", "point")
    with pytest.raises(TopologyError, match=r"'totals' has no column 'totl'. Did you mean 'total'\? It has total\.$"):
        totals.top(3, by="totl", name="top3")


@pytest.mark.parametrize("wrong", ["totals", records("player string"), hf.App], ids=["name", "columns", "class"])
def test_a_join_says_what_it_takes(wrong: Any) -> None:
    _, games = games_app()
    totals = games.group_by().count().store("totals")
    with pytest.raises(TopologyError, match=r"join\(\): .* is neither a stream nor a table"):
        games.join(wrong, name="joined")
    with pytest.raises(TopologyError, match=r"join\(\): .* is not a table"):
        totals.join(wrong, name="joined")


def test_a_table_of_python_values_says_how_it_gets_columns() -> None:
    _, games = games_app()
    totals = games.group_by().aggregate(total=hf.sum("points")).store("totals")
    best: Any = games.group_by().reduce(max, of="points").store("best")
    windows: Any = games.group_by().window(hf.tumbling("1m")).reduce(max, of="points").store("windows")
    top: Any = totals.top(3, by="total", name="top3")
    for each in (best, windows, top):
        for stream in (games, totals):
            with pytest.raises(TopologyError, match=rf"join\('{each.name}'\): .*has no columns.*hf\.last\('best'\)"):
                stream.join(each, name="joined")
        with pytest.raises(AttributeError, match=r"^A table of Python values has no method 'join'.*has no columns"):
            each.join(totals, name="joined")
        with pytest.raises(AttributeError, match=r"^A table of Python values has no method 'top'.*has no columns"):
            each.top(2, by="value", name="top")


def test_a_join_says_that_rows_must_become_a_stream_first() -> None:
    _, games = games_app()
    totals = games.group_by().aggregate(total=hf.sum("points")).store("totals")
    joined: Any = games.join(totals, name="with-totals")
    with pytest.raises(TopologyError, match=r"Joined is neither a stream nor a table.* to_stream\(\)"):
        games.join(joined, name="joined")
    stream: Any = games
    with pytest.raises(TopologyError, match=r"Stream is not a table.* stream.join\(table\)"):
        totals.join(stream, name="joined")


def test_a_table_has_one_row_for_0_and_minus_0_and_for_every_nan() -> None:
    app = hf.App("floats", settings=hf.Settings(partitions=1))
    app.table(records("k double, p long, at timestamp"), "rows", key="k", timestamp="at")
    driver = TestDriver(app)
    keys = [-0.0, 0.0, math.nan, -math.nan]
    driver.pipe("rows", [{"k": key, "p": number, "at": at(number)} for number, key in enumerate(keys)])
    newest = driver._log.newest()
    assert newest is not None
    stored = [
        key
        for ref in newest.of_task(TaskId(0, 0))
        for _, table in driver._log.state_parts(ref)
        for key in table["key"].to_pylist()
    ]
    assert len(stored) == len({*stored}) == 2, "a segment has each key once"
    assert [row["p"] for _, row in driver.store("rows").items()] == [1, 3]
