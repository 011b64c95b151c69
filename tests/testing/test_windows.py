"""Windows on the test driver: late records as a stream, one result per record, and values of a user's own functions."""

import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.batches import count_commit
from holdfast.errors import TopologyError
from holdfast.metrics import REGISTRY
from holdfast.testing import TestDriver, records
from holdfast.topology.plain_frames import PlainFrame
from tests.testing.test_driver import GAMES, START, at, game, without_spark

__all__ = ["without_spark"]  # a fixture for all tests here

KINDS: dict[str, Any] = {
    "tumbling": hf.tumbling("10s", grace="5s"),
    "hopping": hf.hopping("10s", every="5s", grace="5s"),
    "sliding": hf.sliding("10s", grace="5s"),
    "session": hf.session("10s", grace="5s"),
}


def one_task() -> tuple[hf.App, hf.Stream]:
    """One partition, so that rows of several keys have an order."""
    app = hf.App("games", settings=hf.Settings(partitions=1))
    return app, app.stream(records(GAMES), key="player", timestamp="at", name="games")


def windows_in(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    """Player, start and end in seconds, then these columns, None for a deleted window."""
    return [
        (
            row["player"],
            *((row[time] - START).total_seconds() for time in ("window_start", "window_end")),
            *(None if row.get("_deleted") else row[each] for each in columns),
        )
        for row in rows
    ]


def one_more(value: int, event: Any) -> int:
    return value + 1


class Complaints(hf.Processor):
    seen = hf.KeyValueStore("complaints", value=list[str])

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        second = (event.at - START).total_seconds()
        self.seen[key] = [*self.seen.get(key, []), f"{event.points} at {second:g}, {ctx.timestamp % 60_000} ms"]


@pytest.mark.parametrize("windows", KINDS.values(), ids=list(KINDS))
def test_late_records_are_a_stream(windows: Any) -> None:
    app, games = one_task()
    table = games.group_by().window(windows).count().store("counts")
    late = table.late.to_stream()
    assert (repr(table.late), repr(table)[:24]) == ("LateRecords('counts~late')", "WindowedTable('counts', ")
    late.group_by().aggregate(n=hf.count(), total=hf.sum("points"), last=hf.last("points")).store("late-games")
    late.process(Complaints)
    table.late.to_stream(key="points").group_by("points").count().store("by-points")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 4), game("ann", 2, 50)])
    assert driver.store("late-games").items() == []
    driver.pipe("games", [game("ann", 8, 2.5), game("bob", 8, 3), game("ann", 8, 1), game("ann", 3, 51)])
    expected = {"ann": {"n": 2, "total": 16, "last": 8}, "bob": {"n": 1, "total": 8, "last": 8}}
    assert dict(driver.store("late-games").items()) == expected
    assert driver.store("complaints").get("ann") == ["8 at 1, 1000 ms", "8 at 2.5, 2500 ms"]
    assert dict(driver.store("by-points").items()) == {8: {"count": 3}}
    assert driver.counts["late/counts"] == 3
    assert sorted(driver.output("late"), key=lambda row: row["at"]) == [
        game("ann", 8, 1),
        game("ann", 8, 2.5),
        game("bob", 8, 3),
    ]
    driver.crash()
    assert dict(driver.store("late-games").items()) == expected


def test_a_record_with_one_open_window_is_not_late() -> None:
    app, games = one_task()
    table = games.group_by().window(hf.hopping("10s", every="5s")).count().store("counts")
    table.late.to_stream().group_by().count().store("late")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 11)])
    driver.pipe("games", [game("ann", 1, 7), game("ann", 1, 4)])  # 5 to 15 is open; -5 to 5 and 0 to 10 have closed
    assert dict(driver.store("late").items()) == {"ann": {"count": 1}}


