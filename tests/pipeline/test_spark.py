"""Options of the user's session that an app needs while it starts."""

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.spark import ROWS_TO_FUNCTIONS, query_options, with_options

pytestmark = pytest.mark.spark

DELAY = "spark.sql.streaming.pollingDelay"
OPTIONS = query_options(timedelta(milliseconds=100), local_checkpoint=True)


def test_the_delay_between_two_looks_is_set_for_the_start_of_a_query_alone(spark: SparkSession) -> None:
    with with_options(spark, OPTIONS):
        assert spark.conf.get(DELAY) == "100ms"
    assert spark.conf.get(DELAY, None) is None


def test_a_delay_that_the_user_has_set_stays(spark: SparkSession) -> None:
    spark.conf.set(DELAY, "7ms")
    try:
        with with_options(spark, OPTIONS):
            assert spark.conf.get(DELAY) == "7ms"
        assert spark.conf.get(DELAY) == "7ms"
    finally:
        spark.conf.unset(DELAY)


def test_functions_get_rows_where_spark_waits_for_ever_if_they_get_columns() -> None:
    """A program whose function reads a Parquet source is in tests/test_lifecycle.py."""
    [option] = ROWS_TO_FUNCTIONS
    with_release = {
        release: query_options(timedelta(milliseconds=100), local_checkpoint=False, release=release)
        for release in ("4.1.1", "4.2.0", "4.2.1", "4.3.0")
    }
    assert [release for release, options in with_release.items() if option in options] == ["4.2.0", "4.2.1"]
