"""What runs in Spark's Python workers: the shell around `task.run`.

Workers come and go, so nothing here is more than a cache: the log's handle and the connections to instances, kept from
one task to the next in the same process. Everything a task needs to know travels with it.
"""

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import tenacity
from pyspark import TaskContext

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.log.log import Log
from holdfast.log.objects import Retries
from holdfast.log.storage import open_storage
from holdfast.pipeline.task import ReadState, TaskWork, refused, run, to_batch
from holdfast.retry import is_retryable
from holdfast.words import NOTHING, TaskId, Version


@dataclass(frozen=True)
class Reach:
    """How a task reaches the log and the replicas of its state."""

    log_url: str
    log_id: str
    log_options: Mapping[str, str] = field(repr=False)
    fsync: bool
    replicas: Mapping[str, tuple[str, ...]]
    """Task → addresses of the instances that host it, the active one first."""
    deadline: timedelta
    retries: Retries


_logs: dict[str, Log] = {}
_clients: dict[str, StateClient] = {}
_started = False
_frozen = False


def run_partition(work: TaskWork, reach: Reach, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of `mapInArrow`: one partition in, one small result out."""
    _start_once()
    context = TaskContext.get()
    assert context is not None
    task = TaskId(work.topology, context.partitionId())
    try:
        log = _log(reach)
    except HoldfastError as error:
        yield to_batch(refused(task, error))
        return
    yield to_batch(run(work, task.partition, batches, log, _reader(reach)))
    _freeze_once()


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


def _log(reach: Reach) -> Log:
    if reach.log_id not in _logs:
        storage = open_storage(reach.log_url, dict(reach.log_options), fsync=reach.fsync, retries=reach.retries)
        _logs[reach.log_id] = Log.open(storage)
    return _logs[reach.log_id]


def _client(address: str, deadline: timedelta) -> StateClient:
    if address not in _clients:
        _clients[address] = StateClient(address, deadline)
    return _clients[address]


def _reader(reach: Reach) -> ReadState:
    def read(task: TaskId, store: str, version: Version, keys: pa.Array) -> pa.Array:
        if version == NOTHING:
            return pa.nulls(len(keys), pa.binary())
        addresses = reach.replicas[str(task)]
        attempt = 0

        def ask() -> pa.Array:
            nonlocal attempt
            address = addresses[attempt % len(addresses)]  # each try asks the next replica
            attempt += 1
            return _client(address, reach.deadline).get_many(task, store, version, keys)

        return tenacity.Retrying(
            stop=tenacity.stop_before_delay(reach.deadline),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
            retry=tenacity.retry_if_exception(is_retryable),
            reraise=True,
        )(ask)

    return read