def test_late_records_of_a_derived_stream() -> None:
    app, games = one_task()
    hourly = games.group_by().window(hf.tumbling("10s")).count().store("first")
    second = hourly.late.to_stream().group_by().window(hf.tumbling("10s", grace="1m")).count().store("second")
    second.late.to_stream().group_by().aggregate(n=hf.count(), most=hf.max("points")).store("third")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 100)])
    driver.pipe("games", [game("ann", 2, 60), game("ann", 3, 5)])
    assert [value for _, value in driver.store("second").items()] == [{"count": 1}]
    assert dict(driver.store("third").items()) == {"ann": {"n": 1, "most": 3}}


def test_a_column_that_a_stream_of_late_records_cant_have_is_named() -> None:
    app = hf.App("tags")
    columns = {"player": pa.string(), "tags": pa.list_(pa.string()), "at": pa.timestamp("us", "UTC")}
    frame: Any = PlainFrame.of_arrow(pa.schema(columns))
    stream = app.stream(frame, key="player", timestamp="at")
    table = stream.group_by().window(hf.tumbling("10s")).count().store("counts")
    table.late.sink(hf.memory())
    with pytest.raises(TopologyError, match=r"the column 'tags' can't be .* stream.drop\('tags'\)"):
        table.late.to_stream()


def test_the_session_of_each_record() -> None:
    """Two sessions become one: both are deleted, then the new one comes."""
    app, games = one_task()
    sessions = games.group_by().window(hf.session("10s", grace="1m")).aggregate(total=hf.sum("points"))
    table = sessions.store("sessions", emit="updates")
    table.to_stream().group_by("_deleted").count().store("kinds")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0), game("ann", 2, 5), game("ann", 4, 25)])
    assert windows_in(driver.output("sessions"), "total") == [
        ("ann", 0, 0, 1),
        ("ann", 0, 0, None),
        ("ann", 0, 5, 3),
        ("ann", 25, 25, 4),
    ]
    driver.pipe("games", [game("ann", 8, 3), game("ann", 16, 15)])
    assert windows_in(driver.output("sessions"), "total") == [
        ("ann", 0, 5, 11),
        ("ann", 0, 5, None),
        ("ann", 25, 25, None),
        ("ann", 0, 25, 31),
    ]
    assert [value for _, value in driver.store("sessions").items()] == [{"total": 31}]
    assert dict(driver.store("kinds").items()) == {False: {"count": 5}, True: {"count": 3}}


@pytest.mark.parametrize("grace", [0, 20])
@pytest.mark.parametrize("retention", [None, "shortest"])
@pytest.mark.parametrize("function", [False, True])
def test_a_sliding_window_takes_records_until_the_clock_is_past_its_end(
    grace: int, retention: str | None, *, function: bool
) -> None:
    """Its end is in it. So is a record of that time in the next version, also where windows are kept no longer."""
    app, games = one_task()
    windowed = games.group_by().window(hf.sliding("10ms", grace=f"{grace}ms"))
    counted: Any = (
        windowed.aggregate_with(int, one_more, value=int) if function else windowed.aggregate(value=hf.count())
    )
    table = counted.store("counts", retention=None if retention is None else f"{10 + grace}ms")
    table.final()
    driver = TestDriver(app)
    driver.pipe("games", game("ann", 1, 0.1))
    driver.pipe("games", game("bob", 1, 0.1 + grace / 1000))  # the clock is at the end of the window and its grace
    driver.pipe("games", game("ann", 1, 0.1))
    assert counted_in(driver.output("counts/final")) == []
    assert counted_in(driver.output("counts"))[-1] == ("ann", 0.09, 0.1, 2)
    driver.pipe("games", game("bob", 1, 0.101 + grace / 1000))
    driver.pipe("games", game("ann", 1, 0.1))
    assert "late/counts" not in driver.counts, "the windows that end later are open"
    assert counted_in(driver.output("counts/final")) == [("ann", 0.09, 0.1, 2)]
    driver.pipe("games", game("bob", 1, 0.111 + grace / 1000))
    driver.pipe("games", game("ann", 1, 0.1))
    assert driver.counts["late/counts"] == 1


def counted_in(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(*times, int(value)) for *times, value in windows_in(rows, "value") if "ann" in times]


