"""Events: what happens in an instance, numbered and kept for a while, so that the driver can ask for them.

Restores and failures only append, which never waits. The driver asks with the last number it has seen and waits in its
own call; a driver that asks too rarely learns how many events it missed.
"""

import logging
import threading
from collections import deque
from enum import StrEnum
from itertools import islice

import msgspec

from holdfast.chance import new_id
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.engines.base import StateError
from holdfast.words import TaskId

_LOG = logging.getLogger(__name__)


class RestorePhase(StrEnum):
    START = "start"
    BATCH = "batch"
    END = "end"
    SUSPENDED = "suspended"


class RestoreEvent(msgspec.Struct, frozen=True, tag="restore"):
    """A step of one store's restore on one task.

    `start_version` is where it started; 0 means in full. `end_version` is the target version (start) or the version
    reached (batch, end, suspended). `count` is the number of entries of this step and `total` the number so far. While
    a snapshot is being loaded, `bytes_done` of `bytes_total` are here; `bytes_kept` of those were on disk before.
    `instance` has the replica; the driver fills it in.
    """

    phase: RestorePhase
    task: str
    store: str
    start_version: int
    end_version: int
    count: int
    total: int
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_kept: int = 0
    instance: str = ""


class ProblemEvent(msgspec.Struct, frozen=True, tag="problem"):
    """Something went wrong and was handled (`warning`), or needs an operator (`error`)."""

    severity: str
    task: str | None
    error: str
    category: ErrorCategory
    message: str


class TaskEvent(msgspec.Struct, frozen=True, tag="task"):
    """A task entered another state: restoring, running, suspended, closed."""

    task: str
    state: str
    version: int


Event = RestoreEvent | ProblemEvent | TaskEvent


class Numbered(msgspec.Struct, frozen=True):
    number: int
    at: int
    event: Event


class EventPage(msgspec.Struct, frozen=True):
    """Events after a number. Ask with `next` and `life` the next time; `missed` events were no longer kept."""

    events: tuple[Numbered, ...]
    next: int
    missed: int
    life: str
    """Identifies the process they are from: numbers start over with each."""


class Events:
    """The last `keep` events.

    >>> events = Events()
    >>> events.append(TaskEvent("0_1", "running", 7))
    >>> [numbered.event for numbered in events.since(0).events]
    [TaskEvent(task='0_1', state='running', version=7)]
    """

    def __init__(self, keep: int = 10_000, clock: Clock = SYSTEM_CLOCK) -> None:
        self._kept: deque[Numbered] = deque(maxlen=keep)
        self._last = 0
        self.life = new_id()
        self._clock = clock
        self._arrived = threading.Condition()
        self._closed = False

    def append(self, event: Event) -> None:
        with self._arrived:
            self._last += 1
            self._kept.append(Numbered(self._last, self._clock.now(), event))
            self._arrived.notify_all()

    def since(self, number: int, wait: float = 0.0, limit: int = 1_000, life: str | None = None) -> EventPage:
        """The events after `number` of a `life`, waiting up to `wait` seconds for the first. After -1: from now on.

        A number of another life says nothing about this one: the answer starts with the oldest event kept.
        """
        with self._arrived:
            if life is not None and life != self.life:
                number = 0
            if number < 0:
                number = self._last
            self._arrived.wait_for(lambda: self._last > number or self._closed, timeout=wait)
            oldest = self._kept[0].number if self._kept else self._last + 1
            missed = max(0, oldest - 1 - number)
            skip = max(0, number + 1 - oldest)
            page = tuple(islice(self._kept, skip, skip + limit))
        return EventPage(page, page[-1].number if page else number + missed, missed, self.life)

    def close(self) -> None:
        """Ends all waits."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()


def described(error: BaseException) -> str:
    """An error as one text. The message of an error that isn't ours needs its class, as in `SystemExit: 1`."""
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"


def report_warning(events: Events, kind: str, warning: str) -> None:
    """Logs a warning about the whole instance and keeps it for the driver."""
    _LOG.warning(warning)
    events.append(ProblemEvent("warning", None, kind, ErrorCategory.INVALID, warning))


def same_problem(error: BaseException) -> str:
    """What two errors have in common if they are of one cause. Those of the disk name other files each time."""
    return f"{type(error).__name__} in {error.path}" if isinstance(error, StateError) else described(error)


def report_problem(events: Events, task: TaskId | None, error: BaseException) -> None:
    """Logs an error and keeps it for the driver."""
    category = error.category if isinstance(error, HoldfastError) else ErrorCategory.BUG
    where = "" if task is None else f"task {task}: "
    _LOG.error("%s%s", where, described(error), exc_info=error if category is ErrorCategory.BUG else None)
    name = None if task is None else str(task)
    events.append(ProblemEvent("error", name, type(error).__name__, category, f"{where}{described(error)}"))
