"""Sketches: estimates within their error, for any batches; and those that Spark makes are read here."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from datasketches import frequent_strings_sketch, hll_sketch, kll_doubles_sketch, tgt_hll_type
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.stores.formats.rows import DamagedRow
from holdfast.stores.formats.types import Schema
from holdfast.stores.schema.row_history import unreadable
from holdfast.stores.spec import StoreSpec
from holdfast.topology.aggregates import Aggregate
from holdfast.topology.reducers import Reducer, bind
from holdfast.topology.row_merging import merged as merged_rows
from holdfast.topology.sketches import HLL_SIZE, KLL_SIZE
from tests import apps
from tests.apps import entries_of, game, get, write
from tests.pipeline.tables import spec_with

DISTINCT, QUANTILES, FREQUENT = (
    bind("x", aggregate, kind)
    for aggregate, kind in (
        (hf.approx_count_distinct("x"), "bigint"),
        (hf.approx_quantile("x", [0.05, 0.5, 0.99]), "double"),
        (hf.frequent("x", 3), "string"),
    )
)


def sketch(reducer: Reducer, values: list[int]) -> bytes:
    """The sketch that Spark makes of a batch."""
    made: Any
    if reducer is DISTINCT:
        made = hll_sketch(HLL_SIZE, tgt_hll_type.HLL_8)
    else:
        made = kll_doubles_sketch(KLL_SIZE) if reducer is QUANTILES else frequent_strings_sketch(9)
    for value in values:
        made.update(str(value) if reducer is FREQUENT else value)
    stored = made.serialize_updatable() if reducer is DISTINCT else made.serialize()
    assert isinstance(stored, bytes)
    return stored


def result_of(reducer: Reducer, batches: list[list[int]]) -> Any:
    """One key's result after these batches."""
    state = [pa.nulls(1, field.field_type.arrow) for field in reducer.fields]
    for batch in batches:
        state = reducer.merge(state, [pa.array([sketch(reducer, batch)], pa.binary())])
    return state[0][0].as_py()


def cut(values: list[int], chance: random.Random) -> list[list[int]]:
    """The values in batches of random sizes, some of them empty."""
    ends = sorted(chance.choices(range(len(values) + 1), k=6))
    return [values[start:stop] for start, stop in zip([0, *ends], [*ends, len(values)], strict=True)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 8_000), st.randoms(use_true_random=False))
def test_a_distinct_count_is_near_for_any_batches(different: int, chance: random.Random) -> None:
    values = [number * 7919 for number in range(different)] + [number * 7919 for number in range(different // 2)]
    found = result_of(DISTINCT, cut(values, chance))
    assert abs(found - different) <= 0.08 * different, "five standard errors"


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 8_000), st.randoms(use_true_random=False))
def test_the_ranks_of_quantiles_are_near_for_any_batches(number: int, chance: random.Random) -> None:
    values = list(range(number))
    chance.shuffle(values)
    found = json.loads(result_of(QUANTILES, cut(values, chance)))
    for value, rank in zip(found, (0.05, 0.5, 0.99), strict=True):
        assert abs(value / number - rank) <= 0.02 + 1 / number


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=2_000), st.randoms(use_true_random=False))
def test_frequent_values_are_exact_where_they_are_few(values: list[int], chance: random.Random) -> None:
    best = sorted(Counter(map(str, values)).items(), key=lambda each: (-each[1], each[0]))[:3]
    found = json.loads(result_of(FREQUENT, cut(values, chance)))
    assert found == [{"value": value, "count": count} for value, count in best]


def test_frequent_values_are_found_among_very_many() -> None:
    chance = random.Random(7)
    values = [1] * 6_000 + [2] * 4_000 + [3] * 3_000 + [chance.randrange(10, 10**9) for _ in range(30_000)]
    chance.shuffle(values)
    found = json.loads(result_of(FREQUENT, cut(values, chance)))
    assert [each["value"] for each in found] == ["1", "2", "3"]
    for each, exact in zip(found, (6_000, 4_000, 3_000), strict=True):
        assert abs(each["count"] - exact) <= 0.007 * len(values)


def test_rows_of_sessions_are_merged_with_each_other_and_without_a_sketch() -> None:
    def row(values: list[int] | None) -> pa.Table:
        stored = None if values is None else sketch(DISTINCT, values)
        return pa.table({"x": pa.array([None], pa.int64()), "x#hll_bigint": pa.array([stored], pa.binary())})

    assert merged_rows([DISTINCT], row([1, 2]), row([2, 3]))["x"].to_pylist() == [3]
    assert merged_rows([DISTINCT], row(None), row([2, 3]))["x"].to_pylist() == [2]
    assert merged_rows([DISTINCT], row(None), row(None))["x"].to_pylist() == [None]


