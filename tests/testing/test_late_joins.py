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
