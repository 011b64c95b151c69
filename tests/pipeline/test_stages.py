"""Which sub-topologies share a job, and how a Spark task hands rows to its members."""

import pyarrow as pa
import pytest

from holdfast.pipeline.stage_work import MEMBER, WrongOrder, _InOrder
from holdfast.pipeline.stages import StagePlace, stages_of

LONG, TEXT = ("bigint", 2), ("string", 2)


def test_sub_topologies_by_keys_of_the_same_types_share_a_job() -> None:
    assert stages_of({"a": StagePlace(LONG), "b": StagePlace(TEXT), "c": StagePlace(LONG)}) == [("a", "c"), ("b",)]


def test_one_that_cannot_share_runs_alone() -> None:
    assert stages_of({"a": StagePlace(None), "b": StagePlace(None), "c": StagePlace(LONG)}) == [("a",), ("b",), ("c",)]
    after_global = StagePlace(LONG, {"global"}, {"global"})
    assert stages_of({"global": StagePlace(None), "c": after_global}) == [("global",), ("c",)]


def test_a_lookup_is_in_the_stage_of_its_table_and_a_re_keyed_output_in_a_later_one() -> None:
    places = {
        "table": StagePlace(LONG),
        "join": StagePlace(LONG, {"table"}, {"table"}),
        "same-key": StagePlace(LONG, {"join"}, {"join"}),
        "re-keyed": StagePlace(LONG, {"join"}),
        "other": StagePlace(LONG),
    }
    assert stages_of(places) == [("table", "join", "same-key", "other"), ("re-keyed",)]


def test_stages_never_wait_for_each_other() -> None:
    places = {
        "a": StagePlace(LONG),
        "b": StagePlace(TEXT, {"a"}, {"a"}),  # of another type: not the same partition
        "c": StagePlace(LONG, {"b"}, {"b"}),
        "d": StagePlace(LONG, {"a", "b"}, {"a"}),
    }
    assert stages_of(places) == [("a",), ("b",), ("c", "d")]


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    numbers, values = [number for number, _ in rows], [value for _, value in rows]
    return pa.RecordBatch.from_pydict({MEMBER: pa.array(numbers, pa.int32()), "c0": values, "c1": ["x"] * len(rows)})


def test_each_member_gets_its_rows_with_its_own_names() -> None:
    rows = _InOrder(iter([batch((0, 1), (0, 2)), batch((0, 3), (2, 4), (3, 5)), batch(), batch((3, 6))]))
    found = [[row for each in rows.of(n, (("c0", "own"),)) for row in each.to_pylist()] for n in range(5)]
    assert found == [[{"own": 1}, {"own": 2}, {"own": 3}], [], [{"own": 4}], [{"own": 5}, {"own": 6}], []]


def test_rows_in_another_order_are_refused() -> None:
    for batches in ([batch((1, 1)), batch((0, 2))], [batch((1, 1), (0, 2))]):
        rows = _InOrder(iter(batches))
        with pytest.raises(WrongOrder, match="A row of member 0 came among or after the rows of member 1"):
            list(rows.of(1, (("c0", "own"),)))
