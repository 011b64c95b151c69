"""Buckets: several timed rows as one value, read and written as whole columns.

A join keeps the records of a key by spans of time. What is in one span is one value, so that reading it is one lookup:

    0x01 | spilled, u32 | count, u32 | times, 8 bytes each | lengths of the rows, u32 each | the rows

All numbers are little-endian. Times are in milliseconds. `spilled` says how many further values the span has.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import RESTORE_AGAIN, DamagedObject
from holdfast.stores.formats.byte_columns import (
    LARGEST,
    Bytes,
    TooManyBytes,
    bytes_of,
    cut,
    from_offsets,
    join_rows,
    lengths_of,
    numbers_at,
    offsets_of,
)

Numbers = npt.NDArray[np.int64]

FORMAT: Final = 1
_HEADER: Final = 9
_PER_ROW: Final = 12


@dataclass(frozen=True)
class Buckets:
    """A column of buckets taken apart: one number per bucket, and one per row of any bucket, in their order."""

    array: pa.BinaryArray
    spilled: Numbers
    counts: Numbers
    owners: Numbers
    """Per row, the place of its bucket in the column."""
    times: Numbers
    starts: Numbers
    stops: Numbers

    def rows(self, chosen: npt.NDArray[np.bool_] | Numbers) -> pa.BinaryArray:
        """Some of the rows."""
        return cut(self.array, self.starts[chosen].astype(np.int32), self.stops[chosen].astype(np.int32))


def encode_buckets(spilled: Numbers, counts: Numbers, times: Numbers, rows: pa.BinaryArray) -> pa.BinaryArray:
    """One bucket per count. `times` and `rows` have the rows of the first bucket, then those of the second ...

    >>> rows = pa.array([b"a", b"bc", b"d"], pa.binary())
    >>> stored = encode_buckets(np.array([0, 7]), np.array([2, 1]), np.array([5, 6, -1]), rows)
    >>> found = decode_buckets(stored, "pairs-left")
    >>> found.spilled.tolist(), found.owners.tolist(), found.times.tolist(), found.rows(found.times > 0).to_pylist()
    ([0, 7], [0, 0, 1], [5, 6, -1], [b'a', b'bc'])
    """
    begins = _sums(_HEADER + _PER_ROW * counts)
    if begins[-1] > LARGEST:
        raise TooManyBytes(int(begins[-1]))
    data = np.empty(int(begins[-1]), dtype=np.uint8)
    starts = begins[:-1]
    data[starts] = FORMAT
    _put(data, starts + 1, spilled.astype("<u4"))
    _put(data, starts + 5, counts.astype("<u4"))
    owners, nth = _members(counts)
    at = starts[owners] + _HEADER
    _put(data, at + 8 * nth, times.astype("<i8"))
    _put(data, at + 8 * counts[owners] + 4 * nth, lengths_of(rows).astype("<u4"))
    heads = from_offsets(begins.astype(np.int32), data)
    _, _, body = rows.buffers()
    places = offsets_of(rows)[_sums(counts)]
    return join_rows(heads, from_offsets(places, pa.py_buffer(b"") if body is None else body))


def decode_buckets(array: pa.BinaryArray, store: str) -> Buckets:
    """Takes a column of buckets apart. None of them is null. `store` is named where one can't be read."""
    offsets = offsets_of(array).astype(np.int64)
    starts, stops = offsets[:-1], offsets[1:]
    if ((stops - starts) < _HEADER).any() or (bytes_of(array)[starts] != FORMAT).any():
        raise _damaged(store, f"it doesn't begin with {FORMAT} and {_HEADER - 1} bytes more")
    spilled, counts = _numbers(array, starts + 1, "<u4"), _numbers(array, starts + 5, "<u4")
    if (starts + _HEADER + _PER_ROW * counts > stops).any():
        raise _damaged(store, "it has fewer bytes than its times and lengths take")
    owners, nth = _members(counts)
    at = starts[owners] + _HEADER
    times = _numbers(array, at + 8 * nth, "<i8")
    lengths = _numbers(array, at + 8 * counts[owners] + 4 * nth, "<u4")
    ends = _sums(lengths)
    before = ends[:-1] - ends[_sums(counts)[:-1]][owners]
    row_starts = starts[owners] + _HEADER + _PER_ROW * counts[owners] + before
    sizes = np.bincount(owners, weights=lengths, minlength=len(counts)).astype(np.int64)
    if (starts + _HEADER + _PER_ROW * counts + sizes != stops).any():
        raise _damaged(store, "its rows don't end where it does")
    return Buckets(array, spilled, counts, owners, times, row_starts, row_starts + lengths)


def _members(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Per row, the place of its bucket, and its place in that bucket."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - _sums(counts)[:-1][owners]


def _sums(numbers: Numbers) -> Numbers:
    """The sum of the numbers before each, and of all.

    >>> _sums(np.array([2, 3])).tolist()
    [0, 2, 5]
    """
    found: Numbers = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(numbers, dtype=np.int64)])
    return found


def _put(data: Bytes, places: Numbers, numbers: npt.NDArray[Any]) -> None:
    width = numbers.dtype.itemsize
    data[places[:, np.newaxis] + np.arange(width)] = numbers.view(np.uint8).reshape(-1, width)


def _numbers(array: pa.BinaryArray, places: Numbers, dtype: str) -> Numbers:
    return numbers_at(array, places.astype(np.int32), dtype).astype(np.int64)


def _damaged(store: str, fact: str) -> DamagedObject:
    return DamagedObject(f"a bucket of store {store!r} can't be read: {fact}. {RESTORE_AGAIN}")
