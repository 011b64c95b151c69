"""What runs in Spark's Python workers: the shell around a task.

Workers come and go, so nothing here is more than a cache: the log's handle is kept from one task to the next in the
same process. Everything a task needs to know travels with it.
"""

import gc
from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.remote_state import StateLocations, state_before
from holdfast.pipeline.results import TaskResult, encode, refused
from holdfast.pipeline.task_state import TaskState
from holdfast.words import TaskId, Version


class TaskWork(Protocol):
    """What every task of one sub-topology does in one version. Travels from the driver to the workers."""

    @property
    def topology(self) -> int: ...

    @property
    def version(self) -> Version: ...

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        """One task over the rows of its partition. A refusal is a result too: Spark would try the same rows again."""


_logs: dict[str, Log] = {}
_started = False
_frozen = False


def run_partition(
    work: TaskWork, locations: StateLocations, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of `mapInArrow`: one partition in, one small result out."""
    _start_once()
    context = TaskContext.get()
    assert context is not None
    task = TaskId(work.topology, context.partitionId())
    try:
        result = work.run(task, batches, _log(locations), state_before(locations, task, work.version))
    except HoldfastError as error:
        result = refused(task, error)
    yield pa.RecordBatch.from_arrays([pa.array([encode(result)], pa.binary())], names=["result"])
    _freeze_once()


def run_idle_partition(
    work: TaskWork, locations: StateLocations, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A partition in a version without records; what comes in only made Spark start the task."""
    for _ in batches:
        pass
    yield from run_partition(work, locations, iter(()))


def _freeze_once() -> None:
    """Takes what is imported by now out of the garbage collector's sight.

    Spark collects garbage in full after every task, which takes 30 ms of a core with all our modules to look through,
    and 1 ms without.
    """
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True


def _start_once() -> None:
    global _started
    if not _started:
        faults.load_from_environment("worker")
        _started = True


def _log(locations: StateLocations) -> Log:
    if locations.log_id not in _logs:
        storage = open_storage(
            locations.log_url, dict(locations.log_options), fsync=locations.fsync, retry=locations.retry
        )
        _logs[locations.log_id] = Log.open(storage)
    return _logs[locations.log_id]
