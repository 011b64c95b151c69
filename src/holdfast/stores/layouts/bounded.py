"""The bounded layout: at most `max_entries` entries per partition, those used last.

Entries are stored under their own keys, each with the number of its last touch before its value. The recency index has
them in the order of touches (`recency`). An entry that expires has a row in the expiry index too (`expiry`), and is
removed through it first, so that it takes no room from a visible entry.

In a batch of an aggregate, the keys of the batch count as touched after all others, and among themselves in the order
of event time, then of key. This order doesn't depend on how Spark distributed the rows. So the entries that stay are
known before anything is written: the last `max_entries` keys of the batch, then, while there is room, earlier entries,
the newest first. Only the net effect is written. A key that came and went within the version leaves no trace. An
earlier entry that is evicted becomes a tombstone, in the log and in the sinks. A task holds all keys of the batch that
may stay, so it needs memory for `max_entries` rows or for the rows of the batch, whichever is less.

`bounded_entries` does the same for one entry at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, ReadableBytes, StoreColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cells, pack_many, unpack_many
from holdfast.stores.formats.key_order import key_order
from holdfast.stores.layouts import expiry, recency
from holdfast.stores.layouts.areas import NOTE_AREA, RECENCY_AREA, split_numbered_keys
from holdfast.stores.layouts.base import (
    EVICTED,
    REMOVED,
    Count,
    Counted,
    Layout,
    Merge,
    latest,
    note_part,
    part,
    read_note,
)
from holdfast.stores.layouts.bounded_entries import BoundedEntries
from holdfast.stores.layouts.expiring import IndexedWriter, deletes, empty_cells, expiry_rows
from holdfast.stores.layouts.plain import PlainEntries
from holdfast.stores.layouts.recency import (
    COUNT_KEY,
    SEQ_BYTES,
    Seqs,
    count_cell,
    counted,
    first_seq,
    split_seqs,
    with_seqs,
)
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

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
"""The keys of the batch that may stay: the merged row, its event times, and the former index numbers of the entry."""


class Gone(NamedTuple):
    """Entries to be deleted, and their rows in the indexes."""

    keys: pa.BinaryArray
    rows: tuple[pa.BinaryArray, ...] = ()

    def tombstones(self) -> pa.Table:
        return deletes(self.keys, *self.rows)


NONE = Gone(pa.array([], pa.binary()))


class BoundedWriter(IndexedWriter):
    """Rows of an aggregate that keeps the `max_entries` entries touched last."""

    def __init__(self, spec: StoreSpec, version: Version, now: Now, state: StoreColumns, count: Count) -> None:
        super().__init__(spec, version, now, state, count)
        self._waiting = _WAITING.empty_table()
        self._added = 0

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table | None:
        cells = self._state.get(keys)
        existed = cells.is_valid()
        before = unpack_many(cells)
        seqs, values = split_seqs(before.payloads)
        before, expires = before._replace(payloads=values), before.expires.fill_null(NEVER)
        if self._spec.ttl_ms:
            before = expiry.visible(before, self._now)
        rows = merge(newest_rows(self._spec, before.payloads, before.schemas))
        if times is None:
            times = timestamps = pa.array(np.full(len(keys), NO_TIMESTAMP))
        else:
            timestamps = latest(before, times)
        came = pa.table([keys, rows, timestamps, times, pa.array(seqs), expires, existed], schema=_WAITING)
        there = came.filter(existed)
        self._handled += _index_rows(there)
        self._added += came.num_rows - there.num_rows
        return self._dropped(pa.concat_tables([self._waiting, came]))

    def _dropped(self, waiting: pa.Table) -> pa.Table | None:
        """Drops all but the last `max_entries`, and returns tombstones of dropped keys that were in the store."""
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
        """The entries that stay, their rows in the indexes, and tombstones of the entries that make room for them."""
        if not self._waiting.num_rows and not self._spec.ttl_ms:
            return None
        before = counted(read_note(self._state, COUNT_KEY))
        entries = before + self._added
        expired = self._expired(entries - self._spec.max_entries)
        if not self._waiting.num_rows and expired is NONE:
            return None
        entries -= len(expired.keys)
        oldest = self._oldest(entries - self._spec.max_entries)
        entries -= len(oldest.keys)
        self._count(EVICTED, len(oldest.keys))
        if len(expired.keys):
            self._count(REMOVED, len(expired.keys))
        return pa.concat_tables(
            [*self._staying(), expired.tombstones(), oldest.tombstones(), note_part(COUNT_KEY, count_cell(entries))]
        )

    def _staying(self) -> Iterator[pa.Table]:
        """The keys of the batch with their rows in the indexes, and tombstones of their former rows."""
        if not self._waiting.num_rows:
            return
        stay = self._waiting.take(pa.array(touch_order(self._waiting)))
        left = stay.filter(stay["existed"])
        if self._spec.ttl_ms:  # an entry that was written at exactly this time keeps its row
            same = pc.equal(left["expires"], self._now.wall + self._spec.ttl_ms)
            at = left.schema.get_field_index("expires")
            left = left.set_column(at, "expires", pc.if_else(same, NEVER, left["expires"]))
        yield deletes(*_index_rows(left))
        keys, rows = whole(stay["key"]), len(stay)
        seqs = np.uint64(first_seq(self._version)) + np.arange(rows, dtype=np.uint64)
        timestamps = whole(stay["timestamp"])
        payloads, expires = with_seqs(seqs, whole(stay["row"])), expiry.expiry(self._spec, self._now, rows)
        yield part(keys, pack_many(payloads, timestamps, expires, schema=self._spec.schema))
        yield empty_cells(recency.index_keys(seqs, keys))
        if expires is not None:
            yield empty_cells(expiry.index_keys(expires.to_numpy(), keys))

    def _expired(self, excess: int) -> Gone:
        """Expired entries, without the keys of the batch: a limited number, or more if there is no room."""
        if not self._spec.ttl_ms or self._version == 1:
            return NONE
        expired = self._expired_entries(max(expiry.AT_MOST, excess))
        if expired is None:
            return NONE
        places = recency.index_keys(split_seqs(expired.cells.payloads)[0], expired.keys)
        self._handled.append(places)
        return Gone(expired.keys, (expired.rows, places))

    def _oldest(self, number: int) -> Gone:
        """The entries touched longest ago, without the keys of the batch and without expired ones."""
        places = self._first(RECENCY_AREA, NOTE_AREA, number)
        keys = split_numbered_keys(places)[1]
        if not self._spec.ttl_ms or not len(keys):
            return Gone(keys, (places,))
        expires = unpack_many(self._state.get(keys)).expires.to_numpy()
        return Gone(keys, (places, expiry_rows(expires, keys)))


def touch_order(waiting: pa.Table) -> npt.NDArray[np.int64]:
    """The rows in the order in which they count as touched: by event time, then by key."""
    by_key = key_order(whole(waiting["key"]))
    times: npt.NDArray[np.int64] = waiting["time"].to_numpy()
    return by_key[np.argsort(times[by_key], kind="stable")]


def _index_rows(entries: pa.Table) -> tuple[pa.BinaryArray, ...]:
    """The former rows of entries in the indexes."""
    keys = whole(entries["key"])
    seqs: npt.NDArray[np.uint64] = entries["seq"].to_numpy()
    return recency.index_keys(seqs, keys), expiry_rows(entries["expires"].to_numpy(), keys)


@dataclass(frozen=True)
class BoundedLayout(Layout):
    """Entries under their own keys, each with the number of its last touch before its value."""

    WRITER = BoundedWriter
    ENTRIES = BoundedEntries
    READER = PlainEntries
    lead = SEQ_BYTES
    always_deletes = True

    def estimate(self, bytes_: ReadableBytes, some: Counted) -> int:
        return counted(bytes_.get(COUNT_KEY))

    def split(self, cells: Cells) -> tuple[Seqs, Cells]:
        seqs, values = split_seqs(cells.payloads)
        return seqs, cells._replace(payloads=values)

    def joined(self, leads: object, payloads: pa.BinaryArray) -> pa.BinaryArray:
        assert isinstance(leads, np.ndarray)
        return with_seqs(leads, payloads)
