"""Errors of Spark as ours: those of a lost job or JVM may pass, those of the plan and the data don't."""

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkValueError

from holdfast.pipeline.spark_errors import SparkRefused, SparkUnavailable, spark_errors


@pytest.mark.parametrize("error", [Py4JError("no job"), Py4JNetworkError("no JVM"), ConnectionRefusedError("no JVM")])
def test_a_lost_jvm_may_be_asked_again(error: Exception) -> None:
    with pytest.raises(SparkUnavailable, match="no J|no j"), spark_errors():
        raise error


def test_what_spark_refuses_is_not_asked_again() -> None:
    with pytest.raises(SparkRefused), spark_errors():
        raise PySparkValueError(errorClass="VALUE_NOT_POSITIVE", messageParameters={"arg_name": "n", "arg_value": "0"})
