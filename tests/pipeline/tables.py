"""One task of a table, version after version, over a state in a dictionary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.log.segments import STATE_SCHEMA
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.results import TaskDone, TaskResult
from holdfast.pipeline.sinks.outputs import rows_of
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.access import Now
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.ranges import Ranges
from holdfast.stores.spec import KEY_VALUE, VERSIONED, RowValues, StoreSpec
from holdfast.topology.aggregates import count, sum
from holdfast.topology.outputs import AggregateRows
from holdfast.topology.reducers import Reducer, bind
from holdfast.words import TaskId, Version
from tests.log.making import next_commit
from tests.pipeline.outcomes import done, log_of

KEY = Schema((Field("player", "string"),))
VALUE = Schema((Field("n", "bigint"), Field("total", "bigint")))
REDUCERS = (bind("n", count(), None), bind("total", sum("x"), "bigint"))

Batch = Mapping[str, tuple[int, int]]
"""Player → (points, event time in ms): one record per player."""


def spec_with(value: Schema = VALUE, **options: Any) -> StoreSpec:
    kind = VERSIONED if "retention" in options else KEY_VALUE
    return store_spec("scores", kind, key=KEY, value=RowValues(value), codec=ROWS, **options)


@dataclass
class OneTask:
    """Runs a table's task and applies its writes, as a replica does."""

    spec: StoreSpec
    timed: bool = True
    cells: dict[bytes, bytes] = field(default_factory=dict)
    version: int = 0
    asked: list[int] = field(default_factory=list)
    reducers: tuple[Reducer, ...] = REDUCERS
    rewrite_entries: int = 0

    def __post_init__(self) -> None:
        self.log = log_of(self.spec)

    def attempt(self, batch: Batch, wall: int, *, event: int | None = None, chunk_rows: int = 1_000) -> TaskResult:
        """Runs the next version without applying it."""
        work = AggregationWork(
            subtopology=0,
            version=Version(self.version + 1),
            store=self.spec,
            reducers=self.reducers,
            columns=TaskColumns(
                keys=("k0",),
                partials=tuple(f"p{n}" for n in range(len(self.reducers))),
                rows="p0",
                time="_time" if self.timed else None,
                clocks=(("main", "_time"),) if self.timed else (),
            ),
            now=Now(wall, event),
            limits=Limits(1, chunk_rows, 1 << 20, rewrite_entries=self.rewrite_entries),
        )
        players, size = list(batch), max(1, chunk_rows // 10)
        few = [players[n : n + size] for n in range(0, len(players), size)]
        rows = [self._rows({player: batch[player] for player in some}) for some in few]
        return work.run(TaskId(0, 0), rows or [self._rows({})], self.log, _State(self))

    def step(self, batch: Batch, wall: int, *, event: int | None = None, chunk_rows: int = 1_000) -> TaskDone:
        result = done(self.attempt(batch, wall, event=event, chunk_rows=chunk_rows))
        self.written = (*result.segments, *result.volatile)
        self.changed = [table for ref in self.written for _, table in self.log.state_parts(ref)]
        for table in self.changed:
            for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
                if value is None:
                    self.cells.pop(key, None)
                else:
                    self.cells[key] = value
        self.version += 1
        return result

    def sent(self) -> list[dict[str, Any]]:
        """The rows of the last version that sinks get."""
        commit = next_commit(self.log, None, {"0_0": self.written})
        output = AggregateRows(self.spec.name, 0, self.spec)
        return [row for rows in rows_of(output, self.log, commit) for row in rows.table.to_pylist()]

    def area(self, first: int) -> dict[bytes, bytes]:
        """The bytes of one area of the store's key space."""
        return {key: value for key, value in self.cells.items() if key[0] == first}

    def _rows(self, batch: Batch) -> pa.RecordBatch:
        columns = {
            "_dead": pa.nulls(len(batch), pa.string()),
            "k0": pa.array(list(batch), pa.string()),
            "p0": pa.array([1] * len(batch), pa.int64()),
            "p1": pa.array([points for points, _ in batch.values()], pa.int64()),
        }
        if self.timed:
            columns["_time"] = pa.array([time for _, time in batch.values()], pa.int64())
        return pa.RecordBatch.from_pydict(columns)


def key_of(player: str) -> bytes:
    return encode_key(KEY, [player])


@dataclass(frozen=True)
class _State(TaskState):
    """The task's only store; records the number of keys per read."""

    task: OneTask

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        assert store == "scores"
        self.task.asked.append(len(keys))
        return pa.array([self.task.cells.get(key) for key in keys.to_pylist()], pa.binary())

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        assert store == "scores" and stop is not None and not reverse
        keys = sorted(key for key in self.task.cells if start <= key < stop)[:limit]
        return pa.table([keys, [self.task.cells[key] for key in keys]], schema=STATE_SCHEMA)

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        raise AssertionError("aggregates read keys and single ranges")

    def approximate_count(self, store: str) -> int:
        return len(self.task.cells)
