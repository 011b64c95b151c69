"""Views of a RocksDB: pictures that stand still while versions are applied.

An iterator sees what was there when it was made, and goes on seeing it. rocksdict's own snapshots don't: they read
single keys as of then, but their iterators as of now. So a view holds an iterator a family.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import rocksdict as rd

from holdfast.errors import Closed
from holdfast.stores.engine import FIRST_KEY, UnknownFamily
from holdfast.stores.openiters import OPEN
from holdfast.stores.rockserrors import translated

FIRST_SCAN_ROWS, SCAN_ROWS = 32, 1_024
"""Entries a scan reads ahead, at first and in the end: a short range pays for little it doesn't need."""


class _Pinned:
    """One family as it was when this was made: an iterator, which several readers move about in turn."""

    def __init__(self, at: rd.RdictIter) -> None:
        self.at = at
        self.lock = threading.Lock()
        self.reader: object = None


class RocksView:
    """A `View` on one iterator a family, all made between two writes."""

    def __init__(self, path: Path, families: dict[str, rd.Rdict], read: Callable[[str, int], None]) -> None:
        self._path = path
        self._read = read
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

    def scan(
        self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self.pinned(family)
        scan = _Scan(self, self._path, family, max(start, FIRST_KEY), stop, reverse)
        return OPEN.watched(family, scan.entries())

    def read(self, family: str, rows: int) -> None:
        self._read(family, rows)

    def close(self) -> None:
        self._pinned = None
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

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        rows = FIRST_SCAN_ROWS
        while batch := self._read(rows):
            self._view.read(self._family, len(batch))
            yield from batch
            if len(batch) < rows:
                return
            rows = min(2 * rows, SCAN_ROWS)

    def _read(self, rows: int) -> list[tuple[bytes, bytes]]:
        pinned = self._view.pinned(self._family)
        batch: list[tuple[bytes, bytes]] = []
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
