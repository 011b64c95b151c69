"""What a task returns to the driver: one small message for any size of batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.log import WrittenSegments
from holdfast.log.segments import SegmentRef
from holdfast.words import TaskId

USER = "user"
SKIPPED = "skipped"


class TaskDone(msgspec.Struct, frozen=True, tag="done"):
    """One task's part of a version."""

    task: str
    segments: tuple[SegmentRef, ...] = ()
    records: int = 0
    """How many records it read. Sub-topologies with the same source read the same records."""
    counts: dict[str, int] = {}
    event_times: dict[str, int] = {}
    """Source → the largest event time of its records."""
    volatile: tuple[SegmentRef, ...] = ()
    """Segments of stores that aren't durable."""
    sources: dict[str, int] = {}
    """Source → how many of its records it read, in a merged stream."""


class TaskRefused(msgspec.Struct, frozen=True, tag="refused"):
    """A task that failed, and why. It raises no exception, since Spark would only run the task again."""

    task: str
    category: ErrorCategory
    message: str


class FastPlanRejected(msgspec.Struct, frozen=True, tag="fast-plan-rejected"):
    """A task of a fast plan got an unusable record, or more than it can group."""

    task: str
    message: str


TaskResult = TaskDone | TaskRefused | FastPlanRejected


def refused(task: TaskId, error: HoldfastError) -> TaskRefused:
    """A task's result for an error. The message includes the error's type."""
    return TaskRefused(str(task), error.category, f"{type(error).__name__}: {error}")


@dataclass
class Tally:
    """The counts of a running task."""

    records: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    event_times: dict[str, int] = field(default_factory=dict)
    """Source → the largest event time of its records."""
    sources: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def saw(self, source: str, moment: int | None) -> None:
        """Notes the largest event time of some records of a source."""
        if moment is not None:
            self.event_times[source] = max(moment, self.event_times.get(source, moment))

    def read(self, source: str, number: int) -> None:
        """Counts records of a source."""
        self.sources[source] = self.sources.get(source, 0) + number

    def read_numbered(self, sources: Sequence[str], numbers: pa.Array | pa.ChunkedArray) -> None:
        """Counts records by the numbers of their sources."""
        for number, source in enumerate(sources):
            self.read(source, pc.sum(pc.equal(numbers, number)).as_py() or 0)

    def done(self, task: TaskId, written: WrittenSegments) -> TaskDone:
        return TaskDone(
            str(task), written.segments, self.records, self.counts, self.event_times, written.volatile, self.sources
        )


def of_store(store: str, name: str) -> str:
    """The name of a store's count in a commit, such as of entries that expired.

    >>> of_store("user-sessions", "expired")
    'expired/user-sessions'
    """
    return f"{name}/{store}"


def of_user(name: str) -> str:
    """The name of a user's count in a commit."""
    return f"{USER}/{name}"


def of_skipped(processor: str) -> str:
    """The name of the count of records that a processor skipped because they failed."""
    return f"{SKIPPED}/{processor}"


def labelled_counts(counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """A commit's counts of stores and of users, by (what, store) and by ("user", name).

    >>> labelled_counts({"records": 9, of_store("user-sessions", "expired"): 2, of_user("cheaters"): 1})
    {('expired', 'user-sessions'): 2, ('user', 'cheaters'): 1}
    """
    named = ((name.partition("/"), number) for name, number in counts.items())
    return {(what, label): number for (what, _, label), number in named if label}


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[TaskResult] = msgspec.msgpack.Decoder(TaskResult)


def encode(result: TaskResult) -> bytes:
    return _encoder.encode(result)


def decode(data: bytes) -> TaskResult:
    return _decoder.decode(data)
