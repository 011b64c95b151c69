"""What Spark's errors mean for a batch: whether another attempt may succeed, and whether a value is the cause."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.pipeline.planning import in_short


class SparkUnavailable(HoldfastError):
    """A Spark job failed because a worker or an executor died. Another attempt may succeed."""

    category = ErrorCategory.RETRY


class SparkRefused(HoldfastError):
    """Spark can't run the batch, and another attempt would fail too."""

    category = ErrorCategory.INVALID


class JobCancelled(HoldfastError):
    """Someone has stopped Spark's query or cancelled a job of the batch.

    Another attempt would hold up the caller: `query.stop()` waits until the batch ends, and cancels no job that
    starts meanwhile.
    """

    category = ErrorCategory.CLOSED


# Spark cancels the jobs of a query that is stopped and interrupts its thread, which then may wait for something else.
_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\]|^: java\.lang\.InterruptedException", re.MULTILINE)


class FailedInQuery(SparkRefused):
    """A step failed that is part of the streaming query, which hides the record. Without it, batches can check it."""


def concerns_data(error: BaseException | None) -> bool:
    """Whether Spark has stopped because of a value.

    These are the SQL standard's class 22, data exceptions, and 38 and 39, exceptions of functions from outside.

    >>> concerns_data(ValueError("[CAST_INVALID_INPUT] The value 'x' ... SQLSTATE: 22018"))
    True
    """
    if isinstance(error, PythonException):
        return True
    return re.search(r"SQLSTATE: (22|38|39)\w{3}|api\.python\.PythonException", str(error)) is not None


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Turns Spark's errors into our own."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> HoldfastError:
    text = in_short(str(error))
    if _CANCELLED.search(str(error)):
        return JobCancelled(
            "Spark's query was stopped, or a job of the batch was cancelled. Nothing of the batch is committed, and "
            f"the app's next start repeats it; app.stop() ends an app without this error. Spark says: {text}"
        )
    # PySpark raises its own classes of errors when the cause is the plan, the data or Python code. Of a JVM that is
    # gone, the app's watcher says so.
    if isinstance(error, PySparkException) or concerns_data(error):
        return SparkRefused(f"Spark refused the batch: {text}")
    return SparkUnavailable(f"Spark lost the batch's job: {text}")
