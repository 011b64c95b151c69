"""One task of a table from a changelog that keeps its history: each row is put at its own time, in whatever order.

Rows that are newer than all others of their key are the usual case, and need the latest entry only. The history is
read, in bulk, for keys with an older row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.log.segments import STATE
from holdfast.pipeline.results import Tally, of_store
from holdfast.pipeline.store_state import Budget, StoreState
from holdfast.pipeline.table_task import TableWork
from holdfast.pipeline.task import READ_ROWS, Part, check_own, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import pack_many, unpack_many
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.kinds.base import REFUSED
from holdfast.stores.layouts.as_of import beginnings, in_history
from holdfast.stores.layouts.timed import NEWEST, noted_number
from holdfast.stores.layouts.versioned import DELETED, VersionedEntries
from holdfast.words import TaskId


@dataclass(frozen=True)
class HistoryTableWork(TableWork):
    """What every task of a table with a history does in one version."""

    def _parts(self, task: TaskId, batches: Iterable[pa.RecordBatch], state: TaskState, tally: Tally) -> Iterator[Part]:
        bytes_ = StoreState(self.store.name, state, Budget(self.limits.state_bytes))
        entries = VersionedEntries(self.store, bytes_, self.now)
        for chunk in chunks(batches, min(READ_ROWS, self.limits.chunk_rows)):
            records, dead = self.columns.usable(chunk, self.name, tally)
            yield from dead
            if records.num_rows:
                self._put(task, records, bytes_, entries, tally)
        bytes_.settle()
        if bytes_.changes:
            yield STATE, self.store.name, bytes_.table()

    def _put(
        self, task: TaskId, records: pa.Table, bytes_: StoreState, entries: VersionedEntries, tally: Tally
    ) -> None:
        assert self.columns.time is not None
        key = [whole(records[name]) for name in self.columns.keys]
        check_own(self.store.key, key, task, self.limits.partitions)
        keys, own, times = (
            encode_keys(self.store.key, key),
            beginnings(self.store.key, key),
            whole(records[self.columns.time]),
        )
        cells = pack_many(self._rows(records), times, schema=self.store.schema)
        self._prefetch(keys, own, times, bytes_, entries)
        kept = 0
        for encoded, beginning, cell, time in zip(
            *(each.to_pylist() for each in (keys, own, cells, times)), strict=True
        ):
            if time >= entries.kept_after:
                entries.put(encoded, beginning, cell, time)
                kept += 1
        tally.add("keys", kept)
        if kept < len(keys):
            tally.add(of_store(self.store.name, REFUSED), len(keys) - kept)

    def _prefetch(
        self, keys: pa.BinaryArray, own: pa.BinaryArray, times: pa.Array, bytes_: StoreState, entries: VersionedEntries
    ) -> None:
        found = bytes_.get_many([NEWEST, DELETED, *keys.to_pylist()])
        latest, deleted = unpack_many(pa.array(found[2:], pa.binary())), noted_number(found[1])
        old = in_history(self.store, self.now, latest, deleted, times)
        late = own.filter(old).to_pylist(), times.filter(old).to_pylist()
        bytes_.prefetch((), entries.ranges(*late, bytes, lambda first, _: (first, None)))
