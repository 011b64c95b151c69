"""Slices: entries that go away together stand together, so that they can go as one range.

A sliced entry is kept under the number of its slice and its own key:

    0x02 | slice, 8 bytes big-endian, sign bit flipped | the entry's own key, which begins with 0x01

and the slice is a time divided by the store's `slice_ms`, rounded down. Which time that is depends on the kind:

    window                     its start
    session                    its end
    versioned, old values      when the value stopped being valid
    key-value with a TTL       the wall clock when it was written

An entry is kept while its time is later than the clock less what the store keeps (its retention, by the clock its spec
names, or its TTL, by the wall clock). What is older is hidden by every reader; when its bytes go is a matter of room
only. A TTL store is sliced by the write and not by the expiry, so that the newest slice always has the newest copy of a
key, also when one entry's TTL was shorter than the store's, or the store's was changed.
"""

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import BEGINNING, Now
from holdfast.stores.formats.byte_columns import (
    LARGEST,
    TooManyBytes,
    as_type,
    bytes_of,
    cut,
    from_matrix,
    lengths_of,
    numbers_at,
    offsets_of,
)
from holdfast.stores.formats.key_components import damaged
from holdfast.stores.spec import StoreSpec

AREA = b"\x02"
AFTER_AREA = b"\x03"
PREFIX_BYTES = 9
SLICES = 8
"""A store's time is cut into about this many slices: as much more than asked for is kept, at most, as one takes."""

LEAST_MS = 1_000

_SIGN = 1 << 63
_PREFIX = struct.Struct(">BQ")
_NUMBER = struct.Struct(">Q")
_NOTHING = pa.scalar(b"", pa.binary())


