"""Windows on the test driver: late records as a stream, one result per record, and what waits to be sent."""

from typing import Any

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
