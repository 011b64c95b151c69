"""Grouping raw records in a task gives what Spark's aggregation gives, for any batches."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline import grouping
from holdfast.pipeline.aggregation_expressions import partials_of
from holdfast.pipeline.grouping import RejectFastPlan, can_group, grouped, timed
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
    bind("lightest", agg.min("y"), "double"),
    bind("heaviest", agg.max("y"), "double"),
    bind("earliest", agg.first("y"), "double", ["string"]),
    bind("latest", agg.last("x"), "bigint", ["string"]),
    bind("latest-weight", agg.last("y"), "double", ["string"]),
)
COLUMNS = TaskColumns(
    keys=("k0", "k1"),
    partials=tuple(f"p{n}" for n in range(19)),
    rows="p0",
    time="_time",
    dead=False,
    inputs=(None, "x1", "x2", "x3", "x2", "x2", "x2", "x3", "x3", "x3", "x2", "x3"),
    order=("t", "s0"),
)

Record = tuple[str | None, int, int | None, float | None, int, str | None]
"""Key (two columns), a whole number, a weight, an event time in microseconds, a source position."""

NAN = float("nan")
WHOLE = st.integers(-(2**62), 2**62)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ß"]),
        st.integers(0, 1),
        st.none() | WHOLE,
        st.none() | st.floats(-1e6, 1e6) | st.just(NAN),
        st.integers(-2, 2) | st.integers(-(10**12), 10**12),
        st.sampled_from([None, "", "p", "é", "\U0001f600", "\uffff"]),
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
            "t": pa.array([r[4] for r in records], pa.int64()),
            "s0": pa.array([r[5] for r in records], pa.string()),
            "x2": whole,
        }
    )


def rows(batches: Sequence[pa.RecordBatch], most_keys: int = 1_000) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = [row for b in grouped(COLUMNS, REDUCERS, timed(COLUMNS, batches), most_keys) for row in b.to_pylist()]
    by_key = {(row.pop("k0"), row.pop("k1")): row for row in found}
    assert len(by_key) == len(found), "a key came twice"
    return by_key


def _whole(number: int | None) -> tuple[bool, int]:
    return number is not None, number or 0


def _float(number: float | None) -> tuple[bool, bool, float]:
    """Null, then numbers, then NaN."""
    return number is not None, math.isnan(number or 0.0), 0.0 if math.isnan(number or 0.0) else number or 0.0


def _bytes(text: str | None) -> tuple[bool, bytes]:
    """Null, then texts in the order of their bytes."""
    return text is not None, (text or "").encode()


def _nan(number: float | None) -> Any:
    return None if number is None else pytest.approx(number, abs=0, rel=0, nan_ok=True)


def model(records: Sequence[Record]) -> dict[tuple[Any, ...], dict[str, Any]]:
    keys = dict.fromkeys((r[0], r[1]) for r in records)
    expected = {}
    for key in keys:
        mine = [r for r in records if (r[0], r[1]) == key]
        whole = [r[2] for r in mine if r[2] is not None]
        weights = [r[3] for r in mine if r[3] is not None]
        first = min(mine, key=lambda r: (r[4], _bytes(r[5]), _float(r[3])))
        last = max(mine, key=lambda r: (r[4], _bytes(r[5]), _whole(r[2]), _float(r[3])))
        expected[key] = {
            "p0": len(mine),
            "p1": len(whole),
            "p2": sum(whole) if whole else None,
            "p3": pytest.approx(sum(weights), rel=1e-9, abs=1e-6, nan_ok=True) if weights else None,
            "p4": pytest.approx(sum(float(x) for x in whole), rel=1e-9, abs=1e6) if whole else None,
            "p5": len(whole),
            "p6": min(whole, default=None),
            "p7": max(whole, default=None),
            "p8": _nan(min(weights, key=_float, default=None)),
            "p9": _nan(max(weights, key=_float, default=None)),
            **dict(zip(("p10", "p11", "p12"), (first[4], first[5], _nan(first[3])), strict=True)),
            **dict(zip(("p13", "p14", "p15"), (last[4], last[5], last[2]), strict=True)),
            **dict(zip(("p16", "p17", "p18"), (last[4], last[5], _nan(last[3])), strict=True)),
            "_time": max(r[4] for r in mine) // 1000,
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
        return rows([batch([("a", 0, number, None, 0, None) for number in numbers])])["a", 0]["p2"]

    assert total(largest, largest, -largest) == largest
    assert total(smallest) == total(smallest, -1, 1) == smallest
    for numbers in ((largest, 1), (smallest, -1)):
        with pytest.raises(RejectFastPlan, match="64 bits"):
            total(*numbers)


def test_more_keys_than_a_chunk_reject_the_fast_plan() -> None:
    many = [batch([(f"key-{n}", 0, 1, None, 0, None)]) for n in range(30)]
    assert len(rows(many, most_keys=30)) == 30
    with pytest.raises(RejectFastPlan, match="more than 29 keys"):
        rows(many, most_keys=29)


def test_types_that_arrow_groups_differently_are_left_to_spark() -> None:
    text, number = Schema((Field("k", "string"),)), Schema((Field("k", "double"),))
    assert can_group(text, REDUCERS)
    assert not can_group(number, REDUCERS)
    for aggregate, kind in [
        (agg.max("x"), "string"),
        (agg.sum("x"), "decimal(10,2)"),
        (agg.mean("x"), "decimal(10,2)"),
    ]:
        assert not can_group(text, [*REDUCERS, bind("other", aggregate, kind)])


def test_rows_are_counted_also_without_a_count() -> None:
    columns = replace(COLUMNS, partials=("p0",), rows="_rows", inputs=("x2",))
    records: list[Record] = [("a", 0, 4, None, 7_000, None), ("a", 0, None, None, 9_999, None)]
    (found,) = grouped(columns, [bind("low", agg.min("x"), "bigint")], timed(columns, [batch(records)]), 10)
    assert found.to_pylist() == [{"k0": "a", "k1": 0, "p0": 4, "_rows": 2, "_time": 9}]


def test_a_record_without_a_key_rejects_the_fast_plan() -> None:
    with pytest.raises(RejectFastPlan, match="can't be used"):
        rows([batch([("a", 0, 1, None, 0, None), (None, 0, 1, None, 0, None)])])


TYPES = {
    "tinyint": "CAST(id % 3 AS tinyint)",
    "int": "CAST(id % 3 AS int)",
    "bigint": "id % 3",
    "float": "CASE id % 3 WHEN 0 THEN float('NaN') ELSE id % 3 END",
    "double": "CASE id % 3 WHEN 0 THEN double('NaN') ELSE id % 3 END",
    "boolean": "id % 2 = 0",
    "string": "CASE id % 3 WHEN 0 THEN 'ä' WHEN 1 THEN 'z' ELSE '\U0001f600' END",
    "binary": "CAST(CASE id % 2 WHEN 0 THEN 'ä' ELSE 'z' END AS binary)",
    "date": "date_add(DATE'1969-12-30', CAST(id % 5 AS int))",
    "timestamp": "timestamp_micros(id % 5 - 2)",
    "timestamp_ntz": "CAST(timestamp_micros(id % 5 - 2) AS timestamp_ntz)",
    "decimal(20,2)": "CAST(id % 3 AS decimal(20,2)) / 7",
}


@pytest.mark.spark
@pytest.mark.parametrize("kind", TYPES)
def test_spark_finds_the_same_values_of_every_type(spark: SparkSession, kind: str) -> None:
    """With ties by time and by position: all values together decide then, nulls first."""
    functions = [agg.first("x"), agg.last("x"), agg.count("x"), agg.first("y"), agg.last("y")]
    functions += [f for f in (agg.min("x"), agg.max("x")) if can_group(Schema(()), [bind("v", f, kind)])]
    reducers = [bind(f"v{n}", function, kind, [kind]) for n, function in enumerate(functions)]
    inputs = tuple(str(function.column) for function in functions)
    partials = [
        partials_of(f, r, x, ("t", "s0"), ("x", "y")) for f, r, x in zip(functions, reducers, inputs, strict=True)
    ]
    names = tuple(f"p{n}" for n in range(sum(map(len, partials))))
    columns = TaskColumns(("k0",), names, "_rows", "_time", dead=False, inputs=inputs, order=("t", "s0"))
    number = f"CASE WHEN xxhash64(id) % 4 <> 0 THEN CAST({TYPES[kind]} AS {kind}) END"
    frame = spark.range(400).selectExpr(
        f"CAST({TYPES[kind]} AS {kind}) AS k0" if kind not in ("float", "double") else "id % 7 AS k0",
        "abs(xxhash64(id, 1)) % 3 AS t",
        f"{number.replace('id', '(id DIV 3)')} AS s0",
        f"{number} AS x",
        f"{number.replace('id', '(id DIV 5)')} AS y",
    )
    sql = [f"{text} AS p{n}" for n, text in enumerate(itertools.chain(*partials))]
    by_spark = frame.groupBy("k0").agg(*map(F.expr, [*sql, "count(1) AS _rows", "max(t) DIV 1000 AS _time"])).toArrow()
    found = pa.Table.from_batches(grouped(columns, reducers, timed(columns, frame.toArrow().to_batches(20)), 1_000))
    same = {name: by_spark[name].type for name in by_spark.column_names}
    ours = pa.table({name: found[name].cast(type_) for name, type_ in same.items()})
    assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, by_spark.to_pylist()))
    there = {repr((each["k0"], each["x"], each["y"])) for each in frame.toArrow().to_pylist()}
    for x, y in (("p2", "p9"), ("p5", "p12")):
        assert {repr((row["k0"], row[x], row[y])) for row in ours.to_pylist()} <= there, "values of two records"
