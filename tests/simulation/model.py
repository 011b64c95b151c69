"""What has to be true: the input by position, the versions that were committed, and the exact state at each of them.

The model sees every object the moment it is stored. It computes the state from the input positions that a commit names
and never looks at a segment, so a record that was lost or counted twice shows as a difference.
"""

import json
from dataclasses import dataclass, field

from holdfast.chance import Random
from holdfast.log.commits import Commit, SparkBatch
from holdfast.words import NOTHING, TaskId, Version

COUNTS, FIRSTS = "counts", "firsts"
STORES = (COUNTS, FIRSTS)
State = dict[str, dict[bytes, bytes]]
"""By store, the entries of one task."""


class Violation(AssertionError):
    """An invariant is broken."""


@dataclass(frozen=True)
class Record:
    """A record of the input: one more for its key, or the end of the key."""

    position: int
    key: int
    ends: bool

    @property
    def bytes(self) -> bytes:
        return b"\x01key-%02d" % self.key


def records_of(random: Random, count: int, keys: int) -> list[Record]:
    return [Record(position, drawn % keys, drawn > 230) for position, drawn in enumerate(random.randbytes(count))]


def batch_of(number: int, start: int, end: int) -> SparkBatch:
    return SparkBatch(query="query", batch=number, offsets=f'v1\n{{}}\n{{"start":{start},"end":{end}}}')


def positions_of(batch: SparkBatch) -> tuple[int, int]:
    found = json.loads(batch.offsets.splitlines()[2])
    return found["start"], found["end"]


@dataclass
class Model:
    records: list[Record]
    partitions: int
    commits: dict[Version, Commit] = field(default_factory=dict)
    states: dict[tuple[Version, TaskId], State] = field(default_factory=dict)
    rows: dict[Version, dict[bytes, int]] = field(default_factory=dict)
    """By version, the keys that it changed and their new counts: what sinks get."""
    newest: Version = NOTHING
    unbelieved: dict[str, Version] = field(default_factory=dict)
    """The versions of commits that a driver which slept created under a number that was cleaned, by id."""

    def __post_init__(self) -> None:
        for task in self.tasks:
            self.states[NOTHING, task] = {store: {} for store in STORES}

    @property
    def tasks(self) -> list[TaskId]:
        return [TaskId(0, number) for number in range(self.partitions)]

    def task_of(self, record: Record) -> TaskId:
        return TaskId(0, record.key % self.partitions)

    def committed(self, commit: Commit) -> None:
        """A commit object was stored."""
        version = Version(commit.version)
        if version <= self.newest:
            if version in self.commits and self.commits[version].id != commit.id:
                self.unbelieved[commit.id] = version
            return
        before = self.commits.get(self.newest)
        if version != self.newest + 1 or commit.previous != (before.id if before else None):
            raise Violation(f"version {version} doesn't follow version {self.newest}: it names {commit.previous}")
        if before is not None and commit.writer.epoch < before.writer.epoch:
            raise Violation(
                f"the driver of epoch {commit.writer.epoch} committed version {version} after epoch "
                f"{before.writer.epoch} had committed {before.version}"
            )
        if before is not None and commit.clocks.wall < before.clocks.wall:
            raise Violation(f"the wall clock of version {version} is before that of version {before.version}")
        self._apply(version, self._new_records(commit, before))
        self.commits[version] = commit
        self.newest = version

    def _new_records(self, commit: Commit, before: Commit | None) -> list[Record]:
        """The records that a version adds: none may be left out, none may come twice."""
        assert commit.spark is not None
        last = -1 if before is None or before.spark is None else before.spark.batch
        if commit.spark.batch == last:
            return []  # a version without a batch
        start, end = positions_of(commit.spark)
        done = 0 if before is None or before.spark is None else positions_of(before.spark)[1]
        if commit.spark.batch != last + 1 or start != done:
            raise Violation(
                f"version {commit.version} has batch {commit.spark.batch} from position {start}; the one before it "
                f"has batch {last} up to {done}"
            )
        return self.records[start:end]

    def _apply(self, version: Version, records: list[Record]) -> None:
        changed: dict[bytes, int] = {}
        for task in self.tasks:
            own = [record for record in records if self.task_of(record) == task]
            before = self.states[Version(version - 1), task]
            if not own:
                self.states[version, task] = before
                continue
            counts, firsts = dict(before[COUNTS]), dict(before[FIRSTS])
            for record in own:
                if record.ends:
                    counts.pop(record.bytes, None)
                    firsts.pop(record.bytes, None)
                else:
                    counts[record.bytes] = b"%d" % (int(counts.get(record.bytes, b"0")) + 1)
                    firsts.setdefault(record.bytes, b"%d" % record.position)
                changed[record.bytes] = int(counts.get(record.bytes, b"0"))
            self.states[version, task] = {COUNTS: counts, FIRSTS: firsts}
        self.rows[version] = changed
