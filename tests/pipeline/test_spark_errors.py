"""Errors of Spark as ours: those of a lost job or JVM may pass, those of the plan and the data don't."""

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkValueError

from holdfast.pipeline.spark_errors import JobCancelled, SparkRefused, SparkUnavailable, spark_errors
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
