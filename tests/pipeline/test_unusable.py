"""The conditions of unusable records, on real Spark."""

import datetime as dt

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline.unusable import cases_of, dead_letter, is_unusable
from holdfast.stores.formats.types import Field

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]

FIELDS = [Field("player", "string")]


def generated(frame: DataFrame) -> str:
    """The code that Spark generates for a frame, without the comments."""
    session = frame.sparkSession
    assert session._jvm is not None
    code = session._jvm.org.apache.spark.sql.execution.debug.package.codegenString
    lines = str(code(frame._jdf.queryExecution().executedPlan())).splitlines()
    return "\n".join(line for line in lines if line.startswith("/* ") and "*/" in line)


def test_a_later_wall_clock_needs_no_new_code(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS string) AS player", "timestamp_seconds(id) AS at")
    for column in (is_unusable, dead_letter):
        codes = [generated(frame.select(column(cases_of(FIELDS, "at", wall, 3_600_000)))) for wall in (1_000, 2_000)]
        assert len(codes[0]) > 1_000
        assert codes[0] == codes[1]


def test_a_record_may_be_max_ahead_of_the_wall_clock_and_no_more(spark: SparkSession) -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    wall = int(start.timestamp() * 1000)
    times = [start + dt.timedelta(milliseconds=n) for n in (-1, 0, 10, 11)]
    frame = spark.createDataFrame([("a", time) for time in [*times, None]], "player string, at timestamp")
    found = frame.select(is_unusable(cases_of(FIELDS, "at", wall, 10)).alias("bad")).collect()
    assert [row.bad for row in found] == [False, False, False, True, True]
