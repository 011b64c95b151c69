"""What a task hands back to the driver: one small message, whatever the batch's size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.log import WrittenSegments
from holdfast.log.segments import SegmentRef
from holdfast.words import TaskId

_USER = "user"


class TaskDone(msgspec.Struct, frozen=True, tag="done"):
    """One task's part of a version."""

    task: str
    segments: tuple[SegmentRef, ...] = ()
    records: int = 0
    """How many records it read. Sub-topologies that read one source read the same ones."""
    counts: dict[str, int] = {}
    event_times: dict[str, int] = {}
    """Source → the largest event time of its records."""
    volatile: tuple[SegmentRef, ...] = ()
    """Segments of stores that aren't durable."""


class TaskRefused(msgspec.Struct, frozen=True, tag="refused"):
    """A task that can't do its part, and why. Not an exception in Spark, which would only run the task again."""

    task: str
    category: ErrorCategory
    message: str


class FastPlanRejected(msgspec.Struct, frozen=True, tag="fast-plan-rejected"):
    """A task of a fast plan met a record that only the plan with dead letters can carry, or more than it can group."""

    task: str
    message: str


TaskResult = TaskDone | TaskRefused | FastPlanRejected


def refused(task: TaskId, error: HoldfastError) -> TaskRefused:
    """What a task hands back for an error: its type is part of the message."""
    return TaskRefused(str(task), error.category, f"{type(error).__name__}: {error}")


@dataclass
class Tally:
    """What a task counts as it goes."""

    records: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    event_time: int | None = None

    def add(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def saw(self, moment: int | None) -> None:
        if moment is not None and (self.event_time is None or moment > self.event_time):
            self.event_time = moment

    def done(self, task: TaskId, source: str, written: WrittenSegments) -> TaskDone:
        """The result of a task that read this source."""
        times = {} if self.event_time is None else {source: self.event_time}
        return TaskDone(str(task), written.segments, self.records, self.counts, times, written.volatile)


def of_store(store: str, name: str) -> str:
    """The name in a commit's counts of something that a store counts, such as entries that expired.

    >>> of_store("user-sessions", "expired")
    'expired/user-sessions'
    """
    return f"{name}/{store}"


def of_user(name: str) -> str:
    """The name in a commit's counts of a number of the user's own.

    >>> of_user("cheaters")
    'user/cheaters'
    """
    return f"{_USER}/{name}"


def users_name(name: str) -> str | None:
    """The user's own name of a number in a commit's counts; None if it isn't one of the user's.

    >>> users_name(of_user("cheaters")), users_name("records")
    ('cheaters', None)
    """
    beginning = f"{_USER}/"
    return name.removeprefix(beginning) if name.startswith(beginning) else None


def counts_of_stores(counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """What stores counted in a commit: (what, store) and how many.

    >>> counts_of_stores({"records": 9, of_store("user-sessions", "expired"): 2, of_user("cheaters"): 1})
    {('expired', 'user-sessions'): 2}
    """
    named = ((name.partition("/"), number) for name, number in counts.items())
    return {(what, store): number for (what, _, store), number in named if store and what != _USER}


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[TaskResult] = msgspec.msgpack.Decoder(TaskResult)


def encode(result: TaskResult) -> bytes:
    return _encoder.encode(result)


def decode(data: bytes) -> TaskResult:
    return _decoder.decode(data)
