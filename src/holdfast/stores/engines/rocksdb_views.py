"""Views of a RocksDB: pictures that stand still while versions are applied.

An iterator sees what was there when it was made, and goes on seeing it. rocksdict's own snapshots don't: they read
single keys as of then, but their iterators as of now. So a view holds an iterator a family.

Walking one costs four calls an entry. `items()` costs one, but makes its own iterator, and ends quietly at a damaged
block. So a scan uses it only while nothing was written since the view was made, by RocksDB's own number of writes, and
where it ends the view's iterator is asked whether that is the end. Whatever is left is read by that one.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import rocksdict as rd

from holdfast.errors import Closed
from holdfast.stores.engines.base import FIRST_KEY, UnknownFamily
from holdfast.stores.engines.open_views import OPEN
from holdfast.stores.engines.rocksdb_errors import translated

FIRST_SCAN_ROWS, SCAN_ROWS = 64, 1_024
"""Entries a scan reads ahead, at first and in the end: a short range pays for little it doesn't need."""

Entry = tuple[bytes, bytes]
Items = Iterator[Any]
"""Keys and values, as bytes."""


class _Pinned:
    """One family as it was when this was made: an iterator, which several readers move about in turn."""

    def __init__(self, at: rd.RdictIter) -> None:
        self.at = at
        self.lock = threading.Lock()
        self.reader: object = None


class RocksView:
    """An `EngineView` on one iterator a family, all made between two writes."""

    def __init__(
        self, path: Path, families: dict[str, rd.Rdict], read: Callable[[str, int], None], writes: Callable[[], int]
    ) -> None:
        self._path = path
        self._read = read
        self._writes, self._at = writes, writes()
        self._families: dict[str, rd.Rdict] = dict(families)
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self.noted = OPEN.view(str(path))
        weakref.finalize(self, OPEN.close, self.noted)
        self._pinned: dict[str, _Pinned] | None = {name: _Pinned(each.iter()) for name, each in families.items()}

    def get(self, family: str, key: bytes) -> bytes | None:
        pinned = self.pinned(family)
        self._read(family, 1)
        with pinned.lock, translated(self._path):
            at = pinned.at
            pinned.reader = None
            at.seek(key)
            if at.valid():
                return at.value() if at.key() == key else None
            at.status()
            return None

    def scan(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[Entry]:
        self.pinned(family)
        scan = _Scan(self, self._path, family, max(start, FIRST_KEY), stop, reverse)
        first = scan.batch(FIRST_SCAN_ROWS)
        if scan.ended:
            return iter(first)  # most are short, and then nothing stays open
        self._scans.add(scan)
        return OPEN.watched(family, scan.entries(first))

    def read(self, family: str, rows: int) -> None:
        self._read(family, rows)

    def items(self, family: str, from_key: bytes | None, bounds: rd.ReadOptions, *, reverse: bool) -> Items | None:
        """All entries from a key on as of this view; None where something was written since."""
        source = self._families.get(family)
        if source is None or self._writes() != self._at:
            return None
        found: Items = iter(source.items(backwards=reverse, from_key=from_key, read_opt=bounds))
        return found if self._writes() == self._at else None

    def close(self) -> None:
        self._pinned = None
        self._families = {}
        for scan in list(self._scans):
            scan.let_go()
        OPEN.close(self.noted)

    def pinned(self, family: str) -> _Pinned:
        families = self._pinned
        if families is None:
            raise Closed(f"a view of {self._path} was used after it, or its engine, was closed. Take a new one.")
        try:
            return families[family]
        except KeyError:
            raise UnknownFamily(family, families) from None


class _Scan:
    """A scan's place in a view. It asks the view for the iterator each time, so that closing the view lets go of it."""

    def __init__(
        self, view: RocksView, path: Path, family: str, start: bytes, stop: bytes | None, reverse: bool
    ) -> None:
        self._view, self._path, self._family = view, path, family
        self._start, self._stop, self._reverse = start, stop, reverse
        self._last: bytes | None = None
        self._me = object()  # not this scan itself: a view and its scan would keep each other, and files, alive
        self._bounds = rd.ReadOptions()
        self._items: Items | None = None
        self._is_quick = True
        self.ended = False

    def let_go(self) -> None:
        """Ends the quick way: its iterator would keep a closed database open."""
        self._items, self._is_quick = None, False

    def entries(self, first: Sequence[Entry]) -> Iterator[Entry]:
        """These, which were the first, and all others."""
        try:
            yield from first
            rows = FIRST_SCAN_ROWS
            while not self.ended:
                rows = min(4 * rows, SCAN_ROWS)
                yield from self.batch(rows)
        finally:
            self.let_go()

    def batch(self, rows: int) -> list[Entry]:
        """The next entries, so many unless the scan ends with them."""
        found = self._quickly(rows) if self._is_quick else []
        if not self._is_quick and not self.ended:
            found += self._read(rows - len(found))
            self.ended = len(found) < rows
        self._view.read(self._family, len(found))
        return found

    def _quickly(self, rows: int) -> list[Entry]:
        """Those of them that `items()` has. Where it ends, the view's iterator goes on."""
        start = self._start
        with translated(self._path):
            if self._items is None:
                self._items = self._quick_items()
            found: list[Entry] = list(islice(self._items or (), rows))
        if len(found) < rows:
            self.let_go()
        if self._reverse and found and found[-1][0] < start:  # rocksdict has no lower bound
            found = [entry for entry in found if entry[0] >= start]
            self.let_go()
            self.ended = True
        if found:
            self._last = found[-1][0]
        return found

    def _quick_items(self) -> Items | None:
        if self._stop is not None:
            self._bounds.set_iterate_upper_bound(self._stop)  # read for as long as it iterates: both are kept here
        start = None if self._reverse else self._start
        return self._view.items(self._family, start, self._bounds, reverse=self._reverse)

    def _read(self, rows: int) -> list[Entry]:
        pinned = self._view.pinned(self._family)
        batch: list[Entry] = []
        with pinned.lock, translated(self._path):
            at = pinned.at
            if pinned.reader is not self._me:
                self._seek(at)
                pinned.reader = self._me
            valid, key_at, value_at = at.valid, at.key, at.value
            step: Callable[[], None] = at.prev if self._reverse else at.next
            start, stop, reverse = self._start, self._stop, self._reverse
            while len(batch) < rows:
                if not valid():
                    at.status()  # the end, or a block that can't be read: only the status tells
                    break
                key: bytes = key_at()
                if key < start if reverse else stop is not None and key >= stop:
                    break
                batch.append((key, value_at()))
                step()
        if batch:
            self._last = batch[-1][0]
        return batch

    def _seek(self, at: rd.RdictIter) -> None:
        """To the first entry, or to the one after the last that was read."""
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
