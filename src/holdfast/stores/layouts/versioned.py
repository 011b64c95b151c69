"""The versioned layout: what each key's value was at any time, for as long as the history is kept.

A key's latest value is a plain entry, whose timestamp says since when it is valid. Every earlier one is stored in the
slice of when it ended,

    0x02 | slice | 0x01 | key | valid to | valid from  →  cell

so the first one that ends after a time is the one that was valid then, if it had begun. The history is kept for the
retention; the latest value stays, and is what was valid at any time since it began, however long ago. A delete is an
empty entry that begins and ends at that time, or a late put before it would come back to life. It goes with its slice;
by then a put before it is refused, so nothing can come back.

A row of an aggregate is valid from the largest event time its key had by then or, in a stream without event time, from
the wall clock of the version that wrote it. So a key's rows come in the order of time, and nothing is ever put in
between: a row that begins later than the one before it ends that one; one that begins when it did replaces it. A late
record changes the latest row and leaves the history as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes, StoreColumns
from holdfast.stores.formats.cells import pack_many, unpack, unpack_many
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.times import time_at, time_bytes
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.layouts.base import (
    AFTER_SLICED,
    AREA_OF_ENTRIES,
    EMPTY,
    NOTES,
    SLICED,
    Count,
    Layout,
    Merge,
    latest,
    part,
)
from holdfast.stores.layouts.plain import ReadablePlainEntries
from holdfast.stores.layouts.slices import (
    first_live_slice,
    kept_after,
    slice_prefix,
    sliced_keys,
    slices_of,
    split_sliced,
)
from holdfast.stores.layouts.timed import (
    AFTER_TIMES,
    NEWEST,
    NotedNumber,
    TimedEntries,
    noted_number,
    number_note,
)
from holdfast.stores.scans import close
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

DELETED: Final = NOTES + b"deleted"
"""The note of the latest time of any delete. A key without a latest value has no entry that ends after it."""

_VALIDITY = (Field("$valid_to", "bigint"), Field("$valid_from", "bigint"))
"""What follows the key of an old row."""


@dataclass(frozen=True)
class VersionedLayout(Layout):
    """The latest values under their own keys, those before them in slices."""

    entry_areas = (AREA_OF_ENTRIES, SLICED)

    def writer(self, version: Version, now: Now, state: StoreColumns, count: Count) -> "VersionedWriter":
        return VersionedWriter(self.spec, now, state)

    def reader(self, bytes_: ReadableBytes, now: Now) -> ReadablePlainEntries:
        return ReadablePlainEntries(bytes_, now)

    def own_key(self, stored: bytes) -> bytes:
        return split_sliced(stored)[1] if stored[:1] == SLICED else stored

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        first = slice_prefix(first_live_slice(self.spec, now))
        return [(AREA_OF_ENTRIES, SLICED), (first, AFTER_SLICED)]


class _Ended(NamedTuple):
    """Rows that are no longer the latest: where they go, their cells, and the last of the slices they go to."""

    keys: pa.BinaryArray
    cells: pa.BinaryArray
    newest: int


class Old(NamedTuple):
    """An entry of the history. One that begins when it ends is a delete."""

    place: bytes
    cell: bytes
    valid_from: int
    valid_to: int


class VersionedEntries(TimedEntries):
    """A key's latest cell and its history. `own` is the beginning of its old entries, `encoded` its own key."""

    def __init__(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._deleted = NotedNumber(DELETED, bytes_)

    def latest(self, encoded: bytes) -> bytes | None:
        return self._bytes.get(encoded)

    def olds(self, own: bytes, after: int, *, reverse: bool = False) -> Iterator[Old]:
        """What of a key's history ends after a time, in the order of ends."""
        start, stop = own + time_bytes(after + 1), own + AFTER_TIMES
        slices = self.slices(after + 1, None)
        for prefix in reversed(slices) if reverse else slices:
            rows = self._bytes.scan(prefix + start, prefix + stop, reverse=reverse)
            try:
                for place, cell in rows:
                    yield Old(place, cell, time_at(place, -8), time_at(place, -16))
            finally:
                close(rows)

    def next_old(self, own: bytes, after: int) -> Old | None:
        olds = self.olds(own, after)
        found = next(olds, None)
        close(olds)
        return found

    def put(self, writable: OrderedBytes, encoded: bytes, own: bytes, cell: bytes | None, time: int) -> None:
        """Sets the value that a key has since a time, or that it has none; one of the very same time is replaced."""
        latest = self._bytes.get(encoded)
        since = None if latest is None else unpack(latest).timestamp
        if latest is not None and since is not None and since <= time:
            self._follow(writable, encoded, own, latest, since, cell, time)
        else:
            self._insert(writable, encoded, own, since, cell, time)

    def _follow(
        self,
        writable: OrderedBytes,
        encoded: bytes,
        own: bytes,
        latest: bytes,
        since: int,
        cell: bytes | None,
        time: int,
    ) -> None:
        """The usual put: what was the latest is now old, or is replaced."""
        if since < time:
            self._keep_old(writable, own, latest, since, time)
        self._set_latest(writable, encoded, own, cell, time)

    def _insert(
        self, writable: OrderedBytes, encoded: bytes, own: bytes, since: int | None, cell: bytes | None, time: int
    ) -> None:
        """A put before the latest value, or of a key that has none."""
        deleted = self._deleted.get()
        quiet = since is None and (deleted is None or deleted < time)
        after = None if quiet else self.next_old(own, time)
        if after is None and since is None:  # nothing begins later: it is the latest itself
            if cell is None:
                self._keep_delete(writable, own, time)
            else:
                self._undelete(writable, own, time)
                writable.put(encoded, cell)
        elif after is not None and after.valid_from <= time:
            self._split(writable, own, after, cell, time)
        else:
            self._undelete(writable, own, time)
            ends = after.valid_from if after is not None else since
            assert ends is not None
            self._set_old(writable, own, cell, time, ends)

    def _split(self, writable: OrderedBytes, own: bytes, old: Old, cell: bytes | None, time: int) -> None:
        """What was valid then ends at that time, or is replaced."""
        writable.delete(old.place)
        if old.valid_from < time:
            self._keep_old(writable, own, old.cell, old.valid_from, time)
        self._set_old(writable, own, cell, time, old.valid_to)

    def _set_latest(self, writable: OrderedBytes, encoded: bytes, own: bytes, cell: bytes | None, time: int) -> None:
        if cell is not None:
            writable.put(encoded, cell)
            return
        writable.delete(encoded)
        self._keep_delete(writable, own, time)

    def _set_old(self, writable: OrderedBytes, own: bytes, cell: bytes | None, time: int, ends: int) -> None:
        if cell is None:
            self._keep_delete(writable, own, time)
        else:
            self._keep_old(writable, own, cell, time, ends)

    def _keep_old(self, writable: OrderedBytes, own: bytes, cell: bytes, valid_from: int, valid_to: int) -> None:
        if valid_to > self.kept_after:
            self.put_at(writable, valid_to, own + time_bytes(valid_to) + time_bytes(valid_from), cell)

    def _keep_delete(self, writable: OrderedBytes, own: bytes, time: int) -> None:
        if time > self.kept_after:
            self.put_at(writable, time, own + time_bytes(time) + time_bytes(time), EMPTY)
            self._deleted.raise_to(time, writable)

    def _undelete(self, writable: OrderedBytes, own: bytes, time: int) -> None:
        """A value of the very time of a delete replaces it."""
        deleted = self._deleted.get()
        if deleted is not None and deleted >= time:
            place = self.place(time, own + time_bytes(time) + time_bytes(time))
            if self._bytes.get(place) is not None:
                writable.delete(place)


class VersionedWriter:
    """Rows of an aggregate that keeps the rows its keys had, as far back as its history goes."""

    def __init__(self, spec: StoreSpec, now: Now, state: StoreColumns) -> None:
        self._spec = spec
        self._now = now
        self._read = state.get
        self._newest: int | None = None
        """The last slice that anything of this version went to."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        cells = self._read(keys)
        held = unpack_many(cells)
        since = latest(held, pa.array(np.full(len(keys), self._now.wall)) if times is None else times)
        before = newest_rows(self._spec, held.payloads, held.schemas)
        changed = part(keys, pack_many(merge(before), since, schema=self._spec.schema))
        if before is not held.payloads:
            # The past is written in the newest layout too, or the pass over old rows could miss it behind its back.
            cells = pack_many(before, held.timestamps, schema=self._spec.schema)
        if (old := self._ended(keys, cells, held.timestamps, since)) is None:
            return changed
        self._newest = old.newest if self._newest is None else max(self._newest, old.newest)
        return pa.concat_tables([changed, part(old.keys, old.cells)])

    def _ended(self, keys: pa.Array, cells: pa.Array, began: pa.Array, ended: pa.Array) -> _Ended | None:
        """The rows that were the latest and no longer are, unless they would be hidden at once."""
        over = pc.and_(pc.less(began, ended), pc.greater(ended, kept_after(self._spec, self._now)))
        keys, cells, began, ended = (column.filter(over) for column in (keys, cells, began, ended))
        if not len(keys):
            return None
        slices = slices_of(ended, self._spec.slice_ms)
        schema = Schema(self._spec.key.fields + _VALIDITY)
        own = encode_keys(schema, [*decode_keys(self._spec.key, keys), ended, began])
        return _Ended(sliced_keys(slices, own), cells, int(slices.max()))

    def rest(self) -> pa.Table | None:
        """The note of how far slices go, where this version went further."""
        if self._newest is None:
            return None
        before = noted_number(self._read(pa.array([NEWEST], pa.binary()))[0].as_py())
        if before is not None and before >= self._newest:
            return None
        return part(pa.array([NEWEST], pa.binary()), pa.array([number_note(self._newest)], pa.binary()))
