"""The versioned layout: what the value of each key was at any time, for as long as the history is kept.

The latest value of a key is a plain entry; its timestamp says since when it is valid. Every earlier value is stored in
the slice of the time when it ended:

    0x02 | slice | 0x01 | key | valid to | valid from  →  cell

So the first entry that ends after a time is the one that was valid then, if it had started by then. The history is kept
for the retention. The latest value stays, and was valid at any time since it started, however long ago. A delete is an
empty entry that starts and ends at that time; without it, a late put before the delete would become the latest value.
It is dropped with its slice. From then on a put before it is refused, so no deleted value can come back.

A row of an aggregate is valid from the largest event time its key had by then or, in a stream without event time, from
the wall clock of the version that wrote it. So the rows of a key come in the order of time, and none is put between
others: a row that starts later than the row before it ends that row; one that starts at the same time replaces it. A
late record changes the latest row and leaves the history as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, OrderedBytes, StoreColumns
from holdfast.stores.formats.cells import pack_many, unpack, unpack_many
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.times import Row, time_at, time_bytes
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.layouts.areas import ENTRY_AREA, EXPIRY_AREA, NOTE_AREA, SLICE_AREA
from holdfast.stores.layouts.base import (
    EMPTY,
    BatchWriter,
    Count,
    Counted,
    Layout,
    Merge,
    latest,
    note_part,
    part,
    read_note,
)
from holdfast.stores.layouts.plain import PlainEntries
from holdfast.stores.layouts.slices import (
    first_live_slice,
    kept_after,
    slice_prefix,
    sliced_keys,
    slices_of,
    split_sliced,
)
from holdfast.stores.layouts.timed import NEWEST, NotedNumber, TimedEntries, noted_number, number_note
from holdfast.stores.scans import chained, close
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

DELETED: Final = NOTE_AREA + b"deleted"
"""The note of the latest time of any delete. A key without a latest value has no entry that ends after it."""

VALIDITY = (Field("$valid_to", "bigint"), Field("$valid_from", "bigint"))
"""What follows the key of an old row."""


class Old(NamedTuple):
    """An entry of the history. One that starts when it ends is a delete."""

    place: bytes
    cell: bytes
    valid_from: int
    valid_to: int


class VersionedEntries(TimedEntries):
    """The latest cell and the history of keys: `encoded` is the own key, `own` the beginning of its old entries."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._deleted = NotedNumber(DELETED, bytes_)
        self._notes.append(self._deleted)

    def latest(self, encoded: bytes) -> bytes | None:
        return self._bytes.get(encoded)

    def olds(self, own: bytes, after: int, *, reverse: bool = False) -> Iterator[Old]:
        """The entries in the history of a key that end after a time, in the order of their ends."""
        return _olds(self.scan_key(own, after + 1, None, reverse=reverse))

    def next_old(self, own: bytes, after: int) -> Old | None:
        row = self.first_of_key(own, after + 1)
        return None if row is None else _old(row)

    def count(self, most: int) -> Counted:
        latest = self._bytes.scan(ENTRY_AREA, SLICE_AREA)
        olds = _olds(self.scan_keys(self.slices(None, None), None, None, reverse=False))
        former = (old for old in olds if self.kept_after < old.valid_to != old.valid_from)
        return self._counted(chained([latest, former]), most)

    def put(self, encoded: bytes, own: bytes, cell: bytes | None, time: int) -> None:
        """Sets the value, or with None its absence, from a time on. A value of exactly that time is replaced."""
        latest = self._bytes.get(encoded)
        since = None if latest is None else unpack(latest).timestamp
        if latest is None or since is None or since > time:
            self._insert(encoded, own, since, cell, time)
            return
        if since < time:  # the latest value becomes an old one; otherwise it is replaced
            self._keep_old(own, latest, since, time)
        if cell is not None:
            self._bytes.put(encoded, cell)
        else:
            self._bytes.delete(encoded)
            self._keep_delete(own, time)

    def _insert(self, encoded: bytes, own: bytes, since: int | None, cell: bytes | None, time: int) -> None:
        """A put before the latest value, or of a key that has none."""
        deleted = self._deleted.get()
        nothing_later = since is None and (deleted is None or deleted < time)
        after = None if nothing_later else self.next_old(own, time)
        if after is not None and after.valid_from <= time:
            self._split(own, after, cell, time)
        elif cell is None:
            self._keep_delete(own, time)
        else:
            self._undelete(own, time)
            ends = since if after is None else after.valid_from
            if ends is None:
                self._bytes.put(encoded, cell)
            else:
                self._keep_old(own, cell, time, ends)

    def _split(self, own: bytes, old: Old, cell: bytes | None, time: int) -> None:
        """Ends the value that was valid at that time, or replaces it."""
        self._bytes.delete(old.place)
        if old.valid_from < time:
            self._keep_old(own, old.cell, old.valid_from, time)
        if cell is None:
            self._keep_delete(own, time)
        else:
            self._keep_old(own, cell, time, old.valid_to)

    def _keep_old(self, own: bytes, cell: bytes, valid_from: int, valid_to: int) -> None:
        if valid_to > self.kept_after:
            self.put_at(valid_to, own + time_bytes(valid_to) + time_bytes(valid_from), cell)

    def _keep_delete(self, own: bytes, time: int) -> None:
        if time > self.kept_after:
            self.put_at(time, own + time_bytes(time) + time_bytes(time), EMPTY)
            self._deleted.raise_to(time)

    def _undelete(self, own: bytes, time: int) -> None:
        """Removes a delete of exactly that time, which a value replaces."""
        deleted = self._deleted.get()
        if deleted is not None and deleted >= time:
            place = self.place(time, own + time_bytes(time) + time_bytes(time))
            if self._bytes.get(place) is not None:
                self._bytes.delete(place)


