"""The bounded layout: at most `max_entries` entries per partition, those used last.

Entries stand under their own keys, each with the number of its last touch before its value; the recency index has them
in the order of touches (`recency`). An entry that is to expire has a row in the expiry index too (`expiry`), and goes
through it first, so that it takes no room from one that still shows.

In a batch of an aggregate, every key was touched later than all that are not in it, and among them the one with the
later event time, then the larger key: an order that doesn't depend on how Spark dealt the rows. So the entries that
stay are known before anything is written: of the batch's keys the last `max_entries`, then, while there is room, those
of before, the newest first. Only the net effect is written. A key that came and went within the version leaves no
trace; one that was there before and has to go is a tombstone, in the log and in the sinks. A task holds the keys of the
whole batch that may stay, so it needs the memory of `max_entries` rows, or of the batch's, whichever is less.

`bounded_entries` has the same for one entry at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes, StoreColumns
from holdfast.stores.formats.byte_columns import key_order, whole
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cells, pack_many, unpack_many
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.layouts.base import EMPTY, EVICTED, REMOVED, Count, Layout, Merge, latest, part
from holdfast.stores.layouts.bounded_entries import BoundedEntries
from holdfast.stores.layouts.expiry import AT_MOST, INDEX, expiry, expiry_rows, split_expiry_rows, visible
from holdfast.stores.layouts.plain import ReadablePlainEntries
from holdfast.stores.layouts.recency import (
    COUNT_KEY,
    INDEX_START,
    INDEX_STOP,
    SEQ_BYTES,
    Seqs,
    count_cell,
    counted,
    entry_keys,
    first_seq,
    index_keys,
    split_seqs,
    with_seqs,
)
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

PAGE_ROWS = 1_000
"""How many rows of the index are asked for beyond those that have to go: some of them were touched just now."""

_WAITING = pa.schema(
    [
        ("key", pa.binary()),
        ("row", pa.binary()),
        ("timestamp", pa.int64()),
        ("time", pa.int64()),
        ("seq", pa.uint64()),
        ("expires", pa.int64()),
        ("existed", pa.bool_()),
    ]
)
"""The batch's keys that may stay: the merged row, its event times, and the entry's places in the indexes before."""


@dataclass(frozen=True)
class BoundedLayout(Layout):
    """Entries under their own keys, each with the number of its last touch before its value."""

    lead = SEQ_BYTES
    deletes = True

    def writer(self, version: Version, now: Now, state: StoreColumns, count: Count) -> "BoundedWriter":
        return BoundedWriter(self.spec, version, now, state, count)

    def reader(self, bytes_: ReadableBytes, now: Now) -> ReadablePlainEntries:
        return ReadablePlainEntries(bytes_, now)

    def entries(self, bytes_: OrderedBytes, now: Now) -> BoundedEntries:
        return BoundedEntries(self.spec, bytes_, now)

    def split(self, cells: Cells) -> tuple[Seqs, Cells]:
        seqs, values = split_seqs(cells.payloads)
        return seqs, cells._replace(payloads=values)

    def joined(self, leads: object, payloads: pa.BinaryArray) -> pa.BinaryArray:
        assert isinstance(leads, np.ndarray)
        return with_seqs(leads, payloads)


class Gone(NamedTuple):
    """Entries to be deleted, and their rows in the indexes."""

    keys: pa.BinaryArray
    rows: tuple[pa.BinaryArray, ...] = ()

    def tombstones(self) -> pa.Table:
        return _deletes(self.keys, *self.rows)


NONE = Gone(pa.array([], pa.binary()))


class BoundedWriter:
    """Rows of an aggregate that keeps the entries touched last, `max_entries` of them."""

    def __init__(self, spec: StoreSpec, version: Version, now: Now, state: StoreColumns, count: Count) -> None:
        self._spec = spec
        self._version = version
        self._now = now
        self._read = state.get
        self._scan = state.scan
        self._count = count
        self._waiting = _WAITING.empty_table()
        self._left: list[pa.Array] = []
        """The rows of both indexes that keys of this batch had: nobody's to remove."""
        self._added = 0

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table | None:
        cells = self._read(keys)
        existed = cells.is_valid()
        held = unpack_many(cells)
        seqs, before = split_seqs(held.payloads)
        held, expires = held._replace(payloads=before), held.expires.fill_null(NEVER)
        if self._spec.ttl_ms:
            held = visible(held, self._now)
        rows = merge(newest_rows(self._spec, held.payloads, held.schemas))
        if times is None:
            times = timestamps = pa.array(np.full(len(keys), NO_TIMESTAMP))
        else:
            timestamps = latest(held, times)
        came = pa.table([keys, rows, timestamps, times, pa.array(seqs), expires, existed], schema=_WAITING)
        there = came.filter(existed)
        self._left += _index_rows(there)
        self._added += came.num_rows - there.num_rows
        return self._dropped(pa.concat_tables([self._waiting, came]))

    def _dropped(self, waiting: pa.Table) -> pa.Table | None:
        """Lets go of all but the last `max_entries`; the tombstones of those that were in the store before."""
        excess = waiting.num_rows - self._spec.max_entries
        if excess <= 0:
            self._waiting = waiting
            return None
        in_order = touch_order(waiting)
        self._waiting = waiting.take(pa.array(in_order[excess:]))
        gone = waiting.take(pa.array(in_order[:excess]))
        was = gone.filter(gone["existed"])
        self._added -= gone.num_rows
        self._count(EVICTED, gone.num_rows)
        return Gone(whole(was["key"]), _index_rows(was)).tombstones() if was.num_rows else None

    def rest(self) -> pa.Table | None:
        """The entries that stay, their places in the indexes, and the tombstones of those that make room for them."""
        if not self._waiting.num_rows and not self._spec.ttl_ms:
            return None
        before = counted(self._read(pa.array([COUNT_KEY], pa.binary()))[0].as_py())
        entries = before + self._added
        over = self._over(entries - self._spec.max_entries)
        if not self._waiting.num_rows and over is NONE:
            return None
        entries -= len(over.keys)
        oldest = self._oldest(entries - self._spec.max_entries)
        entries -= len(oldest.keys)
        self._count(EVICTED, len(oldest.keys))
        if len(over.keys):
            self._count(REMOVED, len(over.keys))
        return pa.concat_tables(
            [
                *self._staying(),
                over.tombstones(),
                oldest.tombstones(),
                part(pa.array([COUNT_KEY], pa.binary()), pa.array([count_cell(entries)], pa.binary())),
            ]
        )

    def _staying(self) -> Iterator[pa.Table]:
        """The batch's keys with their rows in the indexes, and tombstones for the rows they had."""
        if not self._waiting.num_rows:
            return
        stay = self._waiting.take(pa.array(touch_order(self._waiting)))
        left = stay.filter(stay["existed"])
        if self._spec.ttl_ms:  # one that was written at this very time keeps its row
            same = pc.equal(left["expires"], self._now.wall + self._spec.ttl_ms)
            at = left.schema.get_field_index("expires")
            left = left.set_column(at, "expires", pc.if_else(same, NEVER, left["expires"]))
        yield _deletes(*_index_rows(left))
        keys, rows = whole(stay["key"]), len(stay)
        seqs = np.uint64(first_seq(self._version)) + np.arange(rows, dtype=np.uint64)
        timestamps = whole(stay["timestamp"])
        payloads, expires = with_seqs(seqs, whole(stay["row"])), expiry(self._spec, self._now, rows)
        yield part(keys, pack_many(payloads, timestamps, expires, schema=self._spec.schema))
        yield _empty_cells(index_keys(seqs, keys))
        if expires is not None:
            yield _empty_cells(expiry_rows(expires.to_numpy(), keys))

    def _over(self, excess: int) -> Gone:
        """Entries that are over, without the batch's own: a bounded number, or more where there is no room."""
        if not self._spec.ttl_ms or self._version == 1:
            return NONE
        rows = self._first(INDEX, INDEX + time_bytes(self._now.wall + 1), max(AT_MOST, excess))
        if not len(rows):
            return NONE
        expires, keys = split_expiry_rows(rows)
        held = unpack_many(self._read(keys))
        over = pc.fill_null(pc.equal(held.expires, pa.array(expires)), False)
        # A row that tells of another time is of code that kept no such index: it goes, and the entry stays.
        keys, payloads = keys.filter(over), held.payloads.filter(over)
        places = index_keys(split_seqs(payloads)[0], keys)
        self._left.append(places)
        return Gone(keys, (rows, places))

    def _oldest(self, number: int) -> Gone:
        """So many entries from the one touched longest ago on, without the batch's own and those that are over."""
        places = self._first(INDEX_START, INDEX_STOP, number)
        keys = entry_keys(places)
        if not self._spec.ttl_ms or not len(keys):
            return Gone(keys, (places,))
        expires = unpack_many(self._read(keys)).expires.to_numpy()
        return Gone(keys, (places, _expiry_rows(expires, keys)))

    def _first(self, start: bytes, stop: bytes, number: int) -> pa.BinaryArray:
        """So many rows of an index from its first on, without those that are spoken for."""
        found: list[pa.Array] = [pa.array([], pa.binary())]
        left = pa.concat_arrays([*found, *self._left])
        for page in self._pages(start, stop, number):
            if number <= 0:
                break
            others = page.filter(pc.invert(pc.is_in(page, value_set=left))).slice(0, number)
            found.append(others)
            number -= len(others)
        return pa.concat_arrays(found)

    def _pages(self, start: bytes, stop: bytes, number: int) -> Iterator[pa.BinaryArray]:
        limit = max(number, 0) + PAGE_ROWS
        while number > 0:
            page = whole(self._scan(start, stop, limit=limit)["key"])
            yield page
            if len(page) < limit:
                return
            start = page[-1].as_py() + b"\x00"  # the next key in order


