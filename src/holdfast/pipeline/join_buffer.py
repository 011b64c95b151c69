"""The records that a join keeps of one stream, read and written as columns.

Time is cut into buckets as long as the join's window, so the records that belong to another one are in at most two
buckets of a key. A bucket is one entry of a window store. When it has many records they are moved to a further entry,
which begins a millisecond later than the one before, and the bucket starts over: it says how many of those there are.
So an arriving record rewrites at most `SPILL` others, however many its key has.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.errors import RESTORE_AGAIN, DamagedObject
from holdfast.pipeline.matching import Flags, JoinRecords, Numbers
from holdfast.stores.access import StoreColumns
from holdfast.stores.formats.buckets import Buckets, decode_buckets, encode_buckets
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.layouts.base import read_note
from holdfast.stores.layouts.timed import NEWEST, noted_number
from holdfast.stores.layouts.windowed_rows import WindowedWriter, own_keys
from holdfast.stores.spec import StoreSpec
from holdfast.topology.joining import RECORDS

SPILL: Final = 32
"""How many records a bucket has before they are moved to a further entry."""

NO_ROWS: Final = pa.array([], pa.binary())


@dataclass(frozen=True)
class Keys:
    """The distinct keys of a batch, by their numbers."""

    columns: list[pa.Array]

    def take(self, numbers: Numbers) -> list[pa.Array]:
        places = pa.array(numbers)
        return [column.take(places) for column in self.columns]


@dataclass(frozen=True)
class Span:
    """Where to look for records of a key: from one time to another, both included, at most a bucket long."""

    keys: Numbers
    first: Numbers
    last: Numbers


@dataclass(frozen=True)
class Stored:
    """Records of the buffer whose windows are open."""

    records: JoinRecords
    _sources: tuple[tuple[Buckets, Numbers], ...]
    """Buckets, and the places of the open records in them."""

    def rows(self, chosen: Flags) -> pa.BinaryArray:
        """The rows of some of the records, in their order."""
        found, at = [], 0
        for buckets, places in self._sources:
            found.append(buckets.rows(places[chosen[at : at + len(places)]]))
            at += len(places)
        return pa.concat_arrays(found) if found else NO_ROWS


class Buffer:
    """One stream's buffer in one version: first `read`, then `write`."""

    def __init__(
        self, spec: StoreSpec, keys: Keys, state: StoreColumns, writer: WindowedWriter, open_from: int
    ) -> None:
        self._spec, self._keys, self._state, self._writer = spec, keys, state, writer
        self._bucket_ms = np.int64(spec.option("window_ms"))
        self._open_from = open_from

    def read(self, span: Span, arrived: JoinRecords) -> Stored:
        """The open records in these spans. Reads the buckets of the records that have arrived too."""
        looked = self._buckets_of(span)
        mine = arrived.times // self._bucket_ms
        keys, buckets = np.concatenate([looked[0], arrived.keys]), np.concatenate([looked[1], mine])
        self._entry_keys, self._entry_buckets, places = distinct(keys, buckets)
        self._arrived_at = places[len(looked[0]) :]
        is_looked = np.zeros(len(self._entry_keys), dtype=bool)
        is_looked[places[: len(looked[0])]] = True
        self._there, self._heads = self._decoded(self._entry_keys, self._entry_buckets * self._bucket_ms)
        self._spilled = np.zeros(len(self._entry_keys), dtype=np.int64)
        self._spilled[self._there] = self._heads.spilled
        return self._open(is_looked)

    def write(self, arrived: JoinRecords, rows: pa.BinaryArray) -> pa.Table:
        """What the arrived records change in the store."""
        entries = self._there[self._heads.owners]
        changed = np.zeros(len(self._entry_keys), dtype=bool)
        changed[self._arrived_at] = True
        kept = changed[entries] & (self._heads.times >= self._open_from)
        at = np.concatenate([entries[kept], self._arrived_at])
        order = np.argsort(at, kind="stable")
        times = np.concatenate([self._heads.times[kept], arrived.times])[order]
        together = pa.concat_arrays([self._heads.rows(kept), rows]).take(pa.array(order))
        places, counts = np.unique(at, return_counts=True)
        spilled = self._spilled[places]
        is_full = (counts >= SPILL) & (spilled + 1 < self._bucket_ms)
        part = self._put(places, np.where(is_full, spilled + 1, 0), encode_buckets(spilled, counts, times, together))
        if not is_full.any():
            return part
        none = np.empty(0, dtype=np.int64)
        emptied, moved = places[is_full], spilled[is_full] + 1
        empty = encode_buckets(moved, np.zeros(len(moved), dtype=np.int64), none, NO_ROWS)
        return pa.concat_tables([part, self._put(emptied, np.zeros_like(moved), empty)])

    def _buckets_of(self, span: Span) -> tuple[Numbers, Numbers]:
        """The keys and buckets of the spans, without those that are later than anything stored."""
        newest = noted_number(read_note(self._state, NEWEST)) if len(span.keys) else None
        if newest is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        latest = (newest + 1) * self._spec.slice_ms - 1
        first, last = span.first // self._bucket_ms, np.minimum(span.last, latest) // self._bucket_ms
        some, two = first <= last, first < last
        return np.concatenate([span.keys[some], span.keys[two]]), np.concatenate([first[some], last[two]])

    def _open(self, is_looked: Flags) -> Stored:
        """The open records of the buckets that were looked for."""
        wanted = is_looked[self._there[self._heads.owners]] & (self._heads.times >= self._open_from)
        at = np.flatnonzero(wanted)
        found = [(self._heads, at)]
        records = JoinRecords(self._entry_keys[self._there[self._heads.owners[at]]], self._heads.times[at])
        more = np.flatnonzero(is_looked & (self._spilled > 0))
        if len(more):
            counts = self._spilled[more]
            entries = np.repeat(more, counts)
            nth = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
            keys = self._entry_keys[entries]
            there, further = self._decoded(keys, self._entry_buckets[entries] * self._bucket_ms + nth)
            if len(there) < len(entries):
                raise DamagedObject(
                    f"store {self._spec.name!r} lacks {len(entries) - len(there)} of {len(entries)} further entries "
                    f"of its buckets. {RESTORE_AGAIN}"
                )
            at = np.flatnonzero(further.times >= self._open_from)
            found.append((further, at))
            records += JoinRecords(keys[further.owners[at]], further.times[at])
        return Stored(records, tuple(found))

    def _decoded(self, keys: Numbers, starts: Numbers) -> tuple[Numbers, Buckets]:
        """The entries that are there: their places, and their buckets."""
        cells = self._writer.read(own_keys(self._spec, self._keys.take(keys), starts))
        there = np.flatnonzero(cells.payloads.is_valid().to_numpy(zero_copy_only=False))
        (buckets,) = decode_rows(RECORDS, cells.payloads.drop_null())
        return there, decode_buckets(buckets, self._spec.name)

    def _put(self, places: Numbers, nth: Numbers, buckets: pa.BinaryArray) -> pa.Table:
        starts = self._entry_buckets[places] * self._bucket_ms + nth
        keys = own_keys(self._spec, self._keys.take(self._entry_keys[places]), starts)
        return self._writer.put(keys, encode_rows(RECORDS, [buckets]), None)


def distinct(keys: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The distinct pairs of a key and a number, in order, and the place of each given pair among them.

    >>> [found.tolist() for found in distinct(np.array([1, 0, 1]), np.array([-5, 7, -5]))]
    [[0, 1], [7, -5], [1, 0, 1]]
    """
    known, ranks = np.unique(numbers, return_inverse=True)
    width = np.int64(max(1, len(known)))
    pairs, places = np.unique(keys * width + ranks, return_inverse=True)
    return pairs // width, known[pairs % width] if len(known) else pairs, places
