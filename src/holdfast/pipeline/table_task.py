"""One task of a table from a changelog: the newest row of each key replaces the stored one, as columns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import STATE
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.results import Tally, TaskResult
from holdfast.pipeline.rewriting import rewritten
from holdfast.pipeline.table_join_task import deletions
from holdfast.pipeline.task import Limits, Part, check_own
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.layouts.plain import PlainWriter
from holdfast.stores.spec import StoreSpec
from holdfast.topology.tables import TIME_OF_ROW
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class TableWork:
    """What every task of a table does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    name: str
    store: StoreSpec
    columns: KeyedColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        volatile = () if self.store.durable else (self.store.name,)
        segments = self._segments(task, batches, state, tally)
        return write_segments(
            log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit, volatile=volatile
        )

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        before = state.store(self.store.name)
        first = rewritten(self.store, self.now, self.limits.rewrite_entries, before, tally)
        yield [*first, *self._parts(task, batches, state, tally)]

    def _parts(self, task: TaskId, batches: Iterable[pa.RecordBatch], state: TaskState, tally: Tally) -> Iterator[Part]:
        newest, dead = self.columns.last_of_each_key(batches, self.limits.chunk_rows, self.name, tally)
        yield from dead
        if newest is None:
            return
        key = [whole(newest[name]) for name in self.columns.keys]
        check_own(self.store.key, key, task, self.limits.partitions)
        tally.add("keys", newest.num_rows)
        writer = PlainWriter(self.store, self.version, self.now, state.store(self.store.name), tally.add)
        times = None if self.columns.time is None else whole(newest[self.columns.time])
        keys, rows = encode_keys(self.store.key, key), self._rows(newest)
        changes = writer.replace(keys, times, rows, partial(_are_changed, self.store, times, rows))
        if changes is not None:
            yield STATE, self.store.name, changes
            yield from deletions(self.store, changes, keys, times)

    def _rows(self, newest: pa.Table) -> pa.BinaryArray:
        """The rows as bytes, null for a tombstone."""
        *values, gone = (whole(newest[name]) for name in self.columns.values)
        fields = self.store.columns.fields
        if len(values) < len(fields):
            values.append(whole(newest[self.columns.time]))
        rows = encode_rows(
            self.store.columns, [v.cast(f.field_type.arrow) for v, f in zip(values, fields, strict=True)]
        )
        return pc.if_else(pc.fill_null(gone, False), pa.scalar(None, rows.type), rows)


def _are_changed(
    store: StoreSpec, times: pa.Array | None, rows: pa.BinaryArray, stored: pa.BinaryArray
) -> pa.BooleanArray:
    """Which rows replace the stored ones: those that differ and aren't older. Equal ones have the same event time."""
    changed = pc.fill_null(pc.not_equal(rows, stored), True)
    if times is None:
        return changed
    (before,) = decode_rows(store.columns, stored, {TIME_OF_ROW})
    return pc.and_(changed, pc.fill_null(pc.greater_equal(times, before), True))
