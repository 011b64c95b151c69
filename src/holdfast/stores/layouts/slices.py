"""Slices: entries that expire together are stored together, so that they can be dropped as one range.

A sliced entry is stored under the number of its slice and its own key:

    0x02 | slice, 8 bytes big-endian, sign bit flipped | own key, which begins with 0x01

The slice is a time divided by the store's `slice_ms`, rounded down. Which time that is depends on the kind:

    window                     its start
    session                    its end
    versioned, old values      when the value stopped being valid
    key-value with a TTL       the wall clock when it was written

An entry is kept while its time is later than the store's clock minus the retention or TTL; a session also at exactly
that time. Retention uses the clock that the spec names, a TTL the wall clock. Every reader hides older entries; when
their bytes are dropped matters only for space. A TTL store is sliced by the time of the write and not of the expiry. So
the newest slice always has the newest copy of a key, even if an entry's TTL was shorter than the store's, or the
store's TTL was changed.
"""

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.stores.access import BEGINNING, Now
from holdfast.stores.formats.byte_columns import as_type, bytes_of, lengths_of, offsets_of
from holdfast.stores.formats.key_components import damaged
from holdfast.stores.formats.times import time_at
from holdfast.stores.layouts.areas import (
    PREFIX_BYTES,
    SLICE_AREA,
    flip_signs,
    numbered_keys,
    split_numbered_keys,
    unflip_signs,
)
from holdfast.stores.spec import SESSION, StoreSpec

SLICES = 8
"""The time that a store keeps is cut into about this many slices: at most one more than needed is kept."""

LEAST_MS = 1_000

_SIGN = 1 << 63
_PREFIX = struct.Struct(">BQ")


def slice_ms_for(keep_ms: int) -> int:
    """How much time one slice covers in a store that keeps entries for this long.

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
    """The first bytes of the keys of a slice; a number out of range means the nearest possible one.

    >>> slice_prefix(1).hex(" "), slice_prefix(-1).hex(" ")
    ('02 80 00 00 00 00 00 00 01', '02 7f ff ff ff ff ff ff ff')
    """
    if -_SIGN <= number < _SIGN:
        return _PREFIX.pack(2, number + _SIGN)
    return SLICE_AREA + (b"\x00" if number < 0 else b"\xff") * 8


def split_sliced(stored: bytes) -> tuple[int, bytes]:
    """The slice and the own key of a stored key.

    >>> split_sliced(slice_prefix(-3) + b"\\x01ann")
    (-3, b'\\x01ann')
    """
    if len(stored) <= PREFIX_BYTES or stored[:1] != SLICE_AREA:
        raise damaged(f"it begins with {stored[:1].hex() or 'nothing'}, and one in a slice with 02 and 8 bytes more")
    return time_at(stored, 1), stored[PREFIX_BYTES:]


def group_of(key: bytes) -> bytes:
    """The prefix that a key shares with the keys that are dropped with it. Prefixes have the order of their keys.

    >>> group_of(b"\\x01ann"), group_of(b"\\x02slice-01\\x01ann")
    (b'\\x01', b'\\x02slice-01')
    """
    return key[:PREFIX_BYTES] if key[0] == SLICE_AREA[0] else key[:1]


def slices_of(times: pa.Array | npt.NDArray[np.int64], slice_ms: int) -> npt.NDArray[np.int64]:
    """The slices of a column of times.

    >>> slices_of(np.array([1_999, -1]), 1_000).tolist()
    [1, -1]
    """
    column = times if isinstance(times, np.ndarray) else as_type(times, pa.int64()).to_numpy(zero_copy_only=False)
    return np.floor_divide(column, np.int64(slice_ms))


def sliced_keys(numbers: int | npt.NDArray[np.int64], keys: pa.Array) -> pa.BinaryArray:
    """The stored keys of a column of own keys, each in a slice of its own, or all in one."""
    column = np.full(len(keys), numbers) if isinstance(numbers, int) else numbers
    return numbered_keys(SLICE_AREA, flip_signs(column), keys)


def split_sliced_keys(stored: pa.Array) -> tuple[npt.NDArray[np.int64], pa.BinaryArray]:
    """The slices and the own keys of a column of stored keys."""
    stored = as_type(stored, pa.binary())
    if (lengths_of(stored) <= PREFIX_BYTES).any() or (bytes_of(stored)[offsets_of(stored)[:-1]] != SLICE_AREA[0]).any():
        raise damaged("it doesn't begin with 02 and 8 bytes more, as one in a slice does")
    numbers, keys = split_numbered_keys(stored)
    return unflip_signs(numbers), keys


def kept_after(spec: StoreSpec, now: Now) -> int:
    """Entries in slices are visible if their time is later than this.

    A session or a sliding window is visible at exactly the age of the retention: with the gap or size and the grace as
    retention, a record may be that late.
    """
    if not spec.retention_ms:
        return now.wall - spec.ttl_ms
    return retention_time(spec, now) - spec.retention_ms - (spec.kind == SESSION or bool(spec.option("sliding")))


def retention_time(spec: StoreSpec, now: Now) -> int:
    """The clock that measures the store's retention. It never goes back, not even with the first event time."""
    if spec.clock == "wall":
        return now.wall
    return BEGINNING if now.event is None else now.event


def first_live_slice(spec: StoreSpec, now: Now) -> int:
    """The oldest slice that can still have visible entries."""
    return slice_of(kept_after(spec, now) + 1, spec.slice_ms)


def live_slices(spec: StoreSpec, wall: int) -> range:
    """The slices in which a key of a TTL store may be, the newest first. The first one that has the key counts.

    A write goes to the first of them. If the entry that counts has expired by its own TTL, the key has none.

    >>> from holdfast.stores.formats.types import Schema
    >>> spec = StoreSpec(name="a", key=Schema.of(k="string"), codec="msgpack/1", ttl_ms=8_000, slice_ms=1_000)
    >>> list(live_slices(spec, 10_000))
    [10, 9, 8, 7, 6, 5, 4, 3, 2]
    """
    return range(slice_of(wall, spec.slice_ms), first_live_slice(spec, Now(wall)) - 1, -1)


def live_prefixes(spec: StoreSpec, wall: int) -> list[bytes]:
    """The prefixes under which a key of a TTL store may be stored, the newest slice first."""
    return [slice_prefix(number) for number in live_slices(spec, wall)]


def slices_to_drop(spec: StoreSpec, wall: int, event: int | None) -> tuple[bytes, bytes] | None:
    """The range of stored keys that no reader sees at a commit with these clocks; None for a store without slices.

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
