"""The bounded layout, one entry at a time: what a processor's store with `max_entries` stands on.

Evictions are in the log as deletes, so they are the same on every replica. Of the entries a version touches the last
`max_entries` wait here, the one touched last at the end: one that more than that were touched after is let go at once,
and if it came in this version it is never written. The rest is decided when the version ends: those of before make
room, expired ones first, then by the recency index (`recency`). A put is a touch; a get is one too where
`refresh_on_read` says so, and then it is a write.

An entry that is to expire, by its own TTL or the store's, has a row in the expiry index too (`expiry`), and goes
through it when a version begins.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from holdfast.stores.access import Now, OrderedBytes
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import FORMAT, HEADER_BYTES, NEVER, NUMBERED_HEADER_BYTES
from holdfast.stores.formats.times import Row, time_at, time_bytes
from holdfast.stores.layouts import recency
from holdfast.stores.layouts.base import EMPTY, Batch, Ended, ReadableEntries
from holdfast.stores.layouts.expiry import (
    AT_MOST,
    INDEX,
    ROW_BYTES,
    ExpiryClock,
    expires_of,
    index_key,
    shorter_ttl,
)
from holdfast.stores.layouts.recency import SEQ_BYTES
from holdfast.stores.scans import close, columns
from holdfast.stores.spec import StoreSpec

_RECENCY_BYTES = len(recency.INDEX_START) + SEQ_BYTES


class BoundedEntries:
    """Entries at their own keys, `max_entries` of them when a version ends."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        self._bytes = bytes_
        self._most = spec.max_entries
        self._refresh = bool(spec.option("refresh_on_read"))
        self._default_ttl_ms = spec.ttl_ms or None
        self._wall = now.wall
        self._shows = ExpiryClock(now.wall).shows
        self._begin()

    def _begin(self) -> None:
        self._touched: OrderedDict[bytes, bytes] = OrderedDict()
        """What touched entries have now, the one touched last at the end."""
        self._removed: dict[bytes, None] = {}
        """Entries of before that are gone."""
        self._before: dict[bytes, bytes | None] = {}
        """What both had when the version began."""
        self._dropped = 0
        self._held = (0, 0)

    def find(self, key: bytes) -> bytes | None:
        cell = self._peek(key)
        if cell is not None and self._refresh:
            self._touch(key, cell, cell)
        return cell

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._peek_many(keys)
        if self._refresh:
            for key, cell in zip(keys, found, strict=True):
                if cell is not None:
                    self._touch(key, cell, cell)
        return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        """Entries in order. This is no touch: who looks at all of them uses none in particular."""
        return columns(self._rows(start, stop, reverse=reverse))

    def _rows(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Row]:
        """Whoever iterates may write: keys are those of the call, cells those of the moment."""
        own = {key for key in self._touched if key >= start and (stop is None or key < stop)}
        scanned = self._bytes.scan(start, stop, reverse=reverse)
        before = ((key, cell) for key, cell in scanned if key not in own)
        mine = ((key, None) for key in sorted(own, reverse=reverse))
        try:
            for key, cell in heapq.merge(mine, before, key=itemgetter(0), reverse=reverse):
                found = None if key in self._removed else self._touched.get(key, cell)
                if found is not None and self._shows(found):
                    yield key, found
        finally:
            close(scanned)

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        return [*keys, recency.COUNT_KEY]

    def quiet(self) -> ReadableEntries:
        return _Quiet(self)

    def expiry(self, ttl_ms: int | None) -> int:
        if self._default_ttl_ms is not None:
            ttl_ms = shorter_ttl(ttl_ms, self._default_ttl_ms)
        return NEVER if ttl_ms is None else self._wall + ttl_ms

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        self._touch(key, cell, None if key in self._before else self._bytes.get(key))

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None:
        before = self._missing(keys)
        for key, cell in zip(keys, cells, strict=True):
            self._touch(key, cell, before.get(key))

    def remove(self, key: bytes) -> bytes | None:
        cell = self._now(key)
        if cell is None:
            return None
        if key in self._touched:
            self._drop(key)
        else:
            self._take(key, cell)
        return cell if self._shows(cell) else None

    def begin_version(self) -> int:
        removed = 0
        for row, key, cell in self._over(AT_MOST):
            if cell is not None and expires_of(cell) == time_at(row, len(INDEX)):
                self._take(key, cell)
                removed += 1
            else:
                self._bytes.delete(row)
        return removed

    def end_of_version(self) -> Ended:
        """Makes room where `max_entries` has none, and writes what the version changed."""
        if not self._touched and not self._removed:
            return Ended()
        evicted = self._dropped + self._evict()
        seq = self._last_seq()
        self._bytes.hold(-self._held[0], -self._held[1])  # what is written is counted from here on
        for key in self._removed:
            self._delete_rows(key)
            self._bytes.delete(key)
        for key, cell in self._touched.items():
            self._delete_rows(key)
            seq += 1
            self._bytes.put(key, _with_seq(cell, seq))
            self._bytes.put(recency.index_key(seq, key), EMPTY)
            if (expires := expires_of(cell)) != NEVER:
                self._bytes.put(index_key(expires, key), EMPTY)
        self._begin()
        return Ended(evicted)

    def _delete_rows(self, key: bytes) -> None:
        """Takes what an entry was out of both indexes."""
        before = self._before[key]
        if before is not None:
            self._bytes.delete(recency.index_key(_seq_of(before), key))
            if (expires := expires_of(before)) != NEVER:
                self._bytes.delete(index_key(expires, key))

    def _evict(self) -> int:
        """Removes entries of before until there is room. Those touched in this version have it already."""
        counted = recency.counted(self._bytes.get(recency.COUNT_KEY))
        entries = counted - len(self._removed) + sum(self._before[key] is None for key in self._touched)
        excess = max(entries - self._most, 0)
        if excess:
            over = (key for _, key, cell in self._over(excess) if cell is not None and not self._shows(cell))
            gone = dict.fromkeys(over)
            gone.update(dict.fromkeys(self._oldest(excess - len(gone), without=gone)))
            self._before.update(zip(gone, self._bytes.get_many(list(gone)), strict=True))
            self._removed.update(gone)
            excess = len(gone)
        if entries - excess != counted:
            self._bytes.put(recency.COUNT_KEY, recency.count_cell(entries - excess))
        return excess

    def _over(self, number: int) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        """Entries that are over and were neither touched nor removed: the row of the index, the key and its cell."""
        rows = self._bytes.scan(INDEX, INDEX + time_bytes(self._wall + 1))
        found = list(islice((row for row, _ in rows if row[ROW_BYTES:] not in self._before), number))
        keys = [row[ROW_BYTES:] for row in found]
        return zip(found, keys, self._bytes.get_many(keys), strict=True)

    def _oldest(self, number: int, *, without: dict[bytes, None]) -> Iterator[bytes]:
        """The entries that were touched longest ago and not in this version."""
        rows = self._bytes.scan(recency.INDEX_START, recency.INDEX_STOP)
        keys = (row[_RECENCY_BYTES:] for row, _ in rows)
        return islice((key for key in keys if key not in self._before and key not in without), number)

    def _last_seq(self) -> int:
        for row, _ in self._bytes.scan(recency.INDEX_START, recency.INDEX_STOP, reverse=True):
            return int.from_bytes(row[1:_RECENCY_BYTES], "big")
        return 0

    def _peek(self, key: bytes) -> bytes | None:
        cell = self._now(key)
        return cell if cell is not None and self._shows(cell) else None

    def _peek_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        before = self._missing(keys)
        found = (before[key] if key in before else self._touched.get(key) for key in keys)
        return [cell if cell is not None and self._shows(cell) else None for cell in found]

    def _missing(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """What those have that this version hasn't changed."""
        missing = [key for key in keys if key not in self._before]
        return dict(zip(missing, self._bytes.get_many(missing), strict=True))

    def _now(self, key: bytes) -> bytes | None:
        return self._touched.get(key) if key in self._before else self._bytes.get(key)

    def _touch(self, key: bytes, cell: bytes, before: bytes | None) -> None:
        """Puts an entry at the end of those touched. `before`: what it had, unless that is known."""
        old = self._touched.get(key)
        if old is not None:
            self._touched.move_to_end(key)
            self._hold(0, len(cell) - len(old))
        elif key in self._removed:
            del self._removed[key]
            self._hold(1, len(cell))
        else:
            self._before[key] = before
            self._hold(2, len(key) + len(before or b"") + len(cell))
        self._touched[key] = cell
        if len(self._touched) > self._most:
            self._drop(next(iter(self._touched)))
            self._dropped += 1

    def _drop(self, key: bytes) -> None:
        """Lets go of an entry that was touched; one that came in this version leaves no trace."""
        cell = self._touched.pop(key)
        if self._before[key] is None:
            del self._before[key]
            self._hold(-2, -len(key) - len(cell))
        else:
            self._removed[key] = None
            self._hold(-1, -len(cell))

    def _take(self, key: bytes, cell: bytes) -> None:
        """Removes an entry that is as it was."""
        self._before[key] = cell
        self._removed[key] = None
        self._hold(1, len(key) + len(cell))

    def _hold(self, entries: int, size: int) -> None:
        self._held = (self._held[0] + entries, self._held[1] + size)
        self._bytes.hold(entries, size)


class _Quiet:
    """A bounded store's entries for a reader that isn't one of its users: nothing it reads is refreshed."""

    def __init__(self, entries: BoundedEntries) -> None:
        self._entries = entries
        self.find = entries._peek
        self.find_many = entries._peek_many
        self.scan = entries.scan
        self.places = entries.places

    def quiet(self) -> ReadableEntries:
        return self


def _seq_of(cell: bytes) -> int:
    return recency.split_seq(cells.unpack(cell).payload)[0]


def _with_seq(cell: bytes, seq: int) -> bytes:
    """The cell with its touch's number in the place that was kept free for it."""
    at = HEADER_BYTES if cell[0] == FORMAT else NUMBERED_HEADER_BYTES
    return cell[:at] + recency.with_seq(seq, cell[at + SEQ_BYTES :])