def test_the_sliding_windows_of_each_record() -> None:
    """Kafka Streams' example: after 8.0, 9.2 and 12.4 s, with a size of 5 s."""
    app, games = one_task()
    games.group_by().window(hf.sliding("5s", grace="1m")).count().store("sliding", emit="updates")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 12.4)])
    assert windows_in(driver.output("sliding"), "count") == [("ann", 7.4, 12.4, 1)]
    driver.pipe("games", [game("ann", 1, 9.2), game("ann", 1, 8)])
    assert windows_in(driver.output("sliding"), "count") == [
        ("ann", 3, 8, 1),
        ("ann", 7.4, 12.4, 2),
        ("ann", 8.001, 13.001, 1),
        ("ann", 4.2, 9.2, 2),
        ("ann", 7.4, 12.4, 3),
        ("ann", 8.001, 13.001, 2),
        ("ann", 9.201, 14.201, 1),
    ]


class Points(msgspec.Struct):
    points: list[int]


def add(value: Points, event: Any) -> Points | None:
    """Zero points delete the window."""
    return Points([*value.points, event.points]) if event.points else None


def together(one: Points, other: Points) -> Points:
    return Points([*one.points, *other.points])


def values_in(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    for row in rows:
        row["points"] = None if row["value"] is None else json.loads(row["value"])["points"]
    return windows_in(rows, "points")


def test_a_function_of_the_user_keeps_a_value_per_window() -> None:
    app, games = one_task()
    table = games.group_by().window(hf.hopping("10s", every="5s", grace="5s"))
    hops = table.aggregate_with(lambda: Points([]), add, value=Points).store("hops")
    hops.final().to_stream().group_by().count().store("closed")
    assert repr(hops) == "ReducedWindowedTable('hops', key='player string')"
    assert "windows hopping 10s every 5s, grace 5s" in app.describe()
    hops.late.to_stream().group_by().aggregate(last=hf.last("points")).store("late")
    hops.to_stream().group_by("window_start").aggregate(changes=hf.count(), gone=hf.count("value")).store("changes")
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 2, 7), game("ann", 1, 6), game("bob", 3, 7)])
    assert values_in(driver.output("hops")) == [
        ("ann", 0, 10, [1, 2]),
        ("ann", 5, 15, [1, 2]),
        ("bob", 0, 10, [3]),
        ("bob", 5, 15, [3]),
    ]
    assert driver.counts["waiting/hops"] == 4
    driver.pipe("games", [game("bob", 0, 8), game("ann", 4, 14), game("ann", 5, 15)])
    assert values_in(driver.output("hops")) == [
        ("ann", 5, 15, [1, 2, 4]),
        ("ann", 10, 20, [4, 5]),
        ("ann", 15, 25, [5]),
        ("bob", 0, 10, None),
        ("bob", 5, 15, None),
    ]
    assert driver.output("final") == []
    driver.pipe("games", [game("cid", 7, 4), game("cid", 6, 9)])  # the clock is at 15: windows up to 10 have closed
    assert [row[:3] for row in values_in(driver.output("hops"))] == [("cid", 5, 15)]
    assert values_in(driver.output("final")) == [("ann", 0, 10, [1, 2])]
    assert (driver.counts["late/hops"], driver.counts["waiting/hops"]) == (1, 4)
    assert [(row["player"], row["points"], row["at"]) for row in driver.output("hops/late")] == [("cid", 7, at(4))]
    assert driver.store("late").get("cid") == {"last": 7}
    driver.crash().advance(stream="1h")
    assert [row[:3] for row in sorted(values_in(driver.output("final")))] == [
        ("ann", 5, 15),
        ("ann", 10, 20),
        ("ann", 15, 25),
        ("cid", 5, 15),
    ]
    assert dict(driver.store("closed").items()) == {"ann": {"count": 4}, "cid": {"count": 1}}
    assert driver.counts["waiting/hops"] == 0


