"""Grouping raw records in a task gives what Spark's aggregation gives, for any batches."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline import grouping
from holdfast.pipeline.grouping import RejectFastPlan, can_group, grouped
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.stores.formats.types import Field, Schema
from holdfast.topology import aggregates as agg
from holdfast.topology.reducers import bind

REDUCERS = (
    bind("n", agg.count(), None),
    bind("seen", agg.count("x"), "bigint"),
    bind("total", agg.sum("x"), "bigint"),
    bind("weight", agg.sum("y"), "double"),
    bind("average", agg.mean("x"), "bigint"),
    bind("low", agg.min("x"), "bigint"),
    bind("high", agg.max("x"), "bigint"),
)
COLUMNS = TaskColumns(
    keys=("k0", "k1"),
    partials=tuple(f"p{n}" for n in range(8)),
    rows="p0",
    time="_time",
    dead=False,
    inputs=(None, "x1", "x2", "x3", "x4", "x5", "x6"),
)

Record = tuple[str | None, int, int | None, float | None, int]
"""Key (two columns), a whole number, a weight, an event time."""

WHOLE = st.integers(-(2**62), 2**62)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ß", None]),
        st.integers(0, 1),
        st.none() | WHOLE,
        st.none() | st.floats(-1e6, 1e6),
        st.integers(0, 10**12),
    ),
    max_size=40,
)


def batch(records: Sequence[Record]) -> pa.RecordBatch:
    whole = pa.array([r[2] for r in records], pa.int64())
    return pa.RecordBatch.from_pydict(
        {
            "k0": pa.array([r[0] for r in records], pa.string()),
            "k1": pa.array([r[1] for r in records], pa.int64()),
            "x1": pa.array([None if r[2] is None else True for r in records], pa.bool_()),
            "x3": pa.array([r[3] for r in records], pa.float64()),
            "_time": pa.array([r[4] for r in records], pa.int64()),
            **dict.fromkeys(("x2", "x4", "x5", "x6"), whole),
        }
    )


def rows(batches: Sequence[pa.RecordBatch], most_keys: int = 1_000) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = [row for b in grouped(COLUMNS, REDUCERS, batches, most_keys) for row in b.to_pylist()]
    by_key = {(row.pop("k0"), row.pop("k1")): row for row in found}
    assert len(by_key) == len(found), "a key came twice"
    return by_key


def model(records: Sequence[Record]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keys = dict.fromkeys((r[0], r[1]) for r in records)
    expected = {}
    for key in keys:
        mine = [r for r in records if (r[0], r[1]) == key]
        whole = [r[2] for r in mine if r[2] is not None]
        weights = [r[3] for r in mine if r[3] is not None]
        expected[key] = {
            "p0": len(mine),
            "p1": len(whole),
            "p2": sum(whole) if whole else None,
            "p3": pytest.approx(sum(weights), rel=1e-9, abs=1e-6) if weights else None,
            "p4": pytest.approx(sum(float(x) for x in whole), rel=1e-9, abs=1e6) if whole else None,
            "p5": len(whole),
            "p6": min(whole, default=None),
            "p7": max(whole, default=None),
            "_time": max(r[4] for r in mine),
        }
    return expected


@given(RECORDS, st.lists(st.integers(0, 40), max_size=4))
def test_groups_equal_the_model(records: list[Record], cuts: list[int]) -> None:
    bounds = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    pieces = [batch(records[a:b]) for a, b in itertools.pairwise(bounds)]
    try:
        expected = model(records)
        found = rows(pieces)
    except RejectFastPlan:
        assert any(abs(row["p2"] or 0) >= 2**63 - 1 for row in expected.values())
        return
    assert found == expected


@given(RECORDS)
def test_groups_of_pieces_are_grouped_again(records: list[Record]) -> None:
    small = [(*record[:2], None if record[2] is None else record[2] % 1000, *record[3:]) for record in records]
    one_by_one = [batch([record]) for record in small]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "PIECE_ROWS", 3)
        # Floats are added in another order, so both are compared with the model, which has a tolerance.
        assert rows(one_by_one) == model(small)
        assert rows([batch(small)] if small else []) == model(small)


def test_a_sum_is_exact_in_64_bits_and_a_larger_one_rejects_the_fast_plan() -> None:
    largest, smallest = 2**63 - 1, -(2**63)

    def total(*numbers: int) -> Any:
        return rows([batch([("a", 0, number, None, 0) for number in numbers])])["a", 0]["p2"]

    assert total(largest, largest, -largest) == largest
    assert total(smallest) == total(smallest, -1, 1) == smallest
    for numbers in ((largest, 1), (smallest, -1)):
        with pytest.raises(RejectFastPlan, match="64 bits"):
            total(*numbers)


def test_more_keys_than_a_chunk_reject_the_fast_plan() -> None:
    many = [batch([(f"key-{n}", 0, 1, None, 0)]) for n in range(30)]
    assert len(rows(many, most_keys=30)) == 30
    with pytest.raises(RejectFastPlan, match="more than 29 keys"):
        rows(many, most_keys=29)


def test_types_that_arrow_groups_differently_are_left_to_spark() -> None:
    text, number = Schema((Field("k", "string"),)), Schema((Field("k", "double"),))
    assert can_group(text, REDUCERS)
    assert not can_group(number, REDUCERS)
    for aggregate, kind in [
        (agg.min("x"), "double"),
        (agg.max("x"), "string"),
        (agg.sum("x"), "decimal(10,2)"),
        (agg.mean("x"), "decimal(10,2)"),
        (agg.first("x"), "bigint"),
    ]:
        assert not can_group(text, [*REDUCERS, bind("other", aggregate, kind)])


def test_rows_are_counted_also_without_a_count() -> None:
    columns = replace(COLUMNS, partials=("p0",), rows="_rows", inputs=("x5",))
    records: list[Record] = [("a", 0, 4, None, 7), ("a", 0, None, None, 9)]
    (found,) = grouped(columns, [bind("low", agg.min("x"), "bigint")], [batch(records)], 10)
    assert found.to_pylist() == [{"k0": "a", "k1": 0, "p0": 4, "_rows": 2, "_time": 9}]
