"""What a query reads of one task, wherever its replica is: this process, or another instance.

Instances hold bytes and know no kinds of stores. Where an entry's bytes are and whether it has expired, its store's
layout decides, by the clocks of the version that is read.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.config import Role
from holdfast.instance.held_versions import HoldTerms
from holdfast.instance.messages import InstanceUnavailable
from holdfast.stores.access import ColumnBytes, Now
from holdfast.words import NOTHING, TaskId, Version

T = TypeVar("T")


class NotReady(HoldfastError):
    """A task's state can't be read now. It may be in a moment."""

    category = ErrorCategory.RETRY


class NotHere(NotReady):
    """No instance is known to host the task."""


class NotFresh(NotReady):
    """No replica could answer as freshly as the request demands, within the time it may wait.

    The next step depends on who asks, and how, so the message has none where it is to ask for less or to wait longer.
    """

    def __init__(self, message: str, version: int | None = None, wanted: int | None = None) -> None:
        super().__init__(message)
        self.version = version
        """The newest version that there was."""
        self.wanted = wanted


def too_old(task: TaskId, version: Version, wanted: Version) -> NotFresh:
    fact = f"Task {task} is at version {version}, and version {wanted} or a later one is asked for."
    return NotFresh(fact, version, wanted)


class Restoring(NotReady):
    """The task's replica is being restored: it is at `version` of `newest`."""

    def __init__(self, task: TaskId, where: str, version: int, newest: int) -> None:
        super().__init__(
            f"task {task} is being restored{where}: version {version} of {newest}. Ask again in a moment; /v1/state "
            "shows how far it is."
        )
        self.task = str(task)
        self.version = version
        self.newest = newest


class VersionGone(HoldfastError):
    """The version that a request names can't be read any more."""

    category = ErrorCategory.INVALID

    def __init__(self, version: int, oldest: int, newest: int) -> None:
        super().__init__(f"Version {version} is gone: replicas hold versions {oldest} to {newest}.")
        self.version = version
        self.oldest = oldest
        self.newest = newest


class VersionAbandoned(HoldfastError):
    """A reader goes on from a version that the log doesn't have any more, since it was set back."""

    category = ErrorCategory.INVALID


class TooLarge(HoldfastError):
    """The entries of one answer have more bytes than an answer may have."""

    category = ErrorCategory.INVALID


class NoReplicaAnswers(InstanceUnavailable):
    """None of the instances with a replica of the task has answered; the message says what happened at one of them."""

    def __init__(self, task: TaskId, message: str) -> None:
        super().__init__(message)
        self.task = task


class ReadInterrupted(InstanceUnavailable):
    """An instance went away in the middle of a read of several steps. Another replica may be read from the start."""


class Served(NamedTuple):
    """Who answered: the role of the replica, and the name of its instance."""

    role: Role
    instance: str


@dataclass(frozen=True)
class ReadNeeds:
    """How fresh the replica of a task has to be; `Freshness` is what a request says."""

    at_least: Version = NOTHING
    """The oldest version that will do."""
    active: bool = False
    until: float = 0.0
    """The time of the monotonic clock up to which the replica may take to come to a version."""
    exact: Version | None = None
    """A version that the request names: if a replica has moved past it, others may hold it."""

    def to_read(self, version: Version | None) -> "ReadNeeds":
        """What the task's reader has to meet where a version is asked for."""
        return self if version is None else replace(self, at_least=max(self.at_least, version))


ANY_REPLICA: Final = ReadNeeds()


@dataclass(frozen=True)
class TaskPart(Generic[T]):
    """One task's part of an answer, in order, at one version."""

    task: TaskId
    version: Version
    entries: Sequence[T]


class KeyRead(NamedTuple):
    """The bytes of one key, with their version and its clocks."""

    version: Version
    value: bytes | None
    now: Now
    served: Served
    commit: str = ""
    """The id of the version's commit, where another instance has answered."""


@dataclass(frozen=True)
class TaskStore:
    """One store of one task at a version: its bytes, and the clocks of that version."""

    version: Version
    now: Now
    bytes: ColumnBytes
    served: Served
    hold: "Callable[[HoldTerms], HeldTask]"
    """Has the replica that answers here keep the version."""
    commit: str = ""
    """The id of the version's commit."""


class HeldTask(Protocol):
    """A version of a task that stays readable until it is released, or until the time of the hold has passed."""

    @property
    def version(self) -> Version: ...

    def at(self, store: str) -> AbstractContextManager[TaskStore]:
        """A store at that version, from the replica that holds it."""

    def release(self) -> None: ...


class TaskReader(Protocol):
    """One task's stores, wherever its replica is. Without a version the newest is read; the answer has the version."""

    local: bool
    """Whether reads are answered in this process, so that an event loop may do them itself."""

    @property
    def newest(self) -> Version:
        """The newest version that the task can be read at, as far as is known here."""

    def is_behind(self, version: Version, needs: ReadNeeds) -> bool:
        """Whether a read would wait for a replica of this process to come to the version."""

    def get(
        self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA
    ) -> KeyRead: ...

    def at(
        self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA
    ) -> AbstractContextManager[TaskStore]:
        """A store to read for the length of a block, all at one version."""


class Tasks(Protocol):
    """Finds the reader of a task, one that meets the needs if there is any; None while no instance hosts the task."""

    def __call__(self, task: TaskId, needs: ReadNeeds = ANY_REPLICA, /) -> TaskReader | None: ...


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
            raise Restoring(self._task, " after it started over", version, seen)
        if version != self._seen:
            with self._lock:
                self._seen = max(self._seen, version)