@pytest.mark.parametrize("reducer", [DISTINCT, QUANTILES, FREQUENT], ids=lambda each: each.function.value)
@pytest.mark.parametrize("stored", [b"", b"\x01", b"\xff" * 40])
def test_damaged_sketches_are_an_error_with_the_row(reducer: Reducer, stored: bytes) -> None:
    good = sketch(reducer, [1])
    with pytest.raises(DamagedRow, match="can't be read") as raised:
        reducer.merge(
            [pa.nulls(2, reducer.fields[0].field_type.arrow), pa.array([good, stored], pa.binary())],
            [pa.array([good, good], pa.binary())],
        )
    assert raised.value.row == 1


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TopologyError, match="a rank is a number from 0 to 1"):
        hf.approx_quantile("x", 99)
    with pytest.raises(TopologyError, match="a rank is a number from 0 to 1"):
        hf.approx_quantile("x", [])
    with pytest.raises(TopologyError, match="n is a whole number from 1 to 1000"):
        hf.frequent("x", 0)
    with pytest.raises(TopologyError, match="needs numbers"):
        bind("q", hf.approx_quantile("x", 0.5), "string")
    with pytest.raises(TopologyError, match="has no fixed text"):
        bind("f", hf.frequent("x", 3), "timestamp")


def test_a_sketch_of_other_values_can_not_go_on_with_the_stored_one() -> None:
    def store(aggregate: Aggregate, kind: str) -> StoreSpec:
        spec = spec_with(Schema(bind("x", aggregate, kind).fields))
        return msgspec.structs.replace(spec, aggregates=(("x", aggregate.meaning),))

    counted = hf.approx_count_distinct("x")
    assert unreadable(store(counted, "int"), store(counted, "bigint")) == [], "both are whole numbers in the sketch"
    (line,) = unreadable(store(counted, "int"), store(counted, "string"))
    assert "has x in the log without x#hll_string" in line
    (line,) = unreadable(store(hf.approx_quantile("x", 0.5), "int"), store(hf.approx_quantile("x", 0.9), "int"))
    assert "has x as approx_quantile(x, 0.5) in the log and as approx_quantile(x, 0.9)" in line


def sketched(spark: SparkSession, folder: Path) -> hf.App:
    app = hf.App("sketched", settings=apps.settings(folder), spark=spark)
    stream = app.stream(apps.read(spark, folder / "input"), key="player", timestamp="at")
    different: dict[str, Aggregate] = {
        name: hf.approx_count_distinct(sql)
        for name, sql in {
            "ints": "points",
            "texts": "CASE WHEN points = 0 THEN '' ELSE CAST(points AS string) END",
            "bytes": "encode(CAST(points % 10 AS string), 'utf-8')",
            "doubles": "CASE WHEN points = 0 THEN -0.0D WHEN points = 1 THEN 0.0D ELSE double(points) END",
            "dates": "date_add(DATE'2026-01-01', CAST(points AS int))",
            "times": "timestamp_seconds(points)",
            "flags": "points > 5",
            "decimals": "CAST(points AS decimal(12,2))",
        }.items()
    }
    most = {"few": hf.frequent("points % 3", 2), "nothing": hf.frequent("nullif(points, points)", 2)}
    middle = {"middle": hf.approx_quantile("points", 0.5), "both": hf.approx_quantile("points", [0, 1])}
    none = {"none": hf.approx_quantile("double(nullif(points, points))", 0.5)}
    stream.group_by().aggregate(**different, **most, **middle, **none).store("table")
    windows = stream.group_by().window(hf.session("1m"))
    windows.aggregate(ints=hf.approx_count_distinct("points"), half=hf.approx_quantile("points", 0.5)).store("sessions")
    return app


EXPECTED = {
    **dict.fromkeys(("ints", "texts", "dates", "times", "decimals"), 20),
    "bytes": 10,
    "doubles": 19,
    "flags": 2,
    "few": '[{"value":"0","count":14},{"value":"1","count":14}]',
    "nothing": "[]",
    "middle": 9.0,
    "both": "[0.0,19.0]",
    "none": None,
}


@pytest.mark.spark
def test_sketches_that_spark_makes_are_merged_and_restored(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 1, [game("ann", points) for points in range(20)])
    with sketched(spark, tmp_path) as app:
        app.process_all_available()
    shutil.rmtree(tmp_path / "base" / "sketched" / "state")
    write(tmp_path / "input", 2, [game("ann", points) for points in range(20)])
    write(tmp_path / "input", 3, [{**game("bob", 1), "player": None}])  # a dead letter: the third plan
    with sketched(spark, tmp_path) as app:
        app.process_all_available()
        assert entries_of(app, "table") == {"ann": EXPECTED}
        _, sessions = get(app, "/v1/stores/sessions/sessions/ann")
        assert [each["value"] for each in sessions["sessions"]] == [{"ints": 20, "half": 9.0}]
