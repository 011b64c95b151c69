"""Runs a task in one of Spark's Python workers.

Everything a task needs is sent with it. A worker process only keeps the log's handle from one task to the next.
"""

import gc
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext

from holdfast import faults
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.memory import give_back_freed_memory
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.remote_state import StateLocations, state_before
from holdfast.pipeline.results import TaskResult, encode, refused
from holdfast.pipeline.task_state import TaskState
from holdfast.words import TaskId, Version


class WrongLog(HoldfastError):
    """A worker found another log under the address of the app's log."""

    category = ErrorCategory.INVALID


class TaskWork(Protocol):
    """What every task of one sub-topology does in one version. The driver sends it to the workers."""

    @property
    def subtopology(self) -> int: ...

    @property
    def version(self) -> Version: ...

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        """Runs one task over the rows of its partition. Failures are results too: Spark would only repeat the task."""


_logs: dict[tuple[str, int], Log] = {}


def run_partition(
    work: TaskWork, locations: StateLocations, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of `mapInArrow`: one partition in, one small result out."""

    def run(partition: int) -> bytes:
        task = TaskId(work.subtopology, partition)
        try:
            result = work.run(task, batches, log_of(locations), state_before(locations, task, work.version))
        except HoldfastError as error:
            result = refused(task, error)
        return encode(result)

    return in_worker(run)


def in_worker(run: Callable[[int], bytes]) -> Iterator[pa.RecordBatch]:
    """Runs the tasks of this worker's partition. Returns their encoded result as a batch of one row."""
    _start_once()
    context = TaskContext.get()
    assert context is not None
    yield pa.RecordBatch.from_arrays([pa.array([run(context.partitionId())], pa.binary())], names=["result"])
    _freeze_once()


def run_idle_partition(
    work: TaskWork, locations: StateLocations, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A partition in a version without records; `batches` only make Spark start the task."""
    for _ in batches:
        pass
    yield from run_partition(work, locations, iter(()))


@cache
def _freeze_once() -> None:
    """Excludes the imported modules from garbage collection.

    Spark runs a full collection after every task, which takes 30 ms with all our modules and 1 ms without.
    """
    gc.freeze()


@cache
def _start_once() -> None:
    """Lets numpy and Arrow reuse the memory of the worker's last task.

    Otherwise each task gets memory for its columns from the system again, 9,000 page faults per 250,000 records: a
    seventh of its processor time, and more where many processes do so at once.
    """
    faults.load_from_environment("worker")
    give_back_freed_memory()
    pa.set_memory_pool(pa.system_memory_pool())


def log_of(locations: StateLocations) -> Log:
    opened = locations.log_id, locations.app_file
    if opened not in _logs:
        storage = open_storage(
            locations.log_url, dict(locations.log_options), fsync=locations.fsync, retry=locations.retry
        )
        found = Log.identify(storage)
        if found != locations.log_id:
            raise WrongLog(
                f"A Spark worker on {socket.gethostname()} found log {found} at {storage.place}; the app's is "
                f"{locations.log_id}. Nothing was written. Use a log.url under which every worker finds the same log: "
                "an absolute folder that all machines share, or object storage."
            )
        _logs[opened] = Log.open(storage, locations.app_file)
    return _logs[opened]
