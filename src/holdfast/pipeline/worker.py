"""What runs in Spark's Python workers: the shell around `task.run`.

Workers come and go, so nothing here is more than a cache: the log's handle and the connections to instances, kept from
one task to the next in the same process. Everything a task needs to know travels with it.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.instance.client import StateClient
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.processor import ProcessorWork, run_processor
from holdfast.pipeline.shipping import unship
from holdfast.pipeline.state import Entries, Range
from holdfast.pipeline.task import ReadState, ScanState, TaskWork, refused, run, to_batch
from holdfast.retry import retrying
from holdfast.settings import RetrySettings
from holdfast.words import NOTHING, TaskId, Version

T = TypeVar("T")


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
    retry: RetrySettings


_READ_RETRY = RetrySettings(first="50ms", longest="1s")

_logs: dict[str, Log] = {}
_clients: dict[tuple[str, str], StateClient] = {}
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
    yield to_batch(run(work, task.partition, batches, log, _reader(reach), _scanner(reach), partial(_count, reach)))
    _freeze_once()


def run_processor_partition(
    work: ProcessorWork, shipped: bytes, reach: Reach, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same for a processor, whose code travels as `shipped`."""
    _start_once()
    context = TaskContext.get()
    assert context is not None
    task = TaskId(work.topology, context.partitionId())
    try:
        log, code = _log(reach), unship(shipped)
    except HoldfastError as error:
        yield to_batch(refused(task, error))
        return
    before = RemoteState(reach, task, Version(work.version - 1))
    yield to_batch(run_processor(work, code, task.partition, batches, log, before))
    _freeze_once()


def run_idle_partition(
    work: ProcessorWork, shipped: bytes, reach: Reach, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A processor's partition in a version without records; what comes in only made Spark start the task."""
    for _ in batches:
        pass
    yield from run_processor_partition(work, shipped, reach, iter(()))


@dataclass(frozen=True)
class RemoteState:
    """A task's stores at a version, as its replicas answer for them."""

    reach: Reach
    task: TaskId
    version: Version

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        asked = pa.array(keys, pa.binary())
        found = self._ask(lambda client: client.get_many(self.task, store, self.version, asked))
        return list(found.to_pylist())

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool, limit: int) -> Entries:
        found = self._ask(lambda client: client.scan(self.task, store, self.version, start, stop, reverse, limit))
        return list(zip(found.keys.to_pylist(), found.values.to_pylist(), strict=True))

    def scan_many(self, store: str, ranges: Sequence[Range]) -> Entries:
        starts = pa.array([start for start, _ in ranges], pa.binary())
        stops = pa.array([stop for _, stop in ranges], pa.binary())
        found = self._ask(lambda client: client.scan_many(self.task, store, self.version, starts, stops))
        return list(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))

    def approximate_count(self, store: str) -> int:
        faults.point("state.read")
        return _count(self.reach, self.task, store)

    def _ask(self, call: Callable[[StateClient], T]) -> T:
        faults.point("state.read")
        return _ask(self.reach, self.task, call)


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
        storage = open_storage(reach.log_url, dict(reach.log_options), fsync=reach.fsync, retry=reach.retry)
        _logs[reach.log_id] = Log.open(storage)
    return _logs[reach.log_id]


def _client(address: str, reach: Reach) -> StateClient:
    known = (address, reach.log_id)
    if known not in _clients:
        _clients[known] = StateClient(address, reach.deadline, reach.log_id)
    return _clients[known]


def _reader(reach: Reach) -> ReadState:
    def read(task: TaskId, store: str, version: Version, keys: pa.Array) -> pa.Array:
        if version == NOTHING:
            return pa.nulls(len(keys), pa.binary())
        return _ask(reach, task, lambda client: client.get_many(task, store, version, keys))

    return read


def _scanner(reach: Reach) -> ScanState:
    def scan(task: TaskId, store: str, version: Version, start: bytes, stop: bytes, limit: int) -> pa.Array:
        if version == NOTHING:
            return pa.array([], pa.binary())
        return _ask(reach, task, lambda client: client.scan(task, store, version, start, stop, limit=limit).keys)

    return scan


def _count(reach: Reach, task: TaskId, store: str) -> int:
    tasks = _ask(reach, task, lambda client: client.status()).tasks
    return next((found.stores.get(store, 0) for found in tasks if found.task == str(task)), 0)


def _ask(reach: Reach, task: TaskId, call: Callable[[StateClient], T]) -> T:
    """What a replica of the task answers; each try asks the next one."""
    addresses = reach.replicas[str(task)]
    attempt = 0

    def ask() -> T:
        nonlocal attempt
        address = addresses[attempt % len(addresses)]
        attempt += 1
        return call(_client(address, reach))

    return retrying(ask, _READ_RETRY, deadline=reach.deadline)
