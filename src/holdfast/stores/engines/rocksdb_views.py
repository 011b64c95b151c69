"""Views of a RocksDB database, which don't change while versions are applied.

A RocksDB iterator always reads the state of when it was made. rocksdict's snapshots do so for single keys only; their
iterators read the newest state. So a view has one iterator per family.

Stepping through an iterator costs four calls per entry. `items()` costs one call, but it makes an iterator of its own
and ends without an error at a damaged block. So a scan reads its
first entries by the view's iterator, and then uses `items()` if RocksDB's sequence number shows no write since the view
was made. After `items()` ends, the view's iterator reads what is left, or confirms the end.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import rocksdict as rd

from holdfast.errors import Closed
from holdfast.stores.engines.base import FIRST_KEY, family_of
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.engines.rocksdb_errors import translated

FEW_ROWS, FIRST_SCAN_ROWS, SCAN_ROWS = 4, 64, 1_024
"""Entries that a scan reads per batch: few at first, so that a short scan reads little it doesn't need."""

Entry = tuple[bytes, bytes]
Items = Iterator[Any]


class _Pinned:
    """One family as it was when the view was made: an iterator, which several readers move in turn."""

    def __init__(self, path: Path, at: rd.RdictIter) -> None:
        self._path = path
        self._at: rd.RdictIter | None = at
        self.lock = threading.Lock()
        self.reader: object = None

    def at(self) -> rd.RdictIter:
        if self._at is None:
            raise _closed(self._path)
        return self._at

    def close(self) -> None:
        with self.lock:
            self._at = None


