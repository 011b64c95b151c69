"""Ranges of stored keys as columns, for bulk reads of many ranges at once."""

from collections.abc import Iterable
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
