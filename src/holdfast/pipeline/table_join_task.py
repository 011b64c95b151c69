"""One task of a join of two tables: the rows of the keys that changed on either side, as columns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import OUTPUT, STATE
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.results import Tally, TaskResult
from holdfast.pipeline.rewriting import rewritten
from holdfast.pipeline.table_rows import LookedUpTable, TableRows
from holdfast.pipeline.task import Limits, Part, check_own
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.layouts.plain import PlainWriter
from holdfast.stores.spec import StoreSpec
from holdfast.topology.derived import TIME
from holdfast.topology.outputs import deletions_of
from holdfast.topology.table_joins import HowTables
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class TableJoinWork:
    """What every task of a join of two tables does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    name: str
    store: StoreSpec
    left: LookedUpTable
    right: LookedUpTable
    how: HowTables
    columns: KeyedColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        volatile = () if self.store.durable else (self.store.name,)
        segments = self._segments(task, batches, log, state, tally)
        return write_segments(
            log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit, volatile=volatile
        )

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        left, right = (TableRows(table, self.now, task.partition, log, state) for table in (self.left, self.right))
        yield list(self._parts(task, batches, state, left, right, tally))

    def _parts(
        self,
        task: TaskId,
        batches: Iterable[pa.RecordBatch],
        state: TaskState,
        left: TableRows,
        right: TableRows,
        tally: Tally,
    ) -> Iterator[Part]:
        old = state.store(self.store.name)
        yield from rewritten(self.store, self.now, self.limits.rewrite_entries, old, tally)
        changed, dead = self.columns.last_of_each_key(batches, self.limits.chunk_rows, self.name, tally)
        yield from dead
        if changed is None:
            return
        key = [whole(changed[name]) for name in self.columns.keys]
        check_own(self.store.key, key, task, self.limits.partitions)
        keys = encode_keys(self.store.key, key)
        mine, theirs = left.of(keys), right.of(keys)
        there = {
            "inner": pc.and_(mine.there, theirs.there),
            "left": mine.there,
            "outer": pc.or_(mine.there, theirs.there),
        }[self.how]
        rows = encode_rows(self.store.columns, [*mine.columns, *theirs.columns])
        rows = pc.if_else(there, rows, pa.scalar(None, rows.type))
        times = None
        if self.columns.time is not None:
            times = pc.max_element_wise(whole(changed[self.columns.time]), mine.times, theirs.times)
        yield from changed_rows(self, keys, times, rows, state, tally)


class JoinedTableWork(Protocol):
    """A task's work whose store has joined rows."""

    @property
    def store(self) -> StoreSpec: ...

    @property
    def version(self) -> Version: ...

    @property
    def now(self) -> Now: ...


def changed_rows(
    work: JoinedTableWork,
    keys: pa.BinaryArray,
    times: pa.Array | None,
    rows: pa.BinaryArray,
    state: TaskState,
    tally: Tally,
) -> list[Part]:
    """The part with those of these rows that differ from the stored ones, null to delete one."""
    writer = PlainWriter(work.store, work.version, work.now, state.store(work.store.name), tally.add)
    changes = writer.replace(keys, times, rows, lambda stored: pc.fill_null(pc.not_equal(rows, stored), True))
    if changes is None:
        return []
    tally.add("keys", changes.num_rows)
    return [(STATE, work.store.name, changes), *deletions(work.store, changes, keys, times)]


def deletions(spec: StoreSpec, changes: pa.Table, keys: pa.BinaryArray, times: pa.Array | None) -> list[Part]:
    """The part with the event times at which these changes delete keys, for streams that are made of them.

    The later of several times of a key counts.
    """
    gone = whole(changes["key"].filter(pc.is_null(changes["value"])))
    known = pc.is_in(keys, value_set=gone)
    if times is None or not pc.any(known).as_py():
        return []
    table = pa.table({"key": keys.filter(known), TIME: times.filter(known)})
    latest = table.group_by("key", use_threads=False).aggregate([(TIME, "max")]).rename_columns({f"{TIME}_max": TIME})
    return [(OUTPUT, deletions_of(spec.name), latest)]
