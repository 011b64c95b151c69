"""What a query reads of one task, wherever its replica is: this process, or another instance.

Instances hold bytes and know no kinds of stores. Where an entry's bytes are and whether it has expired, its store's
layout decides, by the clocks of the version that is read.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.messages import InstanceUnavailable
from holdfast.stores.access import Now, ReadableBytes
from holdfast.words import NOTHING, TaskId, Version

T = TypeVar("T")


class NotReady(HoldfastError):
    """A task's state can't be read now: it is being restored, or no instance is known to host it."""

    category = ErrorCategory.RETRY


class ReadInterrupted(InstanceUnavailable):
    """An instance went away in the middle of a read of several steps. Another replica may be read from the start."""


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


class MonotonicReads:
    """The newest version a task was read at. A read that asks for no version is never answered at an older one."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._seen = NOTHING

    @property
    def seen(self) -> Version:
        """To be taken before a read: a read that started earlier may be answered at an older version."""
        return self._seen

    def record(self, version: Version, seen: Version) -> None:
        """Records that a read was answered at `version`; `seen` is what `seen` was when the read started."""
        if version < seen:
            raise NotReady(
                f"task {self._task} was at version {seen} and is at {version} now: it is being restored. Ask again "
                "in a moment."
            )
        with self._lock:
            self._seen = max(self._seen, version)
