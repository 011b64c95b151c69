"""What windows, sessions and histories share: entries in slices, under a key and one or more times.

An entry is stored as

    0x02 | slice | 0x01 | key | time | time ... → cell

with the key's components all ended, as components before others are, and each time 8 bytes like any integer. So the
entries of one key within a slice stand together, in the order of their times. How far slices go is noted under
`0x05 newest`, or whoever looks for what has no latest time would have to search the future for it.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import Cell
from holdfast.stores.formats.keys import after_prefix
from holdfast.stores.kinds.base import NOTES, REFUSED, Prefetch, Store, View
from holdfast.stores.kinds.containers import close
from holdfast.stores.kinds.keying import Decoder, Encoder, beginning_decoder, beginning_encoder
from holdfast.stores.kinds.merging import Row, scan_slices
from holdfast.stores.layouts.slices import AFTER_AREA, AREA, first_live_slice, kept_after, slice_prefix, split_sliced
from holdfast.stores.options import words
from holdfast.stores.spec import StoreSpec, kept_as

K = TypeVar("K")
V = TypeVar("V")

NEWEST = NOTES + b"newest"

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


class Number:
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


class TimedView(View[K, V]):
    """Reads entries in slices, by key and time."""

    TIMES = 1
    """How many times follow the key."""

    _beginning: Encoder
    _key_of: Decoder
    _kept_after: int
    _first_slice: int
    _slice_ms: int
    _newest: Number

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._beginning = beginning_encoder(spec.key)
        self._key_of = beginning_decoder(spec.key, self._times())
        self._kept_after = kept_after(spec, now)
        self._first_slice, self._slice_ms = first_live_slice(spec, now), spec.slice_ms
        self._newest = Number(NEWEST, bytes_)

    def _times(self) -> int:
        return self.TIMES

    def _place(self, time: int, own: bytes) -> bytes:
        """Where an entry of that time is stored."""
        return slice_prefix(time // self._slice_ms) + own

    def _slices(self, from_: int | None, to: int | None) -> Sequence[bytes]:
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
            if row is None or row[0][:9] > last:
                return
            yield row[0][:9]
            start = row[0][:9] + b"\x02"  # own keys begin with 0x01

    def _scan_keys(
        self, slices: Sequence[bytes], key_from: K | None, key_to: K | None, *, reverse: bool
    ) -> Iterator[Row]:
        """The entries of keys from one to another, both included, in the order of keys and times."""
        start = b"\x01" if key_from is None else self._beginning(key_from)
        stop = b"\x02" if key_to is None else after_prefix(self._beginning(key_to))
        if not slices or (stop is not None and start >= stop):
            return iter(())
        return scan_slices(self._bytes, slices, start, stop, reverse=reverse)


class TimedStore(Store[K, V], TimedView[K, V]):
    """Writes entries in slices, unless they would be hidden already."""

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        clock = {None: "", "event": " by event time", "wall": " by the wall clock"}[spec.clock]
        yield f"{kept_as(spec)} {words(spec.retention_ms)}{clock}, in slices of {words(spec.slice_ms)}"

    def _put_in_slice(self, time: int, own: bytes, cell: bytes) -> None:
        number = time // self._slice_ms
        self._newest.raise_to(number, self._writable)
        self._writable.put(slice_prefix(number) + own, cell)

    def _key_in(self, stored: bytes) -> Any:
        return self._key_of(split_sliced(stored)[1]) if stored[:1] == AREA else super()._key_in(stored)

    def _refused(self, time: int) -> bool:
        """Whether an entry of that time would be hidden; then it is counted and not written."""
        if time > self._kept_after:
            return False
        self._count(REFUSED, 1)
        return True

    def _ranges_ahead(
        self, keys: Sequence[K], times: Sequence[int], span: Callable[[int, int], tuple[int, int | None]]
    ) -> Prefetch:
        """For each key its entries in the slices that `span` of its earliest and latest time touches."""
        first: dict[K, int] = {}
        last: dict[K, int] = {}
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
                known[about] = self._slices(from_, to)
            own = self._beginning(key)
            ranges += _ranges(known[about], own)
        return Prefetch([NEWEST], ranges)


def _ranges(slices: Iterable[bytes], own: bytes) -> Iterator[tuple[bytes, bytes]]:
    after = after_prefix(own)
    assert after is not None  # it begins with 0x01
    return ((prefix + own, prefix + after) for prefix in slices)
