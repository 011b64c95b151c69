"""One task of a join with a table: looks up the rows of its records' keys, as columns.

The table's rows are those after this version's changes: the table's task of the same partition has sealed them, and all
others are read at `v-1`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.segments import OUTPUT, STATE, SegmentRef
from holdfast.pipeline.record_columns import KeyedColumns, last_per_key
from holdfast.pipeline.results import Tally, TaskResult, refused
from holdfast.pipeline.task import READ_ROWS, Limits, Part, check_own, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.row_columns import decode_columns
from holdfast.stores.spec import StoreSpec
from holdfast.topology.derived import TIME
from holdfast.topology.lookups import How
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class LookedUpTable:
    """A table as a task of another sub-topology reads it."""

    topology: int
    store: StoreSpec
    sealed: tuple[tuple[int, tuple[SegmentRef, ...]], ...] = ()
    """By partition, the segments that the table's tasks have written in this version."""

    def changes(self, partition: int, log: Log) -> pa.Table | None:
        """The changes of this version in one partition, one row per key; None if there are none."""
        refs = dict(self.sealed).get(partition, ())
        parts = [
            log.read_part(ref, part)
            for ref in refs
            for part in ref.parts
            if part.type == STATE and part.name == self.store.name
        ]
        return last_per_key(pa.concat_tables(parts), ("key",)) if parts else None


@dataclass(frozen=True)
class LookupWork:
    """What every task of a join with a table does in one version. The driver sends it to the workers."""

    topology: int
    version: Version
    name: str
    table: LookedUpTable
    how: How
    output: pa.Schema
    columns: KeyedColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        written = WrittenSegments()
        try:
            rows = TableRows(self.table, self.now, task.partition, log, state)
            for chunk in chunks(batches, min(READ_ROWS, self.limits.chunk_rows)):
                if parts := list(self._parts(task, chunk, rows, tally)):
                    inline = self.limits.inline_limit
                    written += log.write_parts(task, self.version, parts, inline_limit=inline)
        except HoldfastError as error:
            return refused(task, error)
        return tally.done(task, written)

    def _parts(self, task: TaskId, chunk: pa.Table, rows: "TableRows", tally: Tally) -> Iterator[Part]:
        records, dead = self.columns.usable(chunk, self.name, tally)
        yield from dead
        if not records.num_rows:
            return
        key = [whole(records[name]) for name in self.columns.keys]
        check_own(self.table.store.key, key, task, self.limits.partitions)
        found = rows.of(encode_keys(self.table.store.key, key))
        joined = [*(whole(records[name]) for name in self.columns.values), *found.columns]
        if self.columns.time is None:
            joined.append(pa.repeat(pa.scalar(self.now.wall, pa.int64()), records.num_rows))
        else:
            joined.append(whole(records[self.columns.time]))
        arrays = [array.cast(field.type) for array, field in zip(joined, self.output, strict=True)]
        table = pa.table(arrays, schema=self.output)
        table = table if self.how == "left" else table.filter(found.there)
        if table.num_rows:
            yield OUTPUT, self.name, table


class FoundRows(NamedTuple):
    """Which keys have a row, and the columns of the rows."""

    there: pa.BooleanArray
    columns: Sequence[pa.Array]


class TableRows:
    """The rows of a table in one partition, after this version's changes."""

    def __init__(self, table: LookedUpTable, now: Now, partition: int, log: Log, state: TaskState) -> None:
        self._store, self._now = table.store, now
        self._before = state.of_task(TaskId(table.topology, partition))
        self._changes = table.changes(partition, log)

    def of(self, keys: pa.BinaryArray) -> FoundRows:
        """The rows of these keys."""
        store = self._store
        cells = self._before.get(store.name, keys)
        if self._changes is not None:
            at = pc.index_in(keys, value_set=whole(self._changes["key"]))
            cells = pc.if_else(pc.is_null(at), cells, whole(self._changes["value"]).take(at))
        shown = layout_of(store).shown(cells, self._now)
        rows = decode_columns(store, shown.payloads, shown.schemas)
        visible = [column for field, column in zip(store.columns.fields, rows, strict=True) if not field.hidden_in]
        return FoundRows(pc.is_valid(shown.payloads), visible)


def output_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a join's output part: with the event time of each row."""
    return schema.append(pa.field(TIME, pa.int64()))
