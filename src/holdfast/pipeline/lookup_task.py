"""One task of a join with a table: looks up the rows of its records' keys, as columns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.log.log import Log
from holdfast.log.segments import OUTPUT, SegmentRef
from holdfast.pipeline.history_rows import HistoryRows
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.results import Tally, TaskResult
from holdfast.pipeline.table_rows import FoundRows, LookedUpTable, TableRows
from holdfast.pipeline.task import READ_ROWS, Limits, Part, check_own, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.spec import VERSIONED
from holdfast.topology.derived import TIME
from holdfast.topology.lookups import How
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class LookupWork:
    """What every task of a join with a table does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    name: str
    table: LookedUpTable
    how: How
    output: pa.Schema
    columns: KeyedColumns
    now: Now
    limits: Limits

    def after(self, sealed: Mapping[str, tuple[SegmentRef, ...]]) -> "LookupWork":
        return replace(self, table=self.table.after(sealed))

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        segments = self._segments(task, batches, log, state, tally)
        return write_segments(log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit)

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        rows = self._rows(task, log, state)
        for chunk in chunks(batches, min(READ_ROWS, self.limits.chunk_rows)):
            yield list(self._parts(task, chunk, rows, tally))

    def _rows(self, task: TaskId, log: Log, state: TaskState) -> TableRows:
        kind = HistoryRows if self.table.store.kind == VERSIONED else TableRows
        return kind(self.table, self.now, task.partition, log, state)

    def _parts(self, task: TaskId, chunk: pa.Table, rows: TableRows, tally: Tally) -> Iterator[Part]:
        records, dead = self.columns.usable(chunk, self.name, tally)
        yield from dead
        if not records.num_rows:
            return
        key = [whole(records[name]) for name in self.columns.keys]
        check_own(self.table.store.key, key, task, self.limits.partitions)
        keys = encode_keys(self.table.store.key, key)
        if self.columns.time is None:
            times = pa.repeat(pa.scalar(self.now.wall, pa.int64()), records.num_rows)
        else:
            times = whole(records[self.columns.time])
        found = rows.as_of(keys, times) if isinstance(rows, HistoryRows) else rows.of(keys)
        joined = joined_rows(self.output, records.select(self.columns.values), found, times, self.how)
        if joined.num_rows:
            yield OUTPUT, self.name, joined


def joined_rows(schema: pa.Schema, records: pa.Table, found: FoundRows, times: pa.Array, how: How) -> pa.Table:
    """Records with the rows that they have found, and their event times."""
    columns = [*map(whole, records.columns), *found.columns, times]
    table = pa.table([each.cast(field.type) for each, field in zip(columns, schema, strict=True)], schema=schema)
    return table if how == "left" else table.filter(found.there)


def output_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a join's output part: with the event time of each row."""
    return schema.append(pa.field(TIME, pa.int64()))
