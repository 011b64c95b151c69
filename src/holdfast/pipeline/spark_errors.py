"""What Spark's errors mean for a batch: whether another attempt may succeed, and whether a value is the cause."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.objects import StorageFull
from holdfast.pipeline.planning import in_short


class SparkUnavailable(HoldfastError):
    """A Spark job failed because a worker or an executor died. Another attempt may succeed."""

    category = ErrorCategory.RETRY


class SparkRefused(HoldfastError):
    """Spark can't run the batch, and another attempt would fail too."""

    category = ErrorCategory.INVALID


class UnreadableFile(SparkRefused):
    """A file of a source is damaged, or has another type than the source is read with."""

    category = ErrorCategory.DATA


class JobCancelled(HoldfastError):
    """Someone has stopped Spark's query or cancelled a job of the batch.

    Another attempt would hold up the caller: `query.stop()` waits until the batch ends, and cancels no job that
    starts meanwhile.
    """

    category = ErrorCategory.CLOSED


# Spark cancels the jobs of a query that is stopped and interrupts its thread, which then may wait for something else.
_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\]|^: java\.lang\.InterruptedException", re.MULTILINE)


_FILE = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+?)\.\s+(.*?)\s*SQLSTATE", re.DOTALL
)
"""What Spark says of a file: the kind of error, the file, and for some kinds a sentence."""
_DAMAGED = re.compile(
    r"is not a Parquet file|can not read class org\.apache\.parquet|ParquetDecodingException|Malformed ORC file"
    r"|Not an Avro data file"
)
_OTHER_TYPE = "PARQUET_COLUMN_DATA_TYPE_MISMATCH"
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_ENDED = "\n=== Streaming Query ==="
"""Where Spark's plan begins in the error of a query."""


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
    if (found := _FILE.search(str(error))) is not None and not concerns_data(error):
        kind, file, said = found.groups()
        causes = re.findall(r"^Caused by: (.*)$", str(error), re.MULTILINE)
        problem = f"Spark can't read the file {file} of a source: {said or (causes[-1] if causes else kind)}"
        if kind == _OTHER_TYPE or _DAMAGED.search(str(error)):
            return UnreadableFile(
                f"{problem} Each start repeats the batch until the file can be read. Write it again under its name, as "
                "the source's schema says; or delete it, which leaves its records out; or leave out what can't be read "
                'of such files, with the source\'s .option("ignoreCorruptFiles", "true").'
            )
        return SparkUnavailable(problem)
    # PySpark raises its own classes of errors when the cause is the plan, the data or Python code. Of a JVM that is
    # gone, the app's watcher says so.
    if isinstance(error, PySparkException) or concerns_data(error):
        return SparkRefused(f"Spark refused the batch: {text}")
    return SparkUnavailable(f"Spark lost the batch's job: {text}")


def query_failure(error: Exception, checkpoint: str) -> HoldfastError:
    """Why Spark's query ended, outside of our batches, without Spark's plan."""
    text = str(error)
    if _FULL.search(text):
        return StorageFull(
            f"Spark has no space to write: the disk of its checkpoint {checkpoint}, or that of its temporary files "
            "(spark.local.dir), is full. Free space or raise the quota, then start again. Nothing is lost: Spark "
            f"repeats the batch. Spark says: {in_short(text.partition(_ENDED)[0], 2, 1)}"
        )
    return SparkRefused(f"Spark's query failed: {in_short(text.partition(_ENDED)[0])}")
