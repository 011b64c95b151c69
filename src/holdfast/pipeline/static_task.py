"""The task of a static table: compares its rows with the stored ones, and seals what differs.

A row that is new or has changed is put, and a stored key that the DataFrame doesn't have is deleted. If nothing
differs, nothing is written. Memory is that of the DataFrame's rows and a page of stored ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError, shown
from holdfast.log.log import Log
from holdfast.log.segments import STATE
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.results import Tally, TaskResult
from holdfast.pipeline.task import READ_ROWS, Limits, Part, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import pack_many, unpack_many
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.layouts.base import part
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version


class TwoRows(HoldfastError):
    """A static table has two rows of one key."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class StaticTableWork:
    """What the task of a static table does in the first version after a start. The driver sends it to a worker."""

    subtopology: int
    version: Version
    name: str
    store: StoreSpec
    columns: KeyedColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        segments = ([part] for part in self._parts(batches, state, tally))
        return write_segments(log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit)

    def _parts(self, batches: Iterable[pa.RecordBatch], state: TaskState, tally: Tally) -> Iterator[Part]:
        keys, rows = [pa.array([], pa.binary())], [pa.array([], pa.binary())]
        for chunk in chunks(batches, READ_ROWS):
            records, dead = self.columns.usable(chunk, self.name, tally)
            yield from dead
            if records.num_rows:
                keys.append(encode_keys(self.store.key, [whole(records[name]) for name in self.columns.keys]))
                rows.append(self._rows(records))
        changed = changes(self.store, pa.concat_arrays(keys), pa.concat_arrays(rows), state, self.now)
        tally.add("keys", changed.num_rows)
        for first in range(0, changed.num_rows, self.limits.chunk_rows):
            yield STATE, self.store.name, changed.slice(first, self.limits.chunk_rows)

    def _rows(self, records: pa.Table) -> pa.BinaryArray:
        fields = self.store.columns.fields
        values = (whole(records[name]) for name in self.columns.values)
        return encode_rows(
            self.store.columns, [each.cast(field.field_type.arrow) for each, field in zip(values, fields, strict=True)]
        )


def changes(store: StoreSpec, keys: pa.BinaryArray, rows: pa.BinaryArray, state: TaskState, now: Now) -> pa.Table:
    """What makes the stored rows the given ones."""
    _check_once(store, keys)
    differs = np.ones(len(keys), dtype=bool)
    gone = [pa.array([], pa.binary())]
    for page in _pages(store, state, now):
        at = pc.index_in(whole(page["key"]), value_set=keys)
        cells = unpack_many(whole(page["value"]))
        stored = newest_rows(store, cells.payloads, cells.schemas)
        same = pc.fill_null(pc.equal(stored, rows.take(at)), False)
        differs[at.filter(same).to_numpy(zero_copy_only=False)] = False
        gone.append(whole(page["key"]).filter(pc.is_null(at)))
    chosen, deleted = pa.array(differs), pa.concat_arrays(gone)
    cells_of = pack_many(rows.filter(chosen), None, schema=store.schema)
    new, old = part(keys.filter(chosen), cells_of), part(deleted, pa.nulls(len(deleted), pa.binary()))
    return pa.concat_tables([new, old])


def _pages(store: StoreSpec, state: TaskState, now: Now) -> Iterator[pa.Table]:
    """All stored entries, page by page."""
    for start, stop in layout_of(store).areas(now):
        while (page := state.scan(store.name, start, stop, limit=READ_ROWS)).num_rows:
            yield page
            start = page["key"][-1].as_py() + b"\x00"


def _check_once(store: StoreSpec, keys: pa.BinaryArray) -> None:
    counted = pc.value_counts(keys)
    if len(counted) < len(keys):
        twice = counted.field("values").filter(pc.greater(counted.field("counts"), 1))[:1]
        key = {
            name: column[0].as_py() for name, column in zip(store.key.names, decode_keys(store.key, twice), strict=True)
        }
        raise TwoRows(
            f"the static DataFrame of the global table {store.name!r} has {len(keys):,} rows with {len(counted):,} "
            f"keys: several rows have the key {shown(key)}. Make keys unique, such as with df.dropDuplicates([...])."
        )