def touch_order(waiting: pa.Table) -> npt.NDArray[np.int64]:
    """The rows from the one touched first to the one touched last: by event time, then by key."""
    by_key = key_order(whole(waiting["key"]))
    times: npt.NDArray[np.int64] = waiting["time"].to_numpy()
    return by_key[np.argsort(times[by_key], kind="stable")]


def _deletes(*keys: pa.BinaryArray) -> pa.Table:
    every = pa.concat_arrays(keys)
    return part(every, pa.nulls(len(every), pa.binary()))


def _empty_cells(keys: pa.BinaryArray) -> pa.Table:
    return part(keys, pa.repeat(pa.scalar(EMPTY, pa.binary()), len(keys)))


def _index_rows(entries: pa.Table) -> tuple[pa.BinaryArray, ...]:
    """The rows of the indexes that entries had."""
    keys = whole(entries["key"])
    seqs: npt.NDArray[np.uint64] = entries["seq"].to_numpy()
    return index_keys(seqs, keys), _expiry_rows(entries["expires"].to_numpy(), keys)


def _expiry_rows(expires: npt.NDArray[np.int64], keys: pa.BinaryArray) -> pa.BinaryArray:
    """The same of the expiry index, for those that are to be over some day."""
    there = expires != NEVER
    return expiry_rows(expires[there], keys.filter(pa.array(there)))
