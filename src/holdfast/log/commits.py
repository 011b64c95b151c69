"""Commits: the objects that make a version exist.

Segments are written first and the commit last, so a reader that sees commit `v` finds every segment it names, and a
segment that no commit names has no effect. A commit carries a random id and its predecessor's: a driver that gets
*already exists* reads the commit back, and has won if the id is its own. The commit also carries everything that must
be the same on every replica (the clocks) and everything a restart needs (Spark's batch and its offsets, unchanged; the
positions of the sinks).

Changes to stores that aren't durable are listed separately, in `volatile`. Those segments are deleted after ten minutes
even though the commit names them; replicas that come later continue without them.
"""

import os
import socket
from typing import Final, NamedTuple

import msgspec

from holdfast.log import documents, names
from holdfast.log.segments import STATE, SegmentRef
from holdfast.words import NOTHING, TaskId, Version

FORMAT = 1


class Point(NamedTuple):
    """A version with the id of its commit. A log that was set back has two commits of a number, one per timeline."""

    version: Version
    commit: str


BEGINNING: Final = Point(NOTHING, "")
"""Where every timeline starts."""


class Clocks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Time at a version, in milliseconds: the wall clock, the app's event time, the largest event time per source."""

    wall: int
    event: int | None
    sources: dict[str, int]
    last_records: dict[str, int] = {}
    """In an app with several sources: the wall clock of the last version in which each had records."""


class SparkBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest Spark batch of a version: the query's id, the batch's id, and its entry in Spark's offset log.

    A version that the driver made without a batch has the one before it.
    """

    query: str
    batch: int
    offsets: str
    files: tuple[str, ...] = ()
    """Per source, a checksum of the files of a file source, whose offset is only a number; "" for other sources."""
    sources: tuple[str, ...] = ()
    """The names of the sources in the order of the entry."""
    earlier: dict[str, int] = {}
    """By query id, the last batch of each former checkpoint of this log."""


class Writer(msgspec.Struct, frozen=True):
    """The driver that wrote a commit: its random id, its process, and its epoch (see `holdfast.log.leadership`)."""

    id: str
    host: str
    pid: int
    epoch: int

    def __str__(self) -> str:
        """
        >>> str(Writer("d1", "host", 42, 3))
        'process 42 on host (driver d1, epoch 3)'
        """
        return f"process {self.pid} on {self.host} (driver {self.id}, epoch {self.epoch})"

    @classmethod
    def here(cls, driver: str, epoch: int) -> "Writer":
        """This process, as the driver with this id."""
        return cls(driver, socket.gethostname(), os.getpid(), epoch)


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the app."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)  # with a factory it is always written
    version: int
    id: str
    previous: str | None
    log: str
    app: int
    clocks: Clocks
    spark: SparkBatch | None
    segments: dict[str, tuple[SegmentRef, ...]]
    counts: dict[str, int]
    writer: Writer
    volatile: dict[str, tuple[SegmentRef, ...]] = {}
    """Changes to stores that aren't durable, by task. An object named here may already be deleted."""
    sinks: dict[str, int] = {}
    """By sink, the newest version that it had written before this commit."""

    @property
    def point(self) -> Point:
        return Point(Version(self.version), self.id)

    def of_task(self, task: TaskId) -> tuple[SegmentRef, ...]:
        """The task's segments in the order they are applied; empty if it changed nothing."""
        return self.segments.get(str(task), ())

    def volatile_of(self, task: TaskId) -> tuple[SegmentRef, ...]:
        """The task's segments of stores that aren't durable."""
        return self.volatile.get(str(task), ())

    def changes(self, task: TaskId) -> bool:
        """Whether the version has anything for the task."""
        name = str(task)
        return name in self.segments or name in self.volatile

    def objects_of_tasks(self) -> dict[str, str]:
        """By task, the first object that it needs; only tasks for which not all is in the commit itself."""
        entries = (*self.volatile.items(), *self.segments.items())
        return {task: ref.name for task, refs in entries for ref in reversed(refs) if ref.name is not None}

    def state_bytes(self, task: TaskId) -> int:
        """How many bytes of the log this version has for one task's state."""
        return sum([part.length for ref in self.of_task(task) for part in ref.parts if part.type == STATE])

    def segment_names(self) -> frozenset[str]:
        """The objects that this commit needs."""
        return frozenset(ref.name for refs in self.segments.values() for ref in refs if ref.name is not None)


def encode(commit: Commit) -> bytes:
    return documents.encode(commit)


def decode(data: bytes, version: Version, log: str, *, place: str) -> Commit:
    """A commit read back, checked against the name it was found under and the log it was found in."""
    name = names.commit(version)
    commit = documents.decode(data, Commit, name=name, place=place, known=FORMAT)
    if commit.version != version:
        raise documents.damaged(name, place, f"it holds version {commit.version}")
    if commit.log != log:
        raise documents.damaged(name, place, f"it belongs to the log {commit.log}, and this is the log {log}")
    return commit
