"""Results of tasks, and a state that they are applied to."""

import uuid
from collections.abc import Iterable

import pyarrow as pa

from holdfast.log.log import Log
from holdfast.log.segments import SegmentRef
from holdfast.log.storage import open_storage
from holdfast.pipeline.results import TaskDone, TaskRefused, TaskResult
from holdfast.stores.access import DictBytes
from holdfast.stores.ranges import Ranges
from holdfast.stores.spec import StoreSpec
from holdfast.testing.processor import StateInMemory
from tests.log.making import app_spec


def done(result: TaskResult) -> TaskDone:
    assert isinstance(result, TaskDone), result
    return result


def refusal(result: TaskResult) -> TaskRefused:
    assert isinstance(result, TaskRefused), result
    return result


def log_of(*specs: StoreSpec) -> Log:
    """A log in memory of an app with one partition and these stores."""
    return Log.create_or_open(open_storage(f"memory://{uuid.uuid4().hex}"), app_spec(*specs))


class ReplicaState(StateInMemory):
    """The state of one task, as a replica has it. Counts reads."""

    def __init__(self, *stores: str) -> None:
        super().__init__({name: DictBytes() for name in stores})
        self.reads = 0

    def apply(self, log: Log, segments: Iterable[SegmentRef]) -> None:
        for ref in segments:
            for store, table in log.state_parts(ref):
                for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
                    if value is None:
                        self.stores[store].delete(key)
                    else:
                        self.stores[store].put(key, value)

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        self.reads += 1
        return super().get(store, keys)

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        self.reads += 1
        return super().scan(store, start, stop, reverse=reverse, limit=limit)

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        self.reads += 1
        return super().scan_many(store, ranges)
