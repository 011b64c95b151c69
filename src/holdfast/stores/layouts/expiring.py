"""The expiring layout: entries with a TTL whose end is a change of the store, so that sinks get it.

Entries are stored under their own keys, and each has a row in the expiry index (`expiry`). A version deletes the
entries that have expired by then, a limited number, in the log and in the sinks. `plain` does the same for one entry at
a time. A store that need not tell sinks is in slices instead (`sliced`), which costs no index and no deletes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, StoreColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import NEVER, Cells, pack_many, unpack_many
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.layouts import expiry
from holdfast.stores.layouts.areas import EXPIRY_AREA
from holdfast.stores.layouts.base import EMPTY, REMOVED, BatchWriter, Count, Layout, Merge, latest, part
from holdfast.stores.layouts.plain import PlainEntries
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

PAGE_ROWS = 1_000
"""How many rows of an index are read beyond those to be removed: some of them belong to keys of the batch."""


class Expired(NamedTuple):
    """Entries that have expired: the rows of the index that are done, the keys to be deleted, and their cells."""

    rows: pa.BinaryArray
    keys: pa.BinaryArray
    cells: Cells


class IndexedWriter(BatchWriter):
    """Rows of an aggregate that are found through indexes too."""

    def __init__(self, spec: StoreSpec, version: Version, now: Now, state: StoreColumns, count: Count) -> None:
        super().__init__(spec, version, now, state, count)
        self._handled: list[pa.Array] = []
        """Rows of the indexes that are deleted already: those of the batch's own keys and of expired entries."""

    def _expired_entries(self, most: int) -> Expired | None:
        """Entries that have expired, without the keys of the batch; None if there are none."""
        rows = self._first(EXPIRY_AREA, EXPIRY_AREA + time_bytes(self._now.wall + 1), most)
        if not len(rows):
            return None
        expires, keys = expiry.split_index_keys(rows)
        before = unpack_many(self._state.get(keys))
        expired = pc.fill_null(pc.equal(before.expires, pa.array(expires)), False)
        # A row with another time was left by code without such an index: the row is deleted, and the entry stays.
        return Expired(rows, keys.filter(expired), Cells(*(column.filter(expired) for column in before)))

    def _first(self, start: bytes, stop: bytes, number: int) -> pa.BinaryArray:
        """The first `number` rows of an index, without those that are deleted already."""
        found: list[pa.Array] = [pa.array([], pa.binary())]
        handled = pa.concat_arrays([*found, *self._handled])
        for page in self._pages(start, stop, number):
            if number <= 0:
                break
            others = page.filter(pc.invert(pc.is_in(page, value_set=handled))).slice(0, number)
            found.append(others)
            number -= len(others)
        return pa.concat_arrays(found)

    def _pages(self, start: bytes, stop: bytes, number: int) -> Iterator[pa.BinaryArray]:
        limit = max(number, 0) + PAGE_ROWS
        while number > 0:
            page = whole(self._state.scan(start, stop, limit=limit)["key"])
            yield page
            if len(page) < limit:
                return
            start = page[-1].as_py() + b"\x00"  # the next key in order


class ExpiringWriter(IndexedWriter):
    """Rows of an aggregate that expire a TTL after the last record of their key, and are then deleted."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        stored = unpack_many(self._state.get(keys))
        before = expiry.visible(stored, self._now)
        rows = merge(newest_rows(self._spec, before.payloads, before.schemas))
        expires = expiry.expiry(self._spec, self._now, len(rows))
        assert expires is not None
        old = stored.expires.fill_null(NEVER).to_numpy()
        self._handled.append(expiry_rows(np.where(old <= self._now.wall, old, NEVER), keys))
        # An entry that was written at exactly this time keeps its row.
        left = expiry_rows(np.where(old == expires.to_numpy(), NEVER, old), keys)
        cells = pack_many(rows, latest(before, times), expires, schema=self._spec.schema)
        return pa.concat_tables(
            [part(keys, cells), deletes(left), empty_cells(expiry.index_keys(expires.to_numpy(), keys))]
        )

    def rest(self) -> pa.Table | None:
        """Deletes of entries that have expired, and of their rows."""
        expired = self._expired_entries(expiry.AT_MOST)
        if expired is None:
            return None
        if len(expired.keys):
            self._count(REMOVED, len(expired.keys))
        return deletes(expired.keys, expired.rows)


def deletes(*keys: pa.BinaryArray) -> pa.Table:
    """Tombstones of stored keys."""
    every = pa.concat_arrays(keys)
    return part(every, pa.nulls(len(every), pa.binary()))


def empty_cells(keys: pa.BinaryArray) -> pa.Table:
    """Rows of an index."""
    return part(keys, pa.repeat(pa.scalar(EMPTY, pa.binary()), len(keys)))


def expiry_rows(expires: npt.NDArray[np.int64], keys: pa.BinaryArray) -> pa.BinaryArray:
    """The rows in the expiry index of the entries that expire."""
    there = expires != NEVER
    return expiry.index_keys(expires[there], keys.filter(pa.array(there)))


@dataclass(frozen=True)
class ExpiringLayout(Layout):
    """Entries under their own keys that expire and are then deleted."""

    WRITER = ExpiringWriter
    ENTRIES = READER = PlainEntries
    always_deletes = True
