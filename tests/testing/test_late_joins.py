"""Records that come too late for a join of two streams: counted, and a stream of their own."""

from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.testing import TestDriver, records
from tests.apps import NOON as START

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
    assert {(row["id"], row["n"], row["r_n"]) for row in driver.output("pairs~late")} == {
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