def test_a_function_of_the_user_keeps_a_value_per_session() -> None:
    """Kafka Streams: the values of merged sessions become one by the merger, then the record is added."""
    app, games = one_task()
    windowed = games.group_by().window(hf.session("10s", grace="1m"))
    windowed.aggregate_with(lambda: Points([]), add, merger=together, value=Points).store("sessions", emit="updates")
    windowed.reduce(max, of="points").store("largest").final()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 0), game("ann", 2, 5), game("ann", 4, 25), game("bob", 3, 1)])
    assert values_in(driver.output("sessions")) == [
        ("ann", 0, 0, [1]),
        ("bob", 1, 1, [3]),
        ("ann", 0, 0, None),
        ("ann", 0, 5, [1, 2]),
        ("ann", 25, 25, [4]),
    ]
    driver.output("largest")
    driver.pipe("games", [game("ann", 3, 3), game("ann", 9, 15), game("bob", 0, 2)])
    assert values_in(driver.output("sessions")) == [
        ("bob", 1, 1, None),
        ("ann", 0, 5, [1, 2, 3]),
        ("ann", 0, 5, None),
        ("ann", 25, 25, None),
        ("ann", 0, 25, [1, 2, 3, 4, 9]),
    ]
    changes = windows_in(driver.output("largest"), "value")
    assert changes == [
        ("ann", 0, 5, None),
        ("ann", 25, 25, None),
        ("bob", 1, 1, None),
        ("ann", 0, 25, "9"),
        ("bob", 1, 2, "3"),
    ]
    driver.advance(stream="1h")
    assert windows_in(driver.output("final"), "value") == [("bob", 1, 2, "3"), ("ann", 0, 25, "9")]


def test_a_function_that_fails_leaves_nothing_in_any_window() -> None:
    app, games = one_task()

    def fussy(value: int, event: Any) -> int:
        if event.points == 13 and event.at >= at(8):
            raise ValueError("unlucky")
        return value + int(event.points)

    table = games.group_by().window(hf.hopping("10s", every="5s"))
    table.aggregate_with(int, fussy, value=int, on_error="dead_letter").store("sums").final()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1), game("ann", 13, 9), game("ann", 13, 7)])
    assert [row["value"] for row in driver.output("sums")] == ["1", "14", "13"]
    assert driver.counts["waiting/sums"] == 3
    (letter,) = driver.dead_letters()
    assert "ValueError: unlucky" in letter["reason"]


def test_several_streams_keep_one_value_per_window() -> None:
    app, games = one_task()
    moves = app.stream(records("who string, city string, at timestamp"), key="who", timestamp="at", name="moves")

    def scored(value: list[str], event: Any) -> list[str]:
        return [*value, f"{event.points} points"]

    def moved(value: list[str], event: Any) -> list[str]:
        return [*value, event.city]

    both = hf.cogroup((games.group_by(), scored), (moves.group_by(), moved))
    minutes = both.window(hf.tumbling("10s")).aggregate_with(list, value=list[str]).store("minutes")
    with pytest.raises(TopologyError, match="'minutes' are of several streams"):
        _ = minutes.late
    both.window(hf.session("5s")).aggregate_with(list, value=list[str], merger=list.__add__).store("visits")
    driver = TestDriver(app)
    home = [{"who": "ann", "city": "Bern", "at": at(2)}, {"who": "ann", "city": "Ulm", "at": at(12)}]
    driver.pipe_all({"games": [game("ann", 3, 1), game("ann", 5, 7)], "moves": home})
    values = [value for _, value in driver.store("minutes").items()]
    assert values == [["3 points", "Bern", "5 points"], ["Ulm"]]
    assert [value for _, value in driver.store("visits").items()] == [["3 points", "Bern", "5 points", "Ulm"]]


