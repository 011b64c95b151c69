"""A store of at most so many entries: those used least recently go.

Who goes is decided once a version, at its end, from the recency index (see `stores.recency`): so it is the same on
every replica, it is in the log as deletes, and an entry that came and went within a version is never written. Until
then the version's entries wait here, the one touched last at the end. A put is a touch; a get is one too where
`refresh_on_read` says so, and then it is a write.
"""

import heapq
from collections.abc import Iterator, Sequence

from holdfast.stores import cells, recency
from holdfast.stores.access import Now, OrderedBytes
from holdfast.stores.cells import FORMAT, HEADER_BYTES, NEVER, SHAPED_HEADER_BYTES
from holdfast.stores.kinds.containers import columns
from holdfast.stores.kinds.expiry import Batch, Clock, ReadableEntries
from holdfast.stores.kinds.merging import Row
from holdfast.stores.spec import StoreSpec

LEAD = recency.SEQ_BYTES
"""The bytes of a payload before the value."""


class BoundedEntries:
    """Entries at their own keys, `max_entries` of them when a version ends."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        self._bytes = bytes_
        self._most = spec.max_entries
        self._refresh = spec.refresh_on_read
        self._default_ttl_ms = spec.ttl_ms or None
        self._wall = now.wall
        self._shows = Clock(now.wall).shows
        self._before: dict[bytes, bytes | None] = {}
        """What touched entries had when the version began."""
        self._touched: dict[bytes, bytes | None] = {}
        """What touched entries have now, the one touched last at the end; None was removed."""

    def find(self, key: bytes) -> bytes | None:
        cell = self._peek(key)
        if cell is not None and self._refresh:
            self._touch(key, cell)
        return cell

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._read(keys)
        return [self.find(key) for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        """Entries in order. This is no touch: who looks at all of them uses none in particular."""
        return columns(self._rows(start, stop, reverse=reverse))

    def _rows(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Row]:
        own = [key for key in self._touched if key >= start and (stop is None or key < stop)]
        own.sort(reverse=reverse)
        before = (key for key, _ in self._bytes.scan(start, stop, reverse=reverse) if key not in self._touched)
        for key in heapq.merge(own, before, reverse=reverse):
            cell = self._peek(key)
            if cell is not None:
                yield key, cell

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        return [*keys, recency.COUNT_KEY]

    def quiet(self) -> ReadableEntries:
        return _Quiet(self)

    def expiry(self, ttl_ms: int | None) -> int:
        ttl_ms = self._default_ttl_ms if ttl_ms is None else ttl_ms
        return NEVER if ttl_ms is None else self._wall + ttl_ms

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        self._read([key])
        self._touch(key, cell)

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None:
        self._read(keys)
        for key, cell in zip(keys, cells, strict=True):
            self._touch(key, cell)

    def remove(self, key: bytes) -> bytes | None:
        cell = self._now(key)
        if cell is None:
            return None
        self._touch(key, None)
        return cell if self._shows(cell) else None

    def begin_version(self) -> int:
        """Nothing: what is over waits, hidden, for its turn to go. The store is bounded anyway."""
        return 0

    def end_of_version(self) -> int:
        """Evicts the oldest beyond `max_entries`, and writes what the version changed."""
        if not self._touched:
            return 0
        evicted = self._evict()
        seq = self._last_seq()
        for key, cell in self._touched.items():
            old = self._before[key]
            if old is not None:
                self._bytes.delete(recency.index_key(_seq_of(old), key))
            if cell is not None:
                seq += 1
                self._bytes.put(key, _with_seq(cell, seq))
                self._bytes.put(recency.index_key(seq, key), recency.EMPTY)
            elif old is not None:
                self._bytes.delete(key)
        self._before, self._touched = {}, {}
        return evicted

    def _evict(self) -> int:
        counted = recency.counted(self._bytes.get(recency.COUNT_KEY))
        entries = counted
        for key, cell in self._touched.items():
            entries += (cell is not None) - (self._before[key] is not None)
        excess = entries - self._most
        evicted = [*self._oldest_before(excess)]
        self._read(evicted)
        gone = set(evicted)
        for key in evicted:
            self._touched[key] = None
        if len(evicted) < excess:  # the rest are of this version; the least recently touched are first
            alive = (key for key, cell in self._touched.items() if cell is not None and key not in gone)
            for key in [key for key, _ in zip(alive, range(excess - len(evicted)), strict=False)]:
                self._touched[key] = None
        left = min(entries, self._most)
        if left != counted:
            self._bytes.put(recency.COUNT_KEY, recency.count_cell(left))
        return max(excess, 0)

    def _oldest_before(self, number: int) -> Iterator[bytes]:
        """The entries that were touched longest ago and not in this version."""
        if number <= 0:
            return
        for row, _ in self._bytes.scan(recency.INDEX_START, recency.INDEX_STOP):
            key = row[1 + recency.SEQ_BYTES :]
            if key not in self._touched:
                yield key
                number -= 1
                if number == 0:
                    return

    def _last_seq(self) -> int:
        for row, _ in self._bytes.scan(recency.INDEX_START, recency.INDEX_STOP, reverse=True):
            return int.from_bytes(row[1 : 1 + recency.SEQ_BYTES], "big")
        return 0

    def _peek(self, key: bytes) -> bytes | None:
        cell = self._now(key)
        return cell if cell is not None and self._shows(cell) else None

    def _now(self, key: bytes) -> bytes | None:
        if key in self._touched:
            return self._touched[key]
        self._read([key])
        return self._before[key]

    def _read(self, keys: Sequence[bytes]) -> None:
        missing = [key for key in keys if key not in self._before]
        if missing:
            self._before.update(zip(missing, self._bytes.get_many(missing), strict=True))

    def _touch(self, key: bytes, cell: bytes | None) -> None:
        self._touched.pop(key, None)
        self._touched[key] = cell


class _Quiet:
    """A bounded store's entries for a reader that isn't one of its users: nothing it reads is refreshed."""

    def __init__(self, entries: BoundedEntries) -> None:
        self._entries = entries
        self.find = entries._peek
        self.scan = entries.scan
        self.places = entries.places

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.find(key) for key in keys]

    def quiet(self) -> ReadableEntries:
        return self


def _seq_of(cell: bytes) -> int:
    return recency.split_seq(cells.unpack(cell).payload)[0]


def _with_seq(cell: bytes, seq: int) -> bytes:
    """The cell with its touch's number in the place that was kept free for it."""
    at = HEADER_BYTES if cell[0] == FORMAT else SHAPED_HEADER_BYTES
    return cell[:at] + recency.with_seq(seq, cell[at + LEAD :])
