"""Ranges of stored keys: as columns, for bulk reads of many ranges at once, and as spans that were read completely."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.formats.byte_columns import bytes_of, cut, from_offsets, offsets_of
from holdfast.stores.formats.key_order import SortedKeys, SoughtKeys, is_sorted, key_order

Range = tuple[bytes, bytes | None]
"""From the first key up to, but not including, the second one, or to the end."""

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ranges:
    """Keys from a start up to, but not including, a stop. A null stop leaves its range open.

    >>> ranges = Ranges.of([(b"a", b"c"), (b"x", None)])
    >>> len(ranges), ranges.stops.to_pylist()
    (2, [b'c', None])
    """

    starts: pa.BinaryArray
    stops: pa.BinaryArray

    @classmethod
    def of(cls, pairs: Iterable[Range]) -> "Ranges":
        """The ranges of keys that are Python bytes."""
        listed = list(pairs)
        return cls(
            pa.array([start for start, _ in listed], pa.binary()), pa.array([stop for _, stop in listed], pa.binary())
        )

    @classmethod
    def of_prefixes(cls, prefixes: pa.BinaryArray) -> "Ranges":
        """All keys with one of these prefixes, in key order. No prefix begins with another one.

        >>> Ranges.of_prefixes(pa.array([b"b", b"a\\xff"], pa.binary())).pairs()
        [(b'a\\xff', b'b'), (b'b', b'c')]
        """
        starts = prefixes if is_sorted(prefixes) else prefixes.take(pa.array(key_order(prefixes)))
        return cls(starts, after_prefixes(starts))

    def __len__(self) -> int:
        return len(self.starts)

    def pairs(self) -> list[Range]:
        """The ranges as Python bytes, for readers that read one range after the other."""
        return list(zip(self.starts.to_pylist(), self.stops.to_pylist(), strict=True))

    def take(self, numbers: Places) -> "Ranges":
        """Some of the ranges."""
        return Ranges(self.starts.take(pa.array(numbers)), self.stops.take(pa.array(numbers)))

    def within(self, keys: SortedKeys) -> tuple[Places, Places]:
        """Where the keys of each range begin and end among sorted keys. A range without keys ends where it begins."""
        begin = keys.first_at_least(self._starts)
        if not (begin < len(keys.order)).any():
            return begin, begin
        end = begin.copy()
        there = np.flatnonzero(begin < len(keys.order))
        stops = self.stops.take(pa.array(there))
        # Most ranges have no keys: the first key that isn't before the range is after it.
        inside = pc.fill_null(pc.less(keys.key_at(begin[there]), stops), True)
        some = there[inside.to_numpy(zero_copy_only=False)]
        stops = stops.filter(inside)
        end[some] = keys.first_at_least(SoughtKeys(stops))
        if stops.null_count:
            end[some[stops.is_null().to_numpy(zero_copy_only=False)]] = len(keys.order)
        return begin, end

    @cached_property
    def _starts(self) -> SoughtKeys:
        return SoughtKeys(self.starts)


def after_prefixes(prefixes: pa.BinaryArray) -> pa.BinaryArray:
    """Per prefix, the smallest bytes greater than all bytes that begin with it; null if there are none.

    >>> after_prefixes(pa.array([b"ab", b"a\\xff", b"\\xff"], pa.binary())).to_pylist()
    [b'ac', b'b', None]
    """
    offsets, data = offsets_of(prefixes), bytes_of(prefixes).copy()
    ends = offsets[1:].copy()
    rows = np.flatnonzero(ends > offsets[:-1])
    while rows.size:  # the last byte that can be raised
        rows = rows[data[ends[rows] - 1] == 0xFF]
        ends[rows] -= 1
        rows = rows[ends[rows] > offsets[rows]]
    there = ends > offsets[:-1]
    data[ends[there] - 1] += 1
    after = cut(from_offsets(offsets, data), offsets[:-1], ends)
    return after if there.all() else after.take(pa.array(np.arange(len(after)), mask=~there))


def expanded(begin: Places, end: Places) -> tuple[Places, Places]:
    """The places from each begin up to its end, and the number of the pair they are from.

    >>> [each.tolist() for each in expanded(np.array([3, 7, 9]), np.array([5, 7, 10]))]
    [[3, 4, 9], [0, 0, 2]]
    """
    counts = end - begin
    numbers = np.repeat(np.arange(len(begin)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(len(numbers)) - before + np.repeat(begin, counts), numbers


class Spans:
    """Ranges that were read completely: their starts, their stops, and the keys in them."""

    __slots__ = ("_keys", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._stops: list[bytes | None] = []
        self._keys: list[bytes] = []

    def find(self, start: bytes, stop: bytes | None) -> list[bytes] | None:
        """The keys of a range that lies within a span; None where it doesn't."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or not _reaches(self._stops[at], stop):
            return None
        keys = self._keys
        return keys[bisect_left(keys, start) : len(keys) if stop is None else bisect_left(keys, stop)]

    def covers(self, key: bytes) -> bool:
        at = bisect_right(self._starts, key) - 1
        if at < 0:
            return False
        stop = self._stops[at]
        return stop is None or key < stop

    def add(self, spans: Sequence[Range], keys: Sequence[bytes]) -> None:
        """Adds spans, sorted and not overlapping, with all their keys, sorted."""
        if not self._starts:
            self._starts, self._stops = [start for start, _ in spans], [stop for _, stop in spans]
            self._keys = list(keys)
            return
        for start, stop in spans:
            there = keys[bisect_left(keys, start) : len(keys) if stop is None else bisect_left(keys, stop)]
            self._insert(start, stop, there)

    def _insert(self, start: bytes, stop: bytes | None, keys: Sequence[bytes]) -> None:
        """Adds one span and unites it with those it touches."""
        at = bisect_left(self._keys, start)
        self._keys[at : len(self._keys) if stop is None else bisect_left(self._keys, stop)] = keys
        first = bisect_left(self._starts, start)
        if first and _reaches(self._stops[first - 1], start):
            first -= 1
            start = self._starts[first]
        last = first
        while last < len(self._starts) and _reaches(stop, self._starts[last]):
            end = self._stops[last]
            stop = None if stop is None or end is None else max(stop, end)
            last += 1
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]


def united(ranges: Iterable[Range]) -> list[Range]:
    """The same ranges, sorted, with those that touch united.

    >>> united([(b"c", b"d"), (b"a", b"b"), (b"a", b"c"), (b"x", None)])
    [(b'a', b'd'), (b'x', None)]
    """
    found: list[Range] = []
    for start, stop in sorted(ranges, key=lambda each: each[0]):
        if stop is not None and stop <= start:
            continue
        if found and _reaches(found[-1][1], start):
            first, last = found[-1]
            found[-1] = (first, None if last is None or stop is None else max(last, stop))
        else:
            found.append((start, stop))
    return found


def _reaches(stop: bytes | None, to: bytes | None) -> bool:
    """Whether a span that ends at `stop` reaches `to`."""
    return stop is None or (to is not None and to <= stop)
