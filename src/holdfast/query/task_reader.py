"""What a query reads of one task, wherever its replica is: this process, or another instance.

Instances hold bytes and know no kinds of stores. Where an entry's bytes are and whether it has expired is decided here,
by the clocks of the version that is read, with the same code that tasks read their stores with.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.formats.cells import Cell, unpack
from holdfast.stores.kinds.expiry import ReadableEntries, ReadablePlainEntries, ReadableSlicedEntries
from holdfast.stores.layouts.recency import SEQ_BYTES
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version

T = TypeVar("T")

AFTER_ENTRIES = b"\x02"
"""Where the entries' own keys end; after them a store keeps slices, indexes and notes."""


class NotReady(HoldfastError):
    """A task's state can't be read now: it is being restored, or no instance is known to host it."""

    category = ErrorCategory.RETRY


@dataclass(frozen=True)
class TaskPart(Generic[T]):
    """One task's part of an answer, in order, at one version."""

    task: TaskId
    version: Version
    entries: Sequence[T]


@dataclass(frozen=True)
class KeyRead:
    """The bytes of one key, with their version and its clocks."""

    version: Version
    value: bytes | None
    now: Now


@dataclass(frozen=True)
class TaskStore:
    """One store of one task at a version: its bytes, and the clocks of that version."""

    version: Version
    now: Now
    bytes: ReadableBytes


class TaskReader(Protocol):
    """One task's stores, wherever its replica is. Without a version the newest is read; the answer has the version."""

    local: bool
    """Whether reads are answered in this process, so that an event loop may do them itself."""

    def get(self, store: str, key: bytes, version: Version | None = None) -> KeyRead: ...

    def at(self, store: str, version: Version | None = None) -> AbstractContextManager[TaskStore]:
        """A store to read for the length of a block, all at one version."""


def entries_of(spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> ReadableEntries:
    """The entries of a store by their own keys, without what has expired; of a versioned one the latest values."""
    if spec.entries_in_slices:
        return ReadableSlicedEntries(spec, bytes_, now)
    return ReadablePlainEntries(bytes_, now)


def cell_of(spec: StoreSpec, data: bytes) -> Cell:
    """A cell as its user knows it: without what the store itself keeps in front of the value."""
    cell = unpack(data)
    return replace(cell, payload=cell.payload[SEQ_BYTES:]) if spec.max_entries else cell
