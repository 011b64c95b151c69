"""What windows, sessions and histories share: entries in slices, under a key and one or more times.

An entry is stored as

    0x02 | slice | 0x01 | key | time | time ... → cell

with the key's components all ended, as components before others are, and each time 8 bytes like any integer. So the
entries of one key within a slice stand together, in the order of their times. The newest slice that was written to is
noted under `0x05 newest`; without it, a search that has no latest time would have to look at every slice of the future.

`beginning` is a key's bytes with which its entries begin, after the slice.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import Cell
from holdfast.stores.formats.keys import after_prefix
from holdfast.stores.formats.times import Row
from holdfast.stores.layouts.base import AREA_OF_ENTRIES, NOTES, SLICED
from holdfast.stores.layouts.slice_scans import scan_slices
from holdfast.stores.layouts.slices import AFTER_AREA, PREFIX_BYTES, first_live_slice, kept_after, slice_prefix
from holdfast.stores.scans import close
from holdfast.stores.spec import StoreSpec

NEWEST: Final = NOTES + b"newest"

AFTER_TIME: Final = b"\xff" * 9
"""After whatever follows a time."""
AFTER_TIMES: Final = b"\xff" * 17
"""After every time, and whatever follows it."""

_FEW = 16
"""So many slices are scanned one after the other; of more than that only those are that have something."""

_I64 = struct.Struct(">q")


def noted_number(note: bytes | None) -> int | None:
    """The number that a note holds."""
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
    """A number a store remembers under one of its notes; it is read once, and only grows."""

    def __init__(self, key: bytes, readable: ReadableBytes) -> None:
        self._key = key
        self._readable = readable
        self._known = False
        self._value: int | None = None

    def get(self) -> int | None:
        if not self._known:
            self._value = noted_number(self._readable.get(self._key))
            self._known = True
        return self._value

    def raise_to(self, value: int, writable: OrderedBytes) -> None:
        known = self.get()
        if known is None or value > known:
            self._value = value
            writable.put(self._key, number_note(value))


class TimedEntries:
    """Entries in slices, by key and time. What writes is told where to."""

    def __init__(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> None:
        self._bytes = bytes_
        self.kept_after = kept_after(spec, now)
        """Entries of this time and before are hidden."""
        self._first_slice, self._slice_ms = first_live_slice(spec, now), spec.slice_ms
        self._newest = NotedNumber(NEWEST, bytes_)

    def place(self, time: int, own: bytes) -> bytes:
        """Where an entry of that time is stored."""
        return slice_prefix(time // self._slice_ms) + own

    def put_at(self, writable: OrderedBytes, time: int, own: bytes, cell: bytes) -> None:
        number = time // self._slice_ms
        self._newest.raise_to(number, writable)
        writable.put(slice_prefix(number) + own, cell)

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
        """Those of a long row of slices that have entries; each is found by asking for the next key."""
        start = first
        while start <= last:
            rows = self._bytes.scan(start, AFTER_AREA)
            row = next(rows, None)
            close(rows)
            if row is None or row[0][:PREFIX_BYTES] > last:
                return
            yield row[0][:PREFIX_BYTES]
            start = row[0][:PREFIX_BYTES] + SLICED  # own keys begin with 0x01

    def scan_keys(
        self, slices: Sequence[bytes], key_from: bytes | None, key_to: bytes | None, *, reverse: bool
    ) -> Iterator[Row]:
        """The entries of keys from one beginning to another, both included, in the order of keys and times."""
        start = AREA_OF_ENTRIES if key_from is None else key_from
        stop = SLICED if key_to is None else after_prefix(key_to)
        if not slices or (stop is not None and start >= stop):
            return iter(())
        return scan_slices(self._bytes, slices, start, stop, reverse=reverse)

    def ranges(
        self,
        keys: Sequence[Any],
        times: Sequence[int],
        beginning: Callable[[Any], bytes],
        span: Callable[[int, int], tuple[int, int | None]],
    ) -> list[tuple[bytes, bytes]]:
        """For each key its entries in the slices that `span` of its earliest and latest time touches."""
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
            ranges += _ranges(known[about], beginning(key))
        return ranges


def _ranges(slices: Iterable[bytes], own: bytes) -> Iterator[tuple[bytes, bytes]]:
    after = after_prefix(own)
    assert after is not None  # it begins with 0x01
    return ((prefix + own, prefix + after) for prefix in slices)