def slice_ms_for(keep_ms: int) -> int:
    """How much time a slice covers in a store that keeps this much.

    >>> slice_ms_for(86_400_000), slice_ms_for(2_000)
    (10800000, 1000)
    """
    return max(LEAST_MS, -(-keep_ms // SLICES))


def slice_of(time: int, slice_ms: int) -> int:
    """The slice a time is in.

    >>> slice_of(1_999, 1_000), slice_of(-1, 1_000)
    (1, -1)
    """
    return time // slice_ms


def slice_prefix(number: int) -> bytes:
    """What the keys of a slice begin with; a number that no time can have stands for the nearest that one can.

    >>> slice_prefix(1).hex(" "), slice_prefix(-1).hex(" ")
    ('02 80 00 00 00 00 00 00 01', '02 7f ff ff ff ff ff ff ff')
    """
    if -_SIGN <= number < _SIGN:
        return _PREFIX.pack(2, number + _SIGN)
    return AREA + (b"\x00" if number < 0 else b"\xff") * 8


def sliced_key(number: int, key: bytes) -> bytes:
    """Where an entry of a slice is kept.

    >>> sliced_key(1, b"\\x01ann").hex(" ")
    '02 80 00 00 00 00 00 00 01 01 61 6e 6e'
    """
    return slice_prefix(number) + key


def split_sliced(stored: bytes) -> tuple[int, bytes]:
    """The slice and the own key of a stored one.

    >>> split_sliced(sliced_key(-3, b"\\x01ann"))
    (-3, b'\\x01ann')
    """
    if len(stored) <= PREFIX_BYTES or stored[:1] != AREA:
        raise damaged(f"it begins with {stored[:1].hex() or 'nothing'}, and one in a slice with 02 and 8 bytes more")
    return _NUMBER.unpack_from(stored, 1)[0] - _SIGN, stored[PREFIX_BYTES:]


def group_of(key: bytes) -> bytes:
    """The prefix that a key shares with those that are dropped with it. Prefixes have the order of their keys.

    >>> group_of(b"\\x01ann"), group_of(b"\\x02slice-01\\x01ann")
    (b'\\x01', b'\\x02slice-01')
    """
    return key[:PREFIX_BYTES] if key[0] == AREA[0] else key[:1]


def slices_of(times: pa.Array | npt.NDArray[np.int64], slice_ms: int) -> npt.NDArray[np.int64]:
    """The slices of a column of times.

    >>> slices_of(np.array([1_999, -1]), 1_000).tolist()
    [1, -1]
    """
    column = times if isinstance(times, np.ndarray) else as_type(times, pa.int64()).to_numpy(zero_copy_only=False)
    return np.floor_divide(column, np.int64(slice_ms))


def sliced_keys(numbers: int | npt.NDArray[np.int64], keys: pa.Array) -> pa.BinaryArray:
    """A column of keys in their slices, or all in one; row by row what `sliced_key` gives.

    >>> sliced_keys(np.array([1, -1]), pa.array([b"\\x01a", b"\\x01b"])).to_pylist() == [
    ...     sliced_key(1, b"\\x01a"), sliced_key(-1, b"\\x01b")]
    True
    """
    keys = as_type(keys, pa.binary())
    rows = len(keys)
    total = rows * PREFIX_BYTES + int(lengths_of(keys).sum(dtype=np.int64))
    if total > LARGEST:
        raise TooManyBytes(total)
    if isinstance(numbers, int):
        return pc.binary_join_element_wise(pa.scalar(slice_prefix(numbers), pa.binary()), keys, _NOTHING)
    prefixes = np.empty(rows, dtype=np.dtype([("area", "u1"), ("number", ">u8")]))
    prefixes["area"] = AREA[0]
    prefixes["number"] = numbers.astype(np.int64).view(np.uint64) ^ np.uint64(_SIGN)
    matrix = prefixes.view(np.uint8).reshape(rows, PREFIX_BYTES)
    return pc.binary_join_element_wise(from_matrix(matrix), keys, _NOTHING)


def split_sliced_keys(stored: pa.Array) -> tuple[npt.NDArray[np.int64], pa.BinaryArray]:
    """The slices and the own keys of a column of stored ones."""
    stored = as_type(stored, pa.binary())
    offsets = offsets_of(stored)
    starts, stops = offsets[:-1], offsets[1:]
    if (stops - starts <= PREFIX_BYTES).any() or (bytes_of(stored)[starts] != AREA[0]).any():
        raise damaged("it doesn't begin with 02 and 8 bytes more, as one in a slice does")
    flipped = numbers_at(stored, starts + np.int32(1), ">u8")
    numbers: npt.NDArray[np.int64] = (flipped ^ np.uint64(_SIGN)).view(np.int64)
    return numbers, cut(stored, starts + np.int32(PREFIX_BYTES), stops)


def kept_after(spec: StoreSpec, now: Now) -> int:
    """The time up to which everything in the store's slices is hidden: an entry is kept if its time is later."""
    return retention_time(spec, now) - spec.retention_ms if spec.retention_ms else now.wall - spec.ttl_ms


def retention_time(spec: StoreSpec, now: Now) -> int:
    """What the store's retention goes by: a clock that never goes back, whenever the app has its first event time."""
    match spec.clock:
        case "event":
            return BEGINNING if now.event is None else now.event
        case "wall":
            return now.wall
        case None:
            return now.stream


def first_live_slice(spec: StoreSpec, now: Now) -> int:
    """The oldest slice that can still have something to show."""
    return slice_of(kept_after(spec, now) + 1, spec.slice_ms)


def live_slices(spec: StoreSpec, wall: int) -> range:
    """The slices in which a key of a TTL store may be, the newest first. The first one that has the key is right.

    A write goes to the first of them. It may hold an entry whose own time is over: then there is none.

    >>> from holdfast.stores.formats.types import Schema
    >>> spec = StoreSpec(name="a", key=Schema.of(k="string"), codec="msgpack/1", ttl_ms=8_000, slice_ms=1_000)
    >>> list(live_slices(spec, 10_000))
    [10, 9, 8, 7, 6, 5, 4, 3, 2]
    """
    return range(slice_of(wall, spec.slice_ms), first_live_slice(spec, Now(wall)) - 1, -1)


def live_prefixes(spec: StoreSpec, wall: int) -> list[bytes]:
    """What a key is to be prefixed with to find it in a TTL store, the newest slice first."""
    return [slice_prefix(number) for number in live_slices(spec, wall)]


def slices_to_drop(spec: StoreSpec, wall: int, event: int | None) -> tuple[bytes, bytes] | None:
    """The range of keys that nobody sees any more at a commit with these clocks; None for a store without slices.

    >>> from holdfast.stores.formats.types import Schema
    >>> spec = StoreSpec(name="a", key=Schema.of(k="string"), codec="msgpack/1", retention_ms=8_000, slice_ms=1_000)
    >>> start, stop = slices_to_drop(spec, 99_000, 10_000)
    >>> start == slice_prefix(-(2**63)), stop == slice_prefix(2)
    (True, True)
    """
    if not spec.slice_ms:
        return None
    start, stop = slice_prefix(-_SIGN), slice_prefix(first_live_slice(spec, Now(wall, event)))
    return (start, stop) if start < stop else None
