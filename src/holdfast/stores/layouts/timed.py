"""The base of windows, sessions and histories: entries in slices, under a key and one or more times.

An entry is stored as

    0x02 | slice | 0x01 | key | time | time ... → cell

Every component of the key is ended, as components before others are, and each time is 8 bytes like any integer. So the
entries of one key within a slice are stored together, in the order of their times. The newest slice that was written
to is noted under `0x05 newest`. Without it, a search without a latest time would have to scan all future slices.

`beginning` is the first part of an entry's own key: the key, without the times.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from holdfast.stores.access import Now, OrderedBytes
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import Cell
from holdfast.stores.formats.keys import after_prefix
from holdfast.stores.formats.times import Row, time_bytes
from holdfast.stores.layouts.areas import ENTRY_AREA, EXPIRY_AREA, NOTE_AREA, PREFIX_BYTES, SLICE_AREA
from holdfast.stores.layouts.base import Counted
from holdfast.stores.layouts.slice_scans import scan_slices
from holdfast.stores.layouts.slices import first_live_slice, kept_after, slice_prefix
from holdfast.stores.scans import chained, close
from holdfast.stores.spec import StoreSpec

NEWEST: Final = NOTE_AREA + b"newest"

AFTER_TIME: Final = b"\xff" * 9
"""After everything that can follow a time."""
AFTER_TIMES: Final = b"\xff" * 17
"""After every time, and everything that can follow it."""

_FEW = 16
"""Up to this many slices are scanned one after the other. Of more slices only those with entries are scanned."""

_I64 = struct.Struct(">q")


def noted_number(note: bytes | None) -> int | None:
    """The number in a note."""
    if note is None:
        return None
    number: int = _I64.unpack(cells.unpack(note).payload)[0]
    return number


def number_note(number: int) -> bytes:
    """A number as a note.

    >>> noted_number(number_note(-3)), noted_number(None)
    (-3, None)
    """
    return cells.pack(Cell(_I64.pack(number)))


class NotedNumber:
    """A number that a store keeps in a note. It is read once, and only grows."""

    def __init__(self, key: bytes, bytes_: OrderedBytes) -> None:
        self._key = key
        self._bytes = bytes_
        self._known = False
        self._value: int | None = None
        self._before: tuple[bool, int | None] = (False, None)

    def get(self) -> int | None:
        if not self._known:
            self._value = noted_number(self._bytes.get(self._key))
            self._known = True
        return self._value

    def raise_to(self, value: int) -> None:
        known = self.get()
        if known is None or value > known:
            self._value = value
            self._bytes.put(self._key, number_note(value))

    def begin_record(self) -> None:
        self._before = self._known, self._value

    def undo_record(self) -> None:
        self._known, self._value = self._before


class TimedEntries(ABC):
    """Entries in slices, by key and time."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        self._bytes = bytes_
        self.kept_after = kept_after(spec, now)
        """Entries of this time and earlier are hidden."""
        self._first_slice, self._slice_ms = first_live_slice(spec, now), spec.slice_ms
        self._newest = NotedNumber(NEWEST, bytes_)
        self._notes = [self._newest]

    def begin_record(self) -> None:
        """Called before each record that may be undone: notes what is in memory beside the bytes."""
        for note in self._notes:
            note.begin_record()

    def undo_record(self) -> None:
        """Restores what was in memory when the record began. Its bytes are restored already."""
        for note in self._notes:
            note.undo_record()

    def place(self, time: int, own: bytes) -> bytes:
        """The stored key of an entry of that time."""
        return slice_prefix(time // self._slice_ms) + own

    def put_at(self, time: int, own: bytes, cell: bytes) -> None:
        number = time // self._slice_ms
        self._newest.raise_to(number)
        self._bytes.put(slice_prefix(number) + own, cell)

    def note_slice(self, number: int) -> None:
        """Notes that something else writes entries to this slice."""
        self._newest.raise_to(number)

    @abstractmethod
    def count(self, most: int) -> Counted:
        """Counts the first visible entries, up to `most`."""

    def slices(self, from_: int | None, to: int | None) -> Sequence[bytes]:
        """The prefixes of the slices that may have entries of these times, the oldest first."""
        last = self._newest.get()
        if last is None:
            return []
        slice_ms, first = self._slice_ms, self._first_slice
        if from_ is not None and (number := from_ // slice_ms) > first:
            first = number
        if to is not None and (number := to // slice_ms) < last:
            last = number
        if first == last:
            return [slice_prefix(first)]
        if last - first < _FEW:
            return [slice_prefix(number) for number in range(first, last + 1)]
        return list(self._used_slices(slice_prefix(first), slice_prefix(last)))

    def _used_slices(self, first: bytes, last: bytes) -> Iterator[bytes]:
        """The slices with entries among many. Each one is found by a scan for the next key."""
        start = first
        while start <= last:
            rows = self._bytes.scan(start, EXPIRY_AREA)
            row = next(rows, None)
            close(rows)
            if row is None or row[0][:PREFIX_BYTES] > last:
                return
            yield row[0][:PREFIX_BYTES]
            start = row[0][:PREFIX_BYTES] + SLICE_AREA  # own keys begin with 0x01

    def scan_key(self, beginning: bytes, first: int, last: int | None, *, reverse: bool) -> Iterator[Row]:
        """The entries of one key whose times are from `first` to `last`, in the order of times."""
        start = beginning + time_bytes(first)
        stop = beginning + (AFTER_TIMES if last is None else time_bytes(last) + AFTER_TIME)
        slices = self.slices(first, last)
        # All scans start now, so that they show the same moment.
        found = [self._bytes.scan(prefix + start, prefix + stop, reverse=reverse) for prefix in slices]
        return found[0] if len(found) == 1 else chained(reversed(found) if reverse else found)

    def first_of_key(self, beginning: bytes, first: int) -> Row | None:
        """The first entry of one key whose time is `first` or later."""
        start, stop = beginning + time_bytes(first), beginning + AFTER_TIMES
        for prefix in self.slices(first, None):
            rows = self._bytes.scan(prefix + start, prefix + stop)
            row = next(rows, None)
            close(rows)
            if row is not None:
                return row
        return None

    def scan_keys(
        self, slices: Sequence[bytes], key_from: bytes | None, key_to: bytes | None, *, reverse: bool
    ) -> Iterator[Row]:
        """The entries of keys from one beginning to another, both included, in the order of keys and times."""
        start = ENTRY_AREA if key_from is None else key_from
        stop = SLICE_AREA if key_to is None else after_prefix(key_to)
        if not slices or (stop is not None and start >= stop):
            return iter(())
        return scan_slices(self._bytes, slices, start, stop, reverse=reverse)

    def _counted(self, entries: Iterator[Any], most: int) -> Counted:
        number = sum(1 for _ in islice(entries, most))
        close(entries)
        return Counted(number, number)

    def ranges(
        self,
        keys: Sequence[Any],
        times: Sequence[int],
        beginning: Callable[[Any], bytes],
        span: Callable[[int, int], tuple[int, int | None]],
    ) -> list[tuple[bytes, bytes]]:
        """Per key, its entries in the slices of the span of time that `span` makes of its earliest and latest time."""
        first: dict[Any, int] = {}
        last: dict[Any, int] = {}
        for key, time in zip(keys, times, strict=True):
            if key not in first:
                first[key] = last[key] = time
            elif time < first[key]:
                first[key] = time
            elif time > last[key]:
                last[key] = time
        known: dict[tuple[int, int | None], Sequence[bytes]] = {}
        ranges: list[tuple[bytes, bytes]] = []
        for key, time in first.items():
            from_, to = span(time, last[key])
            about = (from_ // self._slice_ms, None if to is None else to // self._slice_ms)
            if about not in known:
                known[about] = self.slices(from_, to)
            own = beginning(key)
            after = after_prefix(own)
            assert after is not None  # own keys begin with 0x01
            ranges += [(prefix + own, prefix + after) for prefix in known[about]]
        return ranges
