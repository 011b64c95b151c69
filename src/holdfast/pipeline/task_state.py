"""A task's state: its stores at `v-1`, as Arrow columns.

Every operator reads through `TaskState`: aggregations read the columns of one store, processors read through
`store_state`, which keeps entries in memory.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from holdfast import faults
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.segments import STATE_SCHEMA
from holdfast.stores.access import StoreColumns
from holdfast.stores.ranges import Ranges
from holdfast.words import TaskId

NO_ENTRIES: Final = STATE_SCHEMA.empty_table()


class NoOtherTask(HoldfastError):
    """A state that has one task was asked for another."""

    category = ErrorCategory.BUG


class TaskState(ABC):
    """The stores of one task at one version. Entries come as tables with the columns `key` and `value`."""

    @abstractmethod
    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The values of these keys, null where there is none."""

    @abstractmethod
    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        """The first `limit` entries of a range, in order or backwards."""

    @abstractmethod
    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        """All entries of several ranges in the order of their keys. The ranges are sorted and don't overlap."""

    @abstractmethod
    def approximate_count(self, store: str) -> int:
        """About how many entries the store has."""

    def of_task(self, task: TaskId) -> "TaskState":
        """The stores of another task, at the same version."""
        raise NoOtherTask(f"This state is of one task alone, and task {task} was asked for.")

    def store(self, name: str) -> StoreColumns:
        """One of the stores."""
        return _OneStore(self, name)


@dataclass(frozen=True)
class _OneStore:
    state: TaskState
    name: str

    def get(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        faults.point("state.read")
        return self.state.get(self.name, keys)

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        return self.state.scan(self.name, start, stop, reverse=reverse, limit=limit)

    def approximate_count(self) -> int:
        return self.state.approximate_count(self.name)


class EmptyState(TaskState):
    """The state before the first version."""

    def of_task(self, task: TaskId) -> TaskState:
        return self

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        return pa.nulls(len(keys), pa.binary())

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        return NO_ENTRIES

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        return NO_ENTRIES

    def approximate_count(self, store: str) -> int:
        return 0
