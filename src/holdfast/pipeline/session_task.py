"""Sessions of one task: the batch's records and the open sessions at `v-1` become new sessions.

A session that has closed never changes: a record near it starts a new one. So a session's final result is sent once,
and only open sessions are read: those that end no earlier than the event clock minus gap and grace.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.session_merging import Union
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import Cells, unpack_many
from holdfast.stores.formats.rows import decode_rows
from holdfast.stores.layouts.key_ranges import beginnings_of, ranges_of_keys
from holdfast.stores.layouts.windowed_rows import Times, own_keys, own_keys_of, split_own_keys
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.topology.reducers import Reducer
from holdfast.topology.row_merging import reduced
from holdfast.topology.windows import SessionWindows


class StoredSessions(NamedTuple):
    """Open sessions at `v-1` of keys of the batch."""

    own: pa.BinaryArray
    keys: Times
    """The number of each session's key."""
    starts: Times
    ends: Times
    rows: pa.Table


class MergedSessions(NamedTuple):
    """Rows of the batch and open sessions at `v-1`, in groups that become one session each."""

    key: list[pa.Array]
    """The key of each row of the batch."""
    times: Times
    rows: pa.Table
    """The rows of the batch, then those of stored sessions."""
    stored: StoredSessions
    union: Union
    chosen: npt.NDArray[np.bool_]
    """Which groups the batch changes: those with rows of the batch that are open."""


class ChangedSessions(NamedTuple):
    """What the batch makes of the sessions."""

    own: pa.BinaryArray
    rows: pa.Table
    is_new: pa.BooleanArray
    """Whether no session with this start and end was stored."""
    gone: pa.BinaryArray
    """Own keys of sessions that are part of others now."""
    late: npt.NDArray[np.bool_]
    """Which rows of the batch are late."""


@dataclass(frozen=True)
class SessionMerger:
    """Merges the rows of one task into its sessions. A reducer named `time` keeps the latest event time of rows."""

    spec: StoreSpec
    windows: SessionWindows
    reducers: tuple[Reducer, ...]
    time: str
    state: TaskState
    event: int

    def merged(self, key: list[pa.Array], times: Times, rows: pa.Table) -> MergedSessions:
        """What becomes one session, of rows with these keys and times."""
        beginnings = beginnings_of(self.spec, own_keys(self.spec, key, times, times)).dictionary_encode()
        keys = beginnings.indices.to_numpy().astype(np.int64)
        stored = self._stored(beginnings.dictionary, keys, times)
        union = Union.of(
            np.concatenate([keys, stored.keys]),
            np.concatenate([times, stored.starts]),
            np.concatenate([times, stored.ends]),
            self.windows.gap_ms,
        )
        touched = np.zeros(len(union.starts), dtype=bool)
        touched[union.groups[union.members < len(times)]] = True
        is_open = union.ends + np.int64(self.windows.gap_ms + self.windows.grace_ms) >= self.event
        return MergedSessions(key, times, pa.concat_tables([rows, stored.rows]), stored, union, touched & is_open)

    def changed(self, found: MergedSessions) -> ChangedSessions:
        """The sessions that rows of the batch change."""
        times, union, chosen = found.times, found.union, found.chosen
        of_batch = union.members < len(times)
        some = np.zeros(len(union.starts), dtype=np.int64)
        some[union.groups[of_batch]] = union.members[of_batch]  # any row of the batch in a group has its key
        late = np.zeros(len(times), dtype=bool)
        late[union.members[of_batch]] = ~chosen[union.groups[of_batch]]
        members, groups = union.of_groups(chosen)
        key = [column.take(pa.array(some[chosen])) for column in found.key]
        is_stored = members >= len(times)
        before, into = members[is_stored] - len(times), groups[is_stored]
        stored = found.stored
        same = (stored.starts[before] == union.starts[into]) & (stored.ends[before] == union.ends[into])
        is_new = chosen.copy()
        is_new[into[same]] = False
        return ChangedSessions(
            own_keys(self.spec, key, union.starts[chosen], union.ends[chosen]),
            reduced(self.reducers, found.rows.take(pa.array(members)), groups),
            is_new=pa.array(is_new[chosen]),
            gone=stored.own.take(pa.array(before[~same])),
            late=late,
        )

    def _stored(self, beginnings: pa.BinaryArray, keys: Times, times: Times) -> StoredSessions:
        """The open sessions that are near the batch's records."""
        gap = np.int64(self.windows.gap_ms)
        earliest = np.full(len(beginnings), np.iinfo(np.int64).max)
        latest = np.full(len(beginnings), np.iinfo(np.int64).min)
        np.minimum.at(earliest, keys, times - gap)
        np.maximum.at(latest, keys, times + gap)
        earliest = np.maximum(earliest, np.int64(self.event) - gap - np.int64(self.windows.grace_ms))
        ranges = ranges_of_keys(self.spec, self.state.store(self.spec.name), beginnings, earliest)
        found = self.state.scan_many(self.spec.name, ranges)
        own = own_keys_of(whole(found["key"]))
        cells = unpack_many(whole(found["value"]))
        parts = split_own_keys(self.spec, own)
        of_key = pc.index_in(beginnings_of(self.spec, own), value_set=beginnings).to_numpy().astype(np.int64)
        near = (parts.ends >= earliest[of_key]) & (parts.starts <= latest[of_key])
        chosen = pa.array(near)
        cells = Cells(*(column.filter(chosen) for column in cells))
        columns = decode_rows(self.spec.columns, newest_rows(self.spec, cells.payloads, cells.schemas))
        named = dict(zip(self.spec.columns.names, columns, strict=True)) | {self.time: cells.timestamps}
        fields = [field.name for reducer in self.reducers for field in reducer.fields]
        rows = pa.table({name: named[name] for name in fields})
        return StoredSessions(own.filter(chosen), of_key[near], parts.starts[near], parts.ends[near], rows)