def test_functions_that_windows_cant_use_are_refused_where_they_are_written() -> None:
    _, games = one_task()
    grouped = games.group_by()
    with pytest.raises(TopologyError, match="Pass merger=f"):
        grouped.window(hf.session("10s")).aggregate_with(int, add, value=int)
    minutes = grouped.window(hf.tumbling("10s")).reduce(max, of="points")
    wrong: Any = "every 30s"
    with pytest.raises(TopologyError, match=r"Use 'updates' or hf.every\('30s'\), or leave it out"):
        minutes.store("largest", emit=wrong)
    with pytest.raises(TopologyError, match='retention="40s" or more'):
        minutes.store("largest", emit=hf.every("30s"), retention="30s")
    with pytest.raises(TopologyError, match="A table can't do both"):
        minutes.store("stepwise", emit=hf.every("30s")).final()
    with pytest.raises(TopologyError, match='retention="10s" or more'):
        minutes.store("largest", retention="1s")


def test_the_documented_example_of_suppression() -> None:
    """Kafka Streams: windows of an hour with a grace of ten minutes; an alert for users with less than three events.

    Nothing is sent before the window has closed, and an event within the grace still counts.
    """
    app, games = one_task()
    hours = games.group_by().window(hf.tumbling("1h", grace="10m")).count().store("hours")
    hours.final()
    driver, minute = TestDriver(app, wall=at(7200)), 60
    driver.pipe("games", [game("ann", 1, 5 * minute), game("bob", 1, 50 * minute), game("ann", 1, 55 * minute)])
    driver.pipe("games", [game("zoe", 1, 69 * minute)])
    driver.pipe("games", [game("ann", 1, 59 * minute)])  # in the grace
    assert driver.output("final") == []
    driver.advance(stream="1m")
    closed = driver.output("final")
    assert sorted(windows_in(closed, "count")) == [("ann", 0, 3600, 3), ("bob", 0, 3600, 1)]
    assert [row["player"] for row in closed if row["count"] < 3] == ["bob"]
    driver.pipe("games", [game("bob", 1, 58 * minute)])
    assert len(driver.output("late")) == 1 and driver.output("final") == []


@pytest.mark.parametrize("every", [False, True], ids=["final", "every"])
def test_the_number_of_windows_that_wait_is_a_metric(every: bool) -> None:
    app, games = one_task()
    name = f"waiting-{int(every)}"
    table = games.group_by().window(hf.tumbling("10s")).count()
    if every:
        table.store(name, emit=hf.every("30s"))
    else:
        table.store(name).final()
    driver = TestDriver(app)
    driver.pipe("games", [game("ann", 1, 1), game("ann", 1, 2), game("bob", 1, 1), game("bob", 1, 11)])
    assert waiting(driver, name) == 3
    driver.advance(stream="1h")
    assert waiting(driver, name) == 0


def waiting(driver: TestDriver, store: str) -> float | None:
    """The metric after the newest version."""
    newest = driver._driver.newest
    assert newest is not None
    count_commit(newest, None)
    found: float | None = REGISTRY.get_sample_value("holdfast_store_waiting", {"store": store})
    return found


@pytest.mark.parametrize("by_function", [False, True])
def test_a_session_that_is_part_of_another_one_is_deleted_before_that_one_is_sent(by_function: bool) -> None:
    app, games = one_task()
    sessions = games.group_by().window(hf.session("10s", grace="1m"))
    made = sessions.reduce(max, of="points") if by_function else sessions.count()
    made.store("runs", emit=hf.every("30s"))
    driver = TestDriver(app)

    def sent(second: float) -> list[tuple[Any, Any, bool]]:
        driver.pipe("games", game("ann", 1, second))
        return [(row["window_start"], row["window_end"], row["_deleted"]) for row in driver.output("runs")]

    assert sent(1) == sent(20) == []
    assert sent(11) == [(at(1), at(1), True), (at(20), at(20), True)], "at once, though they have never been sent"
    assert sent(40) == []
    assert sent(55) == [(at(1), at(20), False), (at(40), at(40), False)], "when the step has ended"


