"""Records that come too late for a join of two streams: counted, and a stream of their own."""

from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.testing import TestDriver, records
from tests.apps import NOON as START
from tests.testing.test_shared_stores import started_after

COLUMNS = "id string, n bigint, at timestamp"


def record(id: str, n: int, second: int) -> dict[str, Any]:
    return {"id": id, "n": n, "at": START + timedelta(seconds=second)}


def test_late_records_of_both_sides_are_rows_without_a_match() -> None:
    app = hf.App("late")
    left, right = (app.stream(records(COLUMNS), key="id", timestamp="at", name=name) for name in ("one", "other"))
    pairs = left.join(right, within=hf.join_window("10s", grace="5s"), how="outer", name="pairs", prefix="r_")
    pairs.late.to_stream().group_by().count().store("late")
    driver = TestDriver(app)
    driver.pipe_all({"one": [record("a", 1, 100)], "other": [record("b", 2, 100)]})
    driver.pipe_all(
        {"one": [record("a", 3, 84), record("a", 4, 85)], "other": [record("a", 5, 80), record("b", 6, 99)]}
    )
    assert {(row["id"], row["n"], row["r_n"]) for row in driver.output("pairs/late")} == {
        ("a", 3, None),
        ("a", None, 5),
    }
    assert driver.counts["late/pairs-left"] == 1 and driver.counts["late/pairs-right"] == 1
    assert driver.store("late").items() == [("a", {"count": 2})]


def test_a_join_with_a_table_has_no_late_records() -> None:
    app = hf.App("never-late")
    stream = app.stream(records(COLUMNS), key="id", timestamp="at", name="one")
    joined = stream.join(stream.group_by().count().store("counts"), name="joined")
    with pytest.raises(TopologyError, match=r"no record of the join 'joined' is late"):
        _ = joined.late


def test_an_inner_join_that_becomes_a_left_one_sends_no_older_record_without_a_match() -> None:
    """Those that were stored before the change are joined; those that come after it come out without a match."""

    def release(how: Any) -> hf.App:
        app = hf.App("growing", settings=hf.Settings(partitions=1))
        left, right = (app.stream(records(COLUMNS), key="id", timestamp="at", name=name) for name in ("one", "other"))
        left.join(right, within=hf.join_window("10s", grace="5s"), how=how, name="pairs", prefix="r_")
        return app

    def rows(driver: TestDriver) -> list[tuple[Any, ...]]:
        return [(row["id"], row["n"], row["r_n"]) for row in driver.output("pairs")]

    driver = TestDriver(release("inner"))
    driver.pipe_all({"one": [record("a", 1, 0), record("b", 2, 0)], "other": [record("z", 0, 0)]})
    assert rows(driver) == []
    driver = started_after(driver, release("left"))
    driver.pipe_all({"one": [record("c", 3, 2)], "other": [record("a", 4, 3)]})
    assert rows(driver) == [("a", 1, 4)], "stored before the change, and joined after it"
    driver.pipe_all({"one": [record("y", 9, 100)], "other": [record("z", 9, 100)]})
    driver.crash().advance("1m")
    assert rows(driver) == [("c", 3, None)], "b was stored before the change"


def windowed(windows: Any, *, by_function: bool = False) -> tuple[hf.App, hf.Stream, hf.Stream]:
    """An app with a stream, and with the final rows of its windows as a stream to which a step was applied."""
    app = hf.App("final")
    stream = app.stream(records(COLUMNS), key="id", timestamp="at", name="main")
    grouped = stream.group_by().window(windows)
    final = grouped.reduce(max, of="n").store("w").final() if by_function else grouped.count().store("w").final()
    return app, stream, final.to_stream().drop("window_start")


@pytest.mark.parametrize("by_function", [False, True])
def test_a_join_says_when_final_rows_will_be_late(by_function: bool, caplog: pytest.LogCaptureFixture) -> None:
    _, stream, final = windowed(hf.tumbling("60s", grace="5s"), by_function=by_function)
    with pytest.raises(TopologyError, match=r"come 5s1ms to 1m5s after.*up to 4s after their times: all of them are"):
        final.join(stream, within=hf.join_window("2s", grace="2s"), name="none", prefix="r_")
    with pytest.raises(TopologyError, match=r"up to 3s after their times: all of them are late"):
        stream.join(final, within=hf.join_window(before="3s", after="1h"), name="none", prefix="r_")
    final.join(stream, within=hf.join_window("60s", grace="1h5s"), name="enough", prefix="r_")
    assert not caplog.records
    final.join(stream, within=hf.join_window("60s", grace="5s"), name="just", prefix="r_")
    (said,) = caplog.messages
    assert (
        "rows of 'w" in said
        and "a batch may span no time at all" in said
        and "a grace of 1m5s and the longest time" in said
    )
    caplog.clear()
    stream.key_by("id").join(final.key_by("id"), within=hf.join_window("60s", grace="35s"), name="more", prefix="r_")
    (said,) = caplog.messages
    assert "for none to be late, a batch may span 30s." in said


@pytest.mark.parametrize("windows", [hf.tumbling("10s"), hf.sliding("9999ms"), hf.session("9999ms")], ids=str)
@pytest.mark.parametrize("span", [5, 20])
def test_final_rows_are_joined_if_batches_span_what_was_said(windows: Any, span: int) -> None:
    app, stream, final = windowed(windows)
    joined = final.join(stream, within=hf.join_window("10s", grace="5s"), name="both", prefix="r_")
    joined.late.to_stream().group_by().count().store("late")
    driver = TestDriver(app)
    for first in range(0, 100, span):
        # The records of a key are so far apart that each is a session.
        driver.pipe("main", [record(f"{each % 11}", 1, each) for each in range(first, first + span)])
    assert driver.output("both")
    assert bool(driver.store("late").items()) == (span > 5)