class RocksView:
    """An `EngineView` on one iterator per family, all made between two writes."""

    def __init__(
        self,
        path: Path,
        families: dict[str, rd.Rdict],
        count_reads: Callable[[str, int], None],
        sequence_number: Callable[[], int],
    ) -> None:
        self._path = path
        self.count_reads = count_reads
        self._sequence_number, self._made_at = sequence_number, sequence_number()
        self._families: dict[str, rd.Rdict] = dict(families)
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self.opened = OPEN_VIEWS.add_view(str(path))
        weakref.finalize(self, OPEN_VIEWS.close, self.opened)
        self._pinned: dict[str, _Pinned] | None = {name: _Pinned(path, each.iter()) for name, each in families.items()}

    def get(self, family: str, key: bytes) -> bytes | None:
        pinned = self.pinned(family)
        self.count_reads(family, 1)
        with pinned.lock, translated(self._path):
            pinned.reader = None
            return _value_at(pinned.at(), key)

    def scan(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[Entry]:
        self.pinned(family)
        scan = _Scan(self, self._path, family, max(start, FIRST_KEY), stop, reverse)
        first = scan.first(FEW_ROWS)
        if not scan.ended:
            first += scan.batch(FIRST_SCAN_ROWS - FEW_ROWS)
        if scan.ended:
            return iter(first)  # most scans are short, and leave nothing open
        self._scans.add(scan)
        return OPEN_VIEWS.add_scan(family, scan.entries(first))

    def items(self, family: str, from_key: bytes | None, bounds: rd.ReadOptions, *, reverse: bool) -> Items | None:
        """All entries from a key on; None if the database was written to since the view was made."""
        source = self._families.get(family)
        if source is None or self._sequence_number() != self._made_at:
            return None
        found: Items = iter(source.items(backwards=reverse, from_key=from_key, read_opt=bounds))
        return found if self._sequence_number() == self._made_at else None

    def close(self) -> None:
        pinned, self._pinned = self._pinned, None
        self._families = {}
        for each in (pinned or {}).values():
            each.close()
        for scan in list(self._scans):
            scan.release_items()
        OPEN_VIEWS.close(self.opened)

    def pinned(self, family: str) -> _Pinned:
        pinned = self._pinned
        if pinned is None:
            raise _closed(self._path)
        return family_of(pinned, family)


class _Scan:
    """A scan's position in a view. It gets the iterator from the view each time, so that closing the view frees it."""

    def __init__(
        self, view: RocksView, path: Path, family: str, start: bytes, stop: bytes | None, reverse: bool
    ) -> None:
        self._view, self._path, self._family = view, path, family
        self._start, self._stop, self._reverse = start, stop, reverse
        self._last: bytes | None = None
        self._me = object()  # not `self`: a reference cycle of view and scan would keep files until a collection
        self._bounds: rd.ReadOptions | None = None
        self._items: Items | None = None
        self._upper: bytes | None = None
        self._uses_items = True
        self.ended = False

    def release_items(self) -> None:
        """From here on the view's iterator is used. The one of `items()` would keep a closed database open."""
        self._items, self._uses_items = None, False

    def entries(self, first: Sequence[Entry]) -> Iterator[Entry]:
        """The first batch, then all other entries."""
        try:
            yield from first
            rows = FIRST_SCAN_ROWS
            while not self.ended:
                rows = min(4 * rows, SCAN_ROWS)
                yield from self.batch(rows)
        finally:
            self.release_items()

    def first(self, rows: int) -> list[Entry]:
        """The first `rows` entries, or fewer if there are no more."""
        found = self._read_iterator(rows)
        self.ended = len(found) < rows
        self._view.count_reads(self._family, len(found))
        return found

    def batch(self, rows: int) -> list[Entry]:
        """The next `rows` entries, or fewer at the end of the scan."""
        found = self._read_items(rows) if self._uses_items else []
        if not self._uses_items and not self.ended:
            found += self._read_iterator(rows - len(found))
            self.ended = len(found) < rows
        self._view.count_reads(self._family, len(found))
        return found

    def _read_items(self, rows: int) -> list[Entry]:
        start = self._start
        with translated(self._path):
            if self._items is None:
                self._items = self._start_items()
            found: list[Entry] = list(islice(self._items or (), rows))
        if len(found) < rows:
            self.release_items()
        if self._reverse and found and found[-1][0] < start:  # rocksdict has no lower bound
            found = [entry for entry in found if entry[0] >= start]
            self.release_items()
            self.ended = True
        if found:
            self._last = found[-1][0]
            self._me = object()  # the view's iterator is no longer where this scan is
        return found

    def _start_items(self) -> Items | None:
        start, stop = self._start, self._stop
        if self._last is not None:  # entries up to it were read
            start, stop = (start, self._last) if self._reverse else (self._last + b"\x00", stop)
        self._bounds, self._upper = rd.ReadOptions(), stop  # RocksDB reads both while it iterates, so `self` has them
        if stop is not None:
            self._bounds.set_iterate_upper_bound(stop)
        return self._view.items(self._family, None if self._reverse else start, self._bounds, reverse=self._reverse)

    def _read_iterator(self, rows: int) -> list[Entry]:
        pinned = self._view.pinned(self._family)
        with pinned.lock, translated(self._path):
            is_there = pinned.reader is self._me
            pinned.reader = self._me
            batch = self._step_through(pinned.at(), rows, is_there=is_there)
        if batch:
            self._last = batch[-1][0]
        return batch

    def _step_through(self, at: rd.RdictIter, rows: int, *, is_there: bool) -> list[Entry]:
        batch: list[Entry] = []
        if not is_there:
            self._seek(at)
        valid, key_at, value_at = at.valid, at.key, at.value
        step: Callable[[], None] = at.prev if self._reverse else at.next
        start, stop, reverse = self._start, self._stop, self._reverse
        while len(batch) < rows:
            if not valid():
                at.status()  # raises if this isn't the end but a damaged block
                break
            key: bytes = key_at()
            if key < start if reverse else stop is not None and key >= stop:
                break
            batch.append((key, value_at()))
            step()
        return batch

    def _seek(self, at: rd.RdictIter) -> None:
        """Moves to the first entry, or to the one after the last that was read."""
        if not self._reverse:
            at.seek(self._start if self._last is None else self._last + b"\x00")
            return
        before = self._stop if self._last is None else self._last
        if before is None:
            at.seek_to_last()
            return
        at.seek_for_prev(before)
        if at.valid() and at.key() == before:
            at.prev()


def is_empty(family: rd.Rdict, start: bytes, stop: bytes) -> bool:
    """Whether a family has no entry with start <= key < stop. The caller uses `translated`."""
    at = family.iter()
    at.seek(start)
    if at.valid():
        return bool(at.key() >= stop)
    at.status()
    return True


def _value_at(at: rd.RdictIter, key: bytes) -> bytes | None:
    at.seek(key)
    if at.valid():
        return at.value() if at.key() == key else None
    at.status()
    return None


def _closed(path: Path) -> Closed:
    return Closed(f"a view of {path} was used after it, or its engine, was closed. Take a new one.")
