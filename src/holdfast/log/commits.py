"""Commits: the objects that make a version exist.

Segments are written first and the commit last, so whoever sees commit `v` finds every segment it names, and a segment
that no commit names never happened. A commit carries a random id and its predecessor's: whoever is told *already
exists* reads it back, and if the id is its own it has won. It also carries everything that must be the same on every
replica (the clocks) and everything a restart needs (Spark's batch and its offsets, verbatim).

What tasks changed in stores that aren't durable stands apart, in `volatile`. Those segments are cleaned after ten
minutes, whatever the commit says: whoever comes later does without them.
"""

import os
import socket

import msgspec

from holdfast.log import documents, names
from holdfast.log.segments import SegmentRef
from holdfast.words import TaskId, Version

FORMAT = 1


class Clocks(msgspec.Struct, frozen=True):
    """Time as of a version, in milliseconds: the wall's, the app's event time, and each source's largest event time."""

    wall: int
    event: int | None
    sources: dict[str, int]


class SparkBatch(msgspec.Struct, frozen=True):
    """The Spark batch a version holds: the query's id, the batch's id, and its entry in Spark's offset log."""

    query: str
    batch: int
    offsets: str


class Writer(msgspec.Struct, frozen=True):
    """The driver that wrote a commit."""

    id: str
    host: str
    pid: int

    @classmethod
    def here(cls, driver: str) -> "Writer":
        """This process, as the driver of that id."""
        return cls(driver, socket.gethostname(), os.getpid())


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
    """What was changed in stores that aren't durable, by task. An object named here may be gone."""

    def of_task(self, task: TaskId) -> tuple[SegmentRef, ...]:
        """The task's segments in the order they apply; none where it changed nothing."""
        return self.segments.get(str(task), ())

    def volatile_of(self, task: TaskId) -> tuple[SegmentRef, ...]:
        """The task's segments of stores that aren't durable."""
        return self.volatile.get(str(task), ())

    def segment_names(self) -> frozenset[str]:
        """The objects this commit stands on."""
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
