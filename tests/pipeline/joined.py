"""Joins of two streams without Spark: real tasks over a log in memory, batch after batch, and an oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from holdfast.log.segments import OUTPUT
from holdfast.pipeline.join_task import JoinWork
from holdfast.pipeline.task import Limits
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Schema
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.joining import How, bound
from holdfast.words import TaskId, Version
from tests.pipeline.outcomes import ReplicaState, done, log_of

KEY = Schema.of(player="string")
SIDES = (Schema.of(a="bigint", text="string"), Schema.of(b="bigint"))
TASK = TaskId(0, 0)
STRUCTS = [pa.struct(list(schema.arrow)) for schema in SIDES]


class Record(NamedTuple):
    """A record of the left or the right stream."""

    left: bool
    key: str
    time: int
    value: int


Row = tuple[str, int | None, int | None, int]
"""A key, the values of both sides, and the event time."""


@dataclass
class JoinedApp:
    """A join with one partition, version after version."""

    window: JoinWindow
    how: How = "inner"
    version: int = 0
    event: int | None = None
    late: int = 0
    emitted: list[list[Row]] = field(default_factory=list)
    """The rows of each version."""

    def __post_init__(self) -> None:
        self.join, self.stores = bound("pairs", self.how, self.window, KEY, *SIDES, engine="memory")
        self.log = log_of(*self.stores)
        self.state = ReplicaState(*(spec.name for spec in self.stores))

    def work(self) -> JoinWork:
        return JoinWork(
            subtopology=0,
            version=Version(self.version),
            now=Now(wall=self.version, event=self.event),
            name="pairs",
            key=KEY,
            join=self.join,
            stores=self.stores,
            keys=("k0",),
            sources=("main",),
            limits=Limits(1, 3, 0),
        )

    def run(self, records: Sequence[Record]) -> list[Row]:
        """Makes a version of these records. Returns its rows."""
        self.version += 1
        result = done(self.work().run(TASK, batches_of(records), self.log, self.state))
        rows: list[Row] = []
        for ref in result.segments:
            for part in ref.parts:
                if part.type == OUTPUT:
                    table = self.log.read_part(ref, part)
                    assert table["text"].to_pylist() == [None if a is None else str(a) for a in table["a"].to_pylist()]
                    columns = (table[name].to_pylist() for name in ("player", "a", "b", "_time"))
                    rows += list(zip(*columns, strict=True))
        self.state.apply(self.log, result.segments)
        self.late += sum(result.counts.get(f"late/pairs-{side}", 0) for side in ("left", "right"))
        if (seen := result.event_times.get("main")) is not None:
            self.event = seen if self.event is None else max(self.event, seen)
        self.emitted.append(rows)
        return rows


def batches_of(records: Sequence[Record]) -> list[pa.RecordBatch]:
    """Records as tasks get them, in batches of three."""
    return [batch_of(records[n : n + 3]) for n in range(0, len(records), 3)]


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    left = [{"a": each.value, "text": str(each.value)} if each.left else None for each in records]
    right = [None if each.left else {"b": each.value} for each in records]
    columns = {
        "k0": pa.array([each.key for each in records], pa.string()),
        "_time": pa.array([each.time for each in records], pa.int64()),
        "_of": pa.array([0] * len(records), pa.int32()),
        "_left": pa.array(left, STRUCTS[0]),
        "_right": pa.array(right, STRUCTS[1]),
        "_dead": pa.nulls(len(records), pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


@dataclass
class Oracle:
    """What a join should send on, by a plain program that looks at every pair."""

    window: JoinWindow
    how: How
    kept: list[Record] = field(default_factory=list)
    alone: list[Record] = field(default_factory=list)
    """Records without a match so far."""
    event: int | None = None
    late: int = 0

    def run(self, records: Sequence[Record]) -> list[Row]:
        rows = [self._row(each, each) for each in self.alone if self._comes_out(each) and not self._is_open(each)]
        self.alone = [each for each in self.alone if self._is_open(each)]
        for record in records:
            if not self._is_open(record):
                self.late += 1
                continue
            matches = [other for other in self.kept if self._is_open(other) and self._belong(record, other)]
            rows += [self._row(record, other) for other in matches]
            self.alone = [each for each in self.alone if not any(each is other for other in matches)]
            if not matches:
                self.alone.append(record)
            self.kept.append(record)
        times = [each.time for each in records] + ([] if self.event is None else [self.event])
        self.event = max(times, default=None)
        return rows

    def _comes_out(self, record: Record) -> bool:
        return self.how == "outer" or (self.how == "left" and record.left)

    def _is_open(self, record: Record) -> bool:
        window = self.window if record.left else self.window.mirrored()
        return self.event is None or record.time + window.after_ms + window.grace_ms >= self.event

    def _belong(self, one: Record, other: Record) -> bool:
        if one.left == other.left or one.key != other.key:
            return False
        left, right = (one, other) if one.left else (other, one)
        return left.time - self.window.before_ms <= right.time <= left.time + self.window.after_ms

    def _row(self, one: Record, other: Record) -> Row:
        values = {each.left: each.value for each in (one, other)}
        return one.key, values.get(True), values.get(False), max(one.time, other.time)
