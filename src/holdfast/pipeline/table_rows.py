"""The rows of a table as a task of another sub-topology reads them.

They are those after this version's changes: the table's task of the same partition has sealed them, and all others are
read at `v-1`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import STATE, SegmentRef
from holdfast.pipeline.record_columns import last_per_key
from holdfast.pipeline.task_state import NO_ENTRIES, TaskState
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import NO_TIMESTAMP, Cells, unpack_many
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.row_columns import decode_columns
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId


@dataclass(frozen=True)
class LookedUpTable:
    """A table as a task of another sub-topology reads it."""

    subtopology: int
    store: StoreSpec
    sealed: tuple[tuple[int, tuple[SegmentRef, ...]], ...] = ()
    """By partition, the segments that the table's tasks have written in this version."""

    def after(self, sealed: Mapping[str, tuple[SegmentRef, ...]]) -> "LookedUpTable":
        """The same table, after these tasks have sealed their changes; those of other tables don't matter."""
        tasks = ((TaskId.parse(name), refs) for name, refs in sealed.items())
        own = tuple((task.partition, refs) for task, refs in tasks if task.subtopology == self.subtopology)
        return replace(self, sealed=own) if own else self

    def changes(self, partition: int, log: Log) -> pa.Table:
        """The changes of this version in one partition, one row per stored key."""
        refs = dict(self.sealed).get(partition, ())
        parts = [
            log.read_part(ref, part)
            for ref in refs
            for part in ref.parts
            if part.type == STATE and part.name == self.store.name
        ]
        return last_per_key(pa.concat_tables(parts), ("key",)) if parts else NO_ENTRIES


class FoundRows(NamedTuple):
    """Which keys have a row, the columns of the rows, and their event times, null where there is none."""

    there: pa.BooleanArray
    columns: Sequence[pa.Array]
    times: pa.Int64Array


class TableRows:
    """The rows of a table in one partition, after this version's changes."""

    def __init__(self, table: LookedUpTable, now: Now, partition: int, log: Log, state: TaskState) -> None:
        self._store, self._now = table.store, now
        self._before = state.of_task(TaskId(table.subtopology, partition))
        self._changes = table.changes(partition, log)

    def of(self, keys: pa.BinaryArray) -> FoundRows:
        """The rows of these keys."""
        return self._found(self._cells(keys))

    def before(self, keys: pa.BinaryArray) -> FoundRows:
        """The rows that these keys had at `v-1`, expired or not."""
        return self._rows(layout_of(self._store).split(unpack_many(self._before.get(self._store.name, keys)))[1])

    def _cells(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The stored cells under these keys."""
        cells = self._before.get(self._store.name, keys)
        if self._changes.num_rows:
            at = pc.index_in(keys, value_set=whole(self._changes["key"]))
            cells = pc.if_else(pc.is_null(at), cells, whole(self._changes["value"]).take(at))
        return cells

    def _found(self, cells: pa.BinaryArray) -> FoundRows:
        """Cells as rows, without those that have expired."""
        return self._rows(layout_of(self._store).shown(cells, self._now))

    def _rows(self, cells: Cells) -> FoundRows:
        fields = self._store.columns.fields
        rows = decode_columns(self._store, cells.payloads, cells.schemas)
        visible = [column for field, column in zip(fields, rows, strict=True) if not field.hidden_in]
        times = pc.if_else(pc.equal(cells.timestamps, NO_TIMESTAMP), pa.scalar(None, pa.int64()), cells.timestamps)
        return FoundRows(pc.is_valid(cells.payloads), visible, times)
