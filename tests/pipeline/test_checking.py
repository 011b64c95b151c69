"""Steps that fail for some records: each kind of function and node of a plan, on real Spark."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import PandasUDFType, pandas_udf

from holdfast.pipeline.checking import free, not_row_by_row
from holdfast.pipeline.failing import LETTER, advice, without_failed
from holdfast.pipeline.record_ids import RECORD_ID, hide_ids, show_ids
from holdfast.topology.steps import Computed

pytestmark = pytest.mark.spark

Step = Callable[[DataFrame], DataFrame]
TEXTS = ["1", "x", "2", "y", "3"]
SCHEMA = "text string, n int"


def number(column: str | Column) -> Column:
    def as_number(value: str) -> int:
        return int(value)

    return F.udf(as_number, "int")(column)


def with_broadcast(df: DataFrame) -> DataFrame:
    base = df.sparkSession.sparkContext.broadcast(10)

    def as_number(value: str) -> int:
        return int(value, base.value)

    return df.withColumn("n", F.udf(as_number, "int")("text"))


def with_broadcast_frames(df: DataFrame) -> DataFrame:
    names = df.sparkSession.sparkContext.broadcast(["text"])

    def as_numbers(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield frame.assign(n=frame[names.value[0]].astype("int32"))

    return df.mapInPandas(as_numbers, SCHEMA)


def large(column: str) -> Column:
    """A function that Spark broadcasts, since it is large."""
    much = random.Random(1).randbytes(1 << 21)

    def as_number(value: str) -> int:
        return int(value) if much else 0

    return F.udf(as_number, "int")(column)


def of_series(column: str) -> Column:
    def as_numbers(values: Any) -> Any:
        return values.astype("int64")

    numbers: Column = pandas_udf(as_numbers, "int", PandasUDFType.SCALAR)(column)
    return numbers


def of_series_iterator(column: str) -> Column:
    def as_numbers(batches: Iterator[Any]) -> Iterator[Any]:
        for values in batches:
            yield values.astype("int64")

    numbers: Column = pandas_udf(as_numbers, "int", PandasUDFType.SCALAR_ITER)(column)
    return numbers


def of_frames(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(n=frame["text"].astype("int32"))


def of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column("n", batch["text"].cast(pa.int32()))


def in_any_order(df: DataFrame) -> DataFrame:
    """Each time it is computed, the rows are in another order, as after a repartition on a cluster."""
    order = F.udf(lambda: random.random(), "double").asNondeterministic()()  # noqa: PLW0108 (else its state is pickled)
    return df.withColumn("order", order).sort("order").drop("order")


def several(df: DataFrame) -> DataFrame:
    """Calls of which one fails for x and another one for y."""
    numbered = df.where("text <> 'z'").withColumn("n", F.expr("IF(text = 'y', 0, CAST(text AS int))"))
    return numbered.withColumn("m", number(F.concat("text", F.lit("0"))) / F.col("n")).drop("m")


RAISES = "raised ValueError: invalid literal for int() with base 10: 'x'"
CAST = 'failed: [CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT"'
STEPS: dict[str, tuple[Step, str]] = {
    "cast": (lambda df: df.withColumn("n", F.expr("CAST(text AS int)")), CAST),
    "index": (lambda df: df.selectExpr("text", "CAST(array('1', '2', '3')[CAST(text AS int) - 1] AS int) AS n"), CAST),
    "filter": (lambda df: df.where("CAST(text AS int) > 0").withColumn("n", F.expr("CAST(text AS int)")), CAST),
    "udf": (lambda df: df.withColumn("n", number("text")), RAISES),
    "udf in a udf": (lambda df: df.withColumn("n", number(number("text").cast("string"))), RAISES),
    "cast in a udf": (lambda df: df.withColumn("n", number(F.expr("CAST(CAST(text AS int) AS string)"))), CAST),
    "cast in a named argument": (lambda df: df.selectExpr("text", "same(value => CAST(text AS int)) AS n"), CAST),
    "cast in a udf in a udf": (lambda df: df.withColumn("n", number(number(F.expr("CAST(text AS int)")))), CAST),
    "udf in a filter": (lambda df: df.where(number("text") > 0).withColumn("n", number("text")), RAISES),
    "udf in items": (lambda df: df.select("text", F.explode(F.array(number("text"))).alias("n")), RAISES),
    "udf in SQL": (lambda df: df.selectExpr("text", "number_of(text) + 0 AS n"), RAISES),
    "udf with a broadcast variable": (with_broadcast, RAISES),
    "large udf": (lambda df: df.withColumn("n", large("text")), RAISES),
    "pandas": (lambda df: df.withColumn("n", of_series("text")), RAISES),
    "pandas iterator": (lambda df: df.withColumn("n", of_series_iterator("text")), RAISES),
    "several": (several, CAST),
    "mapInPandas": (lambda df: df.mapInPandas(of_frames, SCHEMA), f"failed: of_frames() {RAISES}"),
    "mapInPandas after a repartition": (lambda df: df.repartition(4).mapInPandas(of_frames, SCHEMA), RAISES),
    "mapInPandas in any order": (lambda df: in_any_order(df).mapInPandas(of_frames, SCHEMA), RAISES),
    "mapInPandas with a broadcast variable": (with_broadcast_frames, f"failed: as_numbers() {RAISES}"),
    "mapInArrow": (
        lambda df: df.mapInArrow(of_batches, SCHEMA),
        "failed: of_batches() raised pyarrow.lib.ArrowInvalid",
    ),
}


@pytest.fixture(scope="module")
def texts(spark: SparkSession) -> DataFrame:
    spark.udf.register("number_of", int, "int")
    spark.udf.register("same", lambda value: value, "int")
    table = pa.table({"text": TEXTS, RECORD_ID: pa.array(range(len(TEXTS)), pa.int64())})
    return hide_ids(spark.createDataFrame(table).repartition(1).sortWithinPartitions(RECORD_ID))


# Each repeats parts of two others.
COMBINED = (
    "index",
    "udf in a udf",
    "cast in a named argument",
    "cast in a udf in a udf",
    "udf in a filter",
    "large udf",
    "pandas iterator",
    "mapInPandas after a repartition",
    "mapInPandas with a broadcast variable",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in COMBINED else name for name in STEPS]
)
def test_failing_records_are_set_apart_with_their_errors(texts: DataFrame, name: str) -> None:
    step, reason = STEPS[name]
    kept: list[DataFrame] = []
    before = kept_by(texts.sparkSession)
    good, failed = without_failed(texts, [Computed(step, "transform()", "dead_letter")], kept)
    assert sorted(row["n"] for row in good.collect()) == [1, 2, 3]
    found = {row[RECORD_ID]: json.loads(row[LETTER]) for each in failed for row in each.letters.collect()}
    assert {n: letter["record"]["text"] for n, letter in found.items()} == {1: "x", 3: "y"}
    assert reason in found[1]["reason"]
    assert found[1]["reason"].startswith("transform() failed: ")
    assert "\n" not in found[1]["reason"] and "SQLSTATE" not in found[1]["reason"]
    if not name.startswith("map"):
        assert show_ids(good) is not None, "later steps can still trace a record"
    assert len(kept_by(texts.sparkSession) - before) == len(kept)
    free(kept)
    assert not kept_by(texts.sparkSession) - before, "Spark keeps no rows of the check"


def kept_by(spark: SparkSession) -> set[int]:
    """The numbers of the RDDs whose rows Spark keeps."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


def test_a_step_that_cannot_be_checked_raises_its_own_error(texts: DataFrame) -> None:
    too_few = pandas_udf(lambda values: values[1:], "string", PandasUDFType.SCALAR)
    steps = [
        Computed(lambda df: df.withColumn("n", F.expr("CAST(text AS int)")), "with_column()", "dead_letter"),
        Computed(lambda df: df.withColumn("m", number(too_few("text"))), "transform()", "dead_letter"),
    ]
    good, failed = without_failed(texts, steps, [])
    with pytest.raises(PythonException, match="MISMATCH"):
        good.collect()
    assert sum(each.letters.count() for each in failed) == 2, "of the step before it"
    assert advice(texts, steps).startswith(" transform() can't be checked record by record")
    assert advice(texts, steps[:1]) == ""


def test_what_is_not_computed_row_by_row_is_named(texts: DataFrame) -> None:
    assert not_row_by_row(texts, several(texts)) is None
    assert not_row_by_row(texts, texts.groupBy("text").count()) == "Aggregate"
    assert not_row_by_row(texts, texts.join(texts.limit(1), "text")) == "several inputs"
