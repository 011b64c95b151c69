"""One task of a join with a global table: looks up the rows of its records, as columns.

All tasks read the table's one task: at `v-1`, and over it what that task has sealed in this version. A task asks for
the keys that its own records name, each once per chunk, so a small table costs one short message.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import OUTPUT
from holdfast.pipeline.lookup_task import joined_rows
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.results import Tally, TaskResult
from holdfast.pipeline.table_rows import FoundRows, LookedUpTable, TableRows
from holdfast.pipeline.task import READ_ROWS, Limits, Part, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import LONGEST_KEY, encode_keys
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import ONLY_PARTITION
from holdfast.topology.lookups import How
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class GlobalJoinWork:
    """What every task of a join with a global table does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    name: str
    table: LookedUpTable
    how: How
    output: pa.Schema
    on: tuple[str, ...]
    """The columns of a record that are looked up."""
    columns: KeyedColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        segments = self._segments(batches, log, state, tally)
        return write_segments(log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit)

    def _segments(
        self, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        rows: TableRows | None = None
        for chunk in chunks(batches, min(READ_ROWS, self.limits.chunk_rows)):
            # Only now: a task without records doesn't read what the table's task has sealed.
            rows = rows or TableRows(self.table, self.now, ONLY_PARTITION, log, state)
            yield list(self._parts(chunk, rows, tally))

    def _parts(self, chunk: pa.Table, rows: TableRows, tally: Tally) -> Iterator[Part]:
        records, dead = self.columns.usable(chunk, self.name, tally)
        yield from dead
        if not records.num_rows:
            return
        found = rows_by(self.table.store.key, [whole(records[name]) for name in self.on], rows)
        if self.columns.time is None:
            times = pa.repeat(pa.scalar(self.now.wall, pa.int64()), records.num_rows)
        else:
            times = whole(records[self.columns.time])
        values = [name for name in self.columns.values if name not in self.on]
        joined = joined_rows(self.output, records.select(values), found, times, self.how)
        if joined.num_rows:
            yield OUTPUT, self.name, joined


def rows_by(key: Schema, columns: Sequence[pa.Array], rows: TableRows) -> FoundRows:
    """The row of each record. One with a null, or with more bytes than a key can have, has none."""
    fits = reduce(pc.and_, (pc.is_valid(column) for column in columns))
    sizes = [
        pc.binary_length(column.cast(field.field_type.arrow)).cast(pa.int64())
        for field, column in zip(key.fields, columns, strict=True)
        if field.field_type.is_variable
    ]
    if sizes:
        fits = pc.and_(fits, pc.fill_null(pc.less_equal(reduce(pc.add, sizes), LONGEST_KEY), False))
    wanted = encode_keys(key, [column.filter(fits) for column in columns]).dictionary_encode()
    found = rows.of(wanted.dictionary)
    mask = fits.to_numpy(zero_copy_only=False)
    at = np.zeros(len(mask), np.int32)
    at[mask] = wanted.indices.to_numpy(zero_copy_only=False)
    places = pa.array(at, mask=~mask)
    there = pc.fill_null(found.there.take(places), False)
    return FoundRows(there, [each.take(places) for each in found.columns], found.times.take(places))
