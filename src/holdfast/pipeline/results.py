"""What a task hands back to the driver: one small message, whatever the batch's size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.log.segments import SegmentRef

_USER = "user"


class TaskError(msgspec.Struct, frozen=True):
    """Why a task refused its rows. Not an exception in Spark, which would only run the task again."""

    type: str
    message: str
    retry: bool


class TaskResult(msgspec.Struct, frozen=True):
    """One task's part of a version."""

    task: str
    segments: tuple[SegmentRef, ...] = ()
    counts: dict[str, int] = {}
    event_time: int | None = None
    error: TaskError | None = None
    volatile: tuple[SegmentRef, ...] = ()
    """Segments of stores that aren't durable."""


@dataclass
class Tally:
    """What a task counts as it goes."""

    counts: dict[str, int] = field(default_factory=dict)
    event_time: int | None = None

    def add(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def saw(self, moment: int | None) -> None:
        if moment is not None and (self.event_time is None or moment > self.event_time):
            self.event_time = moment


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
_decoder = msgspec.msgpack.Decoder(TaskResult)


def encode(result: TaskResult) -> bytes:
    return _encoder.encode(result)


def decode(data: bytes) -> TaskResult:
    return _decoder.decode(data)
