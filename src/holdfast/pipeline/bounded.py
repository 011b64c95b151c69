"""A bounded number of entries: at the end of a version the least recently used go (`stores.recency` has the layout).

Every key of the batch was touched later than all that weren't, and among them the one with the later event time, then
the larger key: an order that doesn't depend on how Spark dealt the rows. So what stays is known before anything is
written: of the batch's keys the last `max_entries`, then, while there is room, what was there, the newest first.

Only the net effect is written. A key that came and went within the version leaves no trace; one that was there before
and has to go is a tombstone, in the log and in the sinks. A task holds the keys of the whole batch that may stay, so it
needs the memory of `max_entries` rows, or of the batch's, whichever is less.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.expiring import expiry, visible
from holdfast.pipeline.keeping import Merge, ReadKeys, ScanKeys, latest, part
from holdfast.stores.access import Now
from holdfast.stores.bytecolumns import key_order
from holdfast.stores.cells import NO_TIMESTAMP, pack_many, unpack_many
from holdfast.stores.recency import (
    COUNT_KEY,
    EMPTY,
    INDEX_START,
    INDEX_STOP,
    count_cell,
    counted,
    entry_keys,
    first_seq,
    index_keys,
    split_seqs,
    with_seqs,
)
from holdfast.stores.rowcolumns import newest_rows
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
        ("existed", pa.bool_()),
    ]
)
"""The batch's keys that may stay: the merged row, its event times, and the entry's place in the index before."""


class Bounded:
    """A store that keeps the entries touched last, `max_entries` of them."""

    def __init__(
        self,
        spec: StoreSpec,
        version: Version,
        now: Now,
        read: ReadKeys,
        scan: ScanKeys,
        evicted: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._version = version
        self._now = now
        self._read = read
        self._scan = scan
        self._evicted = evicted
        self._waiting = _WAITING.empty_table()
        self._left: list[pa.Array] = []
        """The rows of the index that keys of this batch had: nobody's to evict."""
        self._added = 0

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table | None:
        cells = self._read(keys)
        existed = cells.is_valid()
        held = unpack_many(cells)
        seqs, before = split_seqs(held.payloads)
        held = held._replace(payloads=before)
        if self._spec.ttl_ms:
            held = visible(held, self._now)
        rows = merge(newest_rows(self._spec, held.payloads, held.schemas))
        if times is None:
            times = timestamps = pa.array(np.full(len(keys), NO_TIMESTAMP))
        else:
            timestamps = latest(held, times)
        came = pa.table([keys, rows, timestamps, times, pa.array(seqs), existed], schema=_WAITING)
        there = came.filter(existed)
        self._left.append(index_keys(_numbers(there["seq"]), _bytes(there["key"])))
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
        self._evicted(gone.num_rows)
        if not was.num_rows:
            return None
        keys = _bytes(was["key"])
        return _deletes(keys, index_keys(_numbers(was["seq"]), keys))

    def rest(self) -> pa.Table | None:
        """The entries that stay, their places in the index, and the tombstones of those that make room for them."""
        if not self._waiting.num_rows:
            return None
        stay = self._waiting.take(pa.array(touch_order(self._waiting)))
        keys, rows = _bytes(stay["key"]), len(stay)
        seqs = np.uint64(first_seq(self._version)) + np.arange(rows, dtype=np.uint64)
        timestamps = stay["timestamp"].combine_chunks()
        payloads, expires = with_seqs(seqs, _bytes(stay["row"])), expiry(self._spec, self._now, rows)
        cells = pack_many(payloads, timestamps, expires, schema=self._spec.schema)
        left = stay.filter(stay["existed"])
        entries = counted(self._read(pa.array([COUNT_KEY], pa.binary()))[0].as_py()) + self._added
        evicted = self._oldest(entries - self._spec.max_entries)
        entries -= len(evicted)
        self._evicted(len(evicted))
        return pa.concat_tables(
            [
                part(keys, cells),
                part(index_keys(seqs, keys), pa.repeat(pa.scalar(EMPTY, pa.binary()), rows)),
                _deletes(index_keys(_numbers(left["seq"]), _bytes(left["key"]))),
                _deletes(entry_keys(evicted), evicted),
                part(pa.array([COUNT_KEY], pa.binary()), pa.array([count_cell(entries)], pa.binary())),
            ]
        )

    def _oldest(self, number: int) -> pa.BinaryArray:
        """So many rows of the index from the oldest on, without those of the batch's own keys."""
        found: list[pa.Array] = []
        left = pa.concat_arrays(self._left)
        for page in self._pages(number):
            if number <= 0:
                break
            others = page.filter(pc.invert(pc.is_in(page, value_set=left))).slice(0, number)
            found.append(others)
            number -= len(others)
        return pa.concat_arrays(found) if found else pa.array([], pa.binary())

    def _pages(self, number: int) -> Iterator[pa.BinaryArray]:
        start, limit = INDEX_START, max(number, 0) + PAGE_ROWS
        while number > 0:
            page = self._scan(start, INDEX_STOP, limit)
            yield page
            if len(page) < limit:
                return
            start = page[-1].as_py() + b"\x00"  # the next key in order


def touch_order(waiting: pa.Table) -> npt.NDArray[np.int64]:
    """The rows from the one touched first to the one touched last: by event time, then by key."""
    by_key = key_order(_bytes(waiting["key"]))
    times: npt.NDArray[np.int64] = waiting["time"].to_numpy()
    return by_key[np.argsort(times[by_key], kind="stable")]


def _deletes(*keys: pa.BinaryArray) -> pa.Table:
    every = pa.concat_arrays(keys)
    return part(every, pa.nulls(len(every), pa.binary()))


def _bytes(column: pa.ChunkedArray) -> pa.BinaryArray:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    found: npt.NDArray[np.uint64] = column.to_numpy()
    return found
