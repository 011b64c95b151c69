"""Errors of Spark as ours: those of a lost job or JVM may pass, those of the plan and the data don't."""

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkValueError

from holdfast.pipeline.spark_errors import (
    JobCancelled,
    SparkRefused,
    SparkUnavailable,
    UnreadableFile,
    query_failure,
    spark_errors,
)
from holdfast.retry import is_retryable


@pytest.mark.parametrize("error", [Py4JError("no job"), Py4JNetworkError("no JVM"), ConnectionRefusedError("no JVM")])
def test_a_lost_jvm_may_be_asked_again(error: Exception) -> None:
    with pytest.raises(SparkUnavailable, match="no J|no j"), spark_errors():
        raise error


def test_what_spark_refuses_is_not_asked_again() -> None:
    with pytest.raises(SparkRefused), spark_errors():
        raise PySparkValueError(errorClass="VALUE_NOT_POSITIVE", messageParameters={"arg_name": "n", "arg_value": "0"})


@pytest.mark.parametrize(
    "text",
    [
        "[SPARK_JOB_CANCELLED] Job 4 cancelled part of cancelled job group q SQLSTATE: XXKDA",
        "An error occurred while calling o240.unpersist.\n: java.lang.InterruptedException\n\tat java.base/java.util",
    ],
)
def test_a_cancelled_job_is_not_started_again(text: str) -> None:
    """Whoever stops the query waits until the batch has ended."""
    with pytest.raises(JobCancelled, match="cancelled") as raised, spark_errors():
        raise Py4JError(text)
    assert not is_retryable(raised.value)


def of_file(kind: str, said: str, cause: str) -> Py4JError:
    return Py4JError(
        "An error occurred while calling o434.getResult.\n: org.apache.spark.SparkException: Exception thrown in "
        f"awaitResult: \n\tat org.apache.spark.A.b(A.scala:7)\nCaused by: org.apache.spark.SparkException: "
        f"[FAILED_READ_FILE.{kind}] Encountered error while reading file s3a://box/in/2%20b.parquet. {said} SQLSTATE: "
        f"KD001\n\tat org.apache.spark.C.d(C.scala:9)\nCaused by: {cause}\n\tat x.Y.z(Y.java:1)"
    )


TYPES = "Data type mismatches when reading Parquet column [n]. Expected Spark type bigint, actual Parquet type BINARY."


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (of_file("PARQUET_COLUMN_DATA_TYPE_MISMATCH", TYPES, "x.Unsupported: column: [n]"), TYPES),
        (of_file("NO_HINT", "", "x.RuntimeException: x is not a Parquet file (length is too low: 7)"), "too low: 7"),
        (of_file("CANNOT_READ_FILE_FOOTER", "Could not read footer.", "x.Y: x is not a Parquet file"), "read footer"),
        (of_file("NO_HINT", "", "x.IOException: can not read class org.apache.parquet.format.PageHeader: 15"), "15"),
    ],
)  # fmt: skip
def test_a_file_that_stays_unreadable_is_named_and_not_asked_again(error: Py4JError, said: str) -> None:
    with pytest.raises(UnreadableFile) as raised, spark_errors():
        raise error
    assert not is_retryable(raised.value)
    assert str(raised.value).startswith("Spark can't read the file s3a://box/in/2%20b.parquet of a source: ")
    assert said in str(raised.value) and "under its name" in str(raised.value) and "\tat" not in str(raised.value)


def test_a_file_that_a_storage_does_not_give_may_be_asked_for_again() -> None:
    with (
        pytest.raises(SparkUnavailable, match="file s3a://box/in/2%20b.parquet of a source: .*timed out"),
        spark_errors(),
    ):
        raise of_file("NO_HINT", "", "java.net.SocketTimeoutException: Read timed out")


def test_the_failure_of_a_query_has_no_plan() -> None:
    text = "[STREAM_FAILED] Query [id = 1] terminated: boom SQLSTATE: XXKST\n=== Streaming Query ===\nLogical Plan: x"
    failure = query_failure(Exception(text), "/checkpoint")
    assert str(failure) == f"Spark's query failed: {text.splitlines()[0]}"
