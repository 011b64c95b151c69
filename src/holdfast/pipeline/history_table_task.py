"""One task of a table from a changelog that keeps its history: each row is put at its own time, in whatever order.

Usually a key has one row in a version, which is newer than its latest one: such rows are put as columns. Tombstones,
older rows and keys with several rows are put one at a time, with their history read in bulk before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.segments import STATE
from holdfast.pipeline.results import Tally, of_store
from holdfast.pipeline.store_state import Budget, StoreState
from holdfast.pipeline.table_join_task import deletions
from holdfast.pipeline.table_task import TableWork
from holdfast.pipeline.task import READ_ROWS, Part, check_own, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import Cells, pack_many, unpack_many
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.kinds.base import REFUSED
from holdfast.stores.layouts.as_of import beginnings, in_history
from holdfast.stores.layouts.base import read_note
from holdfast.stores.layouts.timed import noted_number
from holdfast.stores.layouts.versioned import DELETED, RowHistory, VersionedWriter
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId


class _Puts(NamedTuple):
    """Rows to put: keys, their beginnings in the history, event times, and rows; a null row is a tombstone."""

    keys: pa.BinaryArray
    own: pa.BinaryArray
    times: pa.Array
    rows: pa.BinaryArray

    def filter(self, chosen: pa.BooleanArray) -> "_Puts":
        return _Puts(*(each.filter(chosen) for each in self))


@dataclass(frozen=True)
class HistoryTableWork(TableWork):
    """What every task of a table with a history does in one version."""

    def _parts(self, task: TaskId, batches: Iterable[pa.RecordBatch], state: TaskState, tally: Tally) -> Iterator[Part]:
        gathered: list[pa.Table] = []
        for chunk in chunks(batches, min(READ_ROWS, self.limits.chunk_rows)):
            records, dead = self.columns.usable(chunk, self.name, tally)
            yield from dead
            gathered.append(records)
        if not sum(map(len, gathered)):
            return
        puts = self._puts(task, pa.concat_tables(gathered))
        changes = self._changes(puts, state, tally)
        if changes.num_rows:
            yield STATE, self.store.name, changes
            yield from deletions(self.store, changes, puts.keys, puts.times)

    def _puts(self, task: TaskId, records: pa.Table) -> _Puts:
        assert self.columns.time is not None
        key = [whole(records[name]) for name in self.columns.keys]
        check_own(self.store.key, key, task, self.limits.partitions)
        keys, own = encode_keys(self.store.key, key), beginnings(self.store.key, key)
        return _Puts(keys, own, whole(records[self.columns.time]), self._rows(records))

    def _changes(self, puts: _Puts, state: TaskState, tally: Tally) -> pa.Table:
        bytes_ = StoreState(self.store.name, state, Budget(self.limits.state_bytes))
        entries = RowHistory(self.store, bytes_, self.now)
        kept = pc.greater_equal(puts.times, entries.kept_after)
        if refused := len(puts.keys) - pc.sum(kept).as_py():
            tally.add(of_store(self.store.name, REFUSED), refused)
            puts = puts.filter(kept)
        tally.add("keys", len(puts.keys))
        before = state.store(self.store.name)
        before_puts, deleted = before.get(puts.keys), noted_number(read_note(before, DELETED))
        latest = unpack_many(before_puts)
        old = in_history(self.store, self.now, latest, deleted, puts.times)
        simple = _alone(puts, latest, old, deleted)
        self._put_one_by_one(puts.filter(pc.invert(simple)), old.filter(pc.invert(simple)), bytes_, entries)
        new, cells = puts.filter(simple), before_puts.filter(simple)
        writer = VersionedWriter(self.store, self.version, self.now, before, tally.add)
        changed = writer.after(new.keys, cells, new.times, lambda _: new.rows)
        if writer.newest is not None:
            entries.note_slice(writer.newest)
        bytes_.settle()
        return _without_same(self.store, pa.concat_tables([changed, bytes_.table()]), puts.keys, before_puts)

    def _put_one_by_one(self, puts: _Puts, old: pa.BooleanArray, bytes_: StoreState, entries: RowHistory) -> None:
        if not len(puts.keys):
            return
        late = puts.own.filter(old).to_pylist(), puts.times.filter(old).to_pylist()
        bytes_.prefetch(puts.keys.to_pylist(), entries.ranges(*late, bytes, lambda first, _: (first, None)))
        cells = pack_many(puts.rows, puts.times, schema=self.store.schema)
        columns = (each.to_pylist() for each in (puts.keys, puts.own, cells, puts.times))
        for key, beginning, cell, time in zip(*columns, strict=True):
            entries.put(key, beginning, cell, time)


def _without_same(spec: StoreSpec, changes: pa.Table, keys: pa.BinaryArray, before: pa.BinaryArray) -> pa.Table:
    """The changes without latest rows that are as they were. `before` are the latest cells of these keys at `v-1`."""
    at = pc.index_in(whole(changes["key"]), value_set=keys)
    then = unpack_many(before.take(at))
    now = unpack_many(pc.if_else(pc.is_valid(at), whole(changes["value"]), pa.scalar(None, pa.binary())))
    same_row = pc.equal(now.payloads, newest_rows(spec, then.payloads, then.schemas))
    same = pc.and_(same_row, pc.equal(now.timestamps, then.timestamps))
    return changes.filter(pc.invert(pc.fill_null(same, False)))


def _alone(puts: _Puts, latest: Cells, old: pa.BooleanArray, deleted: int | None) -> pa.BooleanArray:
    """Which rows are the only ones of their keys, no tombstones, and newer than everything their keys have."""
    coded = puts.keys.dictionary_encode()
    places = coded.indices.to_numpy()
    once = pa.array(np.bincount(places, minlength=len(coded.dictionary))[places] == 1)
    newer = pc.and_(once, pc.and_not(pc.is_valid(puts.rows), old))
    if deleted is None:
        return newer
    return pc.and_(newer, pc.or_(pc.is_valid(latest.payloads), pc.greater(puts.times, deleted)))