@pytest.mark.parametrize("emit", [None, "updates"])
@pytest.mark.parametrize("windows", [None, *KINDS.values()], ids=["none", *KINDS])
def test_first_and_last_values_of_one_time_are_those_of_one_record(windows: Any, emit: Any) -> None:
    app = hf.App("prices", settings=hf.Settings(partitions=1))
    schema = "item string, price bigint, channel string, at timestamp"
    grouped = app.stream(records(schema), key="item", timestamp="at", name="prices").group_by()
    picked = {f"{each.__name__}_{name}": each(name) for each in (hf.first, hf.last) for name in ("price", "channel")}
    if windows is None:
        grouped.aggregate(**picked).store("picked")
    else:
        grouped.window(windows).aggregate(**picked).store("picked", emit=emit)
    driver = TestDriver(app)
    for batch in ([(1, "z"), (9, "a")], [(9, "c"), (1, "b")], [(5, "y")]):
        driver.pipe("prices", [{"item": "a", "price": p, "channel": c, "at": START} for p, c in batch])
        driver.crash()
    found = {tuple(row[name] for name in picked) for row in driver.output("picked")[-1:]}
    assert found == {(1, "b", 9, "c")}


class Copy(hf.Processor):
    """The sessions of a player by their starts, as changes tell."""

    copied = hf.KeyValueStore("copied", value=dict[str, str])

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        sessions, start = self.copied.get(key, {}), str(event.window_start)
        sessions.pop(start, None)
        self.copied[key] = sessions if event._deleted else {**sessions, start: str(event.window_end)}


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("emit", [None, "updates", hf.every("30s")], ids=str)
def test_a_copy_by_key_and_start_has_all_sessions(emit: Any, by_function: bool) -> None:
    """Also of a stream of the changes, which is in the order of event times, and where records are behind the clock."""
    app, games = one_task()
    sessions = games.group_by().window(hf.session("10s", grace="10m"))
    made = sessions.reduce(max, of="points") if by_function else sessions.count()
    made.store("runs", emit=emit).to_stream().process(Copy)
    driver, random = TestDriver(app), Random(1)
    copy: dict[tuple[str, datetime], datetime] = {}
    for number in range(8):
        some = [game(random.choice(["ann", "bob"]), 1, 30 * number + random.randint(-60, 60)) for _ in range(4)]
        driver.pipe("games", [*some, game("zoe", 1, 30 * number + 100)])
        if number == 7:
            driver.advance(stream="1h")
        for row in driver.output("runs"):
            copy.pop((row["player"], row["window_start"]), None)
            if not row["_deleted"]:
                copy[row["player"], row["window_start"]] = row["window_end"]

    def moment(millis: int) -> datetime:
        return datetime.fromtimestamp(millis / 1000, UTC)

    runs = [run for run, _ in driver.store("runs").items()]
    assert copy == {(run.key, moment(run.start)): moment(run.end) for run in runs}
    copied = {(key, start): end for key, ends in driver.store("copied").items() for start, end in ends.items()}
    assert copied == {(run.key, str(moment(run.start))): str(moment(run.end)) for run in runs}


@pytest.mark.parametrize("emit", [None, "updates"])
def test_a_sliding_window_that_stays_the_same_is_not_sent_again(emit: Any) -> None:
    """Also the one right after a record of which another one has the same time, or that has one at its end."""
    app, games = one_task()
    games.group_by().window(hf.sliding("10s", grace="1h")).count().store("counts", emit=emit)
    driver, random, sent = TestDriver(app), Random(2), dict[Any, Any]()
    for second in [10, 15, 10, 25.001, 14, *(random.randint(0, 40) for _ in range(30))]:
        driver.pipe("games", game("ann", 1, second))
        rows = driver.output("counts")
        assert rows
        for row in rows:
            assert sent.get(row["window_start"], 0) < row["count"], "the same row was sent before"
            sent[row["window_start"]] = row["count"]
    assert sorted(sent.values()) == sorted(row["count"] for _, row in driver.store("counts").items())


def test_early_hopping_windows_begin_before_1970() -> None:
    """Where Kafka Streams has windows from 0 on."""
    app, games = one_task()
    games.group_by().window(hf.hopping("10s", every="5s")).count().store("counts")
    driver = TestDriver(app, wall=0)
    driver.pipe("games", {"player": "ann", "points": 1, "at": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)})
    assert [window.start for window, _ in driver.store("counts").items()] == [-5_000, 0]