class RowHistory(VersionedEntries):
    """The latest row and the history of keys of a table.

    A row that moves is written in the newest schema: a rewrite that has passed its new place would miss it.
    """

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._spec = spec

    def _keep_old(self, own: bytes, cell: bytes, valid_from: int, valid_to: int) -> None:
        if unpack(cell).schema != self._spec.schema:
            cells = unpack_many(pa.array([cell], pa.binary()))
            rows = newest_rows(self._spec, cells.payloads, cells.schemas)
            cell = pack_many(rows, cells.timestamps, schema=self._spec.schema)[0].as_py()
        super()._keep_old(own, cell, valid_from, valid_to)


def _olds(rows: Iterator[Row]) -> Iterator[Old]:
    try:
        yield from map(_old, rows)
    finally:
        close(rows)


def _old(row: Row) -> Old:
    place, cell = row
    return Old(place, cell, time_at(place, -8), time_at(place, -16))


class VersionedWriter(BatchWriter):
    """Rows of an aggregate that keeps the former rows of its keys."""

    def __init__(self, spec: StoreSpec, version: Version, now: Now, state: StoreColumns, count: Count) -> None:
        super().__init__(spec, version, now, state, count)
        self.newest: int | None = None
        """The last slice that this version wrote to."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        return self.after(keys, self._state.get(keys), times, merge)

    def after(self, keys: pa.BinaryArray, cells: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        """What a chunk of keys changes, given their latest cells at `v-1`."""
        before = unpack_many(cells)
        since = latest(before, pa.array(np.full(len(keys), self._now.wall)) if times is None else times)
        rows = newest_rows(self._spec, before.payloads, before.schemas)
        changed = part(keys, pack_many(merge(rows), since, schema=self._spec.schema))
        if rows is not before.payloads:
            # Old rows are written in the newest schema too: a rewrite that has passed their slice would miss them.
            cells = pack_many(rows, before.timestamps, schema=self._spec.schema)
        old = self._ended(keys, cells, before.timestamps, since)
        return changed if old is None else pa.concat_tables([changed, old])

    def _ended(self, keys: pa.Array, cells: pa.Array, started: pa.Array, ended: pa.Array) -> pa.Table | None:
        """The rows that were the latest and no longer are, unless they would be hidden at once."""
        old = pc.and_(pc.less(started, ended), pc.greater(ended, kept_after(self._spec, self._now)))
        keys, cells, started, ended = (column.filter(old) for column in (keys, cells, started, ended))
        if not len(keys):
            return None
        slices = slices_of(ended, self._spec.slice_ms)
        newest = int(slices.max())
        self.newest = newest if self.newest is None else max(self.newest, newest)
        schema = Schema(self._spec.key.fields + VALIDITY)
        own = encode_keys(schema, [*decode_keys(self._spec.key, keys), ended, started])
        return part(sliced_keys(slices, own), cells)

    def rest(self) -> pa.Table | None:
        """The note of the newest slice, if this version wrote to a newer one."""
        if self.newest is None:
            return None
        before = noted_number(read_note(self._state, NEWEST))
        if before is not None and before >= self.newest:
            return None
        return note_part(NEWEST, number_note(self.newest))


@dataclass(frozen=True)
class VersionedLayout(Layout):
    """The latest values under their own keys, earlier values in slices."""

    WRITER = VersionedWriter
    READER = PlainEntries
    entry_areas = (ENTRY_AREA, SLICE_AREA)

    def own_key(self, stored: bytes) -> bytes:
        return split_sliced(stored)[1] if stored[:1] == SLICE_AREA else stored

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        first = slice_prefix(first_live_slice(self.spec, now))
        return [(ENTRY_AREA, SLICE_AREA), (first, EXPIRY_AREA)]
