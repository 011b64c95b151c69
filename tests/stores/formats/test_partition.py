"""Partitions are the same as Spark's, for every key type and for several columns."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.errors import BadKey
from holdfast.stores.formats.partition import partition_of, partitions_of
from holdfast.stores.formats.types import Schema
from tests.stores.making import KEY_TYPES, VALUES, columns, keys, schema_of

# Results of Spark 4.2.0 for pmod(hash(...), 1000); never edited.
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC)
GOLDEN: list[tuple[Schema, tuple[Any, ...], int]] = [
    (Schema.of(k="string"), ("añ😀x",), 854),
    (Schema.of(k="string"), ("",), 372),
    (Schema.of(k="binary"), (b"\x00\xff\x80",), 364),
    (Schema.of(k="tinyint"), (-5,), 261),
    (Schema.of(k="smallint"), (-5,), 261),
    (Schema.of(k="int"), (5,), 466),
    (Schema.of(k="bigint"), (5,), 268),
    (Schema.of(k="float"), (-0.0,), 791),
    (Schema.of(k="float"), (math.nan,), 570),
    (Schema.of(k="double"), (1.5,), 749),
    (Schema.of(k="double"), (-math.inf,), 36),
    (Schema.of(k="boolean"), (True,), 43),
    (Schema.of(k="date"), (dt.date(1969, 12, 31),), 613),
    (Schema.of(k="timestamp"), (NOON,), 236),
    (Schema.of(k="timestamp_ntz"), (NOON.replace(tzinfo=None),), 236),
    (Schema.of(k="decimal(18,2)"), (Decimal("-0.01"),), 993),
    (Schema.of(k="decimal(19,2)"), (Decimal("-0.01"),), 324),
    (Schema.of(k="decimal(38,0)"), (Decimal(10**38 - 1),), 947),
    (Schema.of(k="decimal(38,0)"), (Decimal(-128),), 899),
    (Schema.of(a="string", b="bigint"), ("ann", 5), 569),
]


@pytest.mark.parametrize(("schema", "values", "partition"), GOLDEN)
def test_partitions_never_change(schema: Schema, values: tuple[Any, ...], partition: int) -> None:
    assert partition_of(schema, values, 1_000) == partition
    assert partitions_of(schema, columns(schema, [values]), 1_000).tolist() == [partition]


@given(keys(rows=0))
def test_columns_give_the_same_partitions_as_single_keys(made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    found = partitions_of(schema, columns(schema, rows), 1_000_003)
    assert found.tolist() == [partition_of(schema, row, 1_000_003) for row in rows]


def test_a_wrong_number_of_parts_is_rejected() -> None:
    with pytest.raises(BadKey, match="2 parts"):
        partition_of(Schema.of(k="int"), (1, 2), 4)
    with pytest.raises(BadKey, match="2 key columns"):
        partitions_of(Schema.of(k="int"), [pa.array([1]), pa.array([1])], 4)


def examples(type_: str, count: int) -> list[Any]:
    """Many different values of a type, the same in every run."""
    found: list[Any] = []

    @settings(max_examples=count)
    @given(VALUES[type_])
    def collect(value: Any) -> None:
        found.append(value)

    while len(found) < count:
        collect()
    return found[:count]


@pytest.mark.spark
@pytest.mark.parametrize(
    "types",
    [
        *([each] for each in KEY_TYPES),
        ["string", "bigint"],
        ["double", "binary", "date"],
        ["decimal(19,0)", "string", "decimal(18,2)"],
    ],
)
def test_partitions_are_sparks_own(spark: SparkSession, types: list[str]) -> None:
    schema = schema_of(types)
    table = pa.Table.from_arrays(
        columns(schema, list(zip(*(examples(each, 100) for each in types), strict=True))), schema=schema.arrow
    )
    frame = spark.createDataFrame(table)
    frame = frame.select(
        [F.col(field.name).cast(field.type) for field in schema.fields]
    )  # for timestamps without a time zone
    assert [field.dataType.simpleString() for field in frame.schema] == types
    keyed = frame.select("*", F.pmod(F.hash(*schema.names), F.lit(1_000)).alias("hashed"))
    placed = keyed.repartition(7, *schema.names).withColumn("placed", F.spark_partition_id()).toArrow()
    found = [placed[name].combine_chunks() for name in schema.names]
    assert partitions_of(schema, found, 1_000).tolist() == placed["hashed"].to_pylist()
    assert partitions_of(schema, found, 7).tolist() == placed["placed"].to_pylist()
    for row in zip(*(column.to_pylist() for column in found), placed["hashed"].to_pylist(), strict=True):
        assert partition_of(schema, row[:-1], 1_000) == row[-1]
