"""Ranges of stored keys: the entries of many keys within spans of time, for one bulk read."""

from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.stores.access import StoreColumns
from holdfast.stores.formats.byte_columns import cut, offsets_of
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.layouts.base import read_note
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.stores.layouts.timed import AFTER_TIME, AFTER_TIMES, NEWEST, noted_number
from holdfast.stores.layouts.windowed_rows import Times
from holdfast.stores.spec import SESSION, StoreSpec

_TIME_BYTES: Final = 8

KeyRange = tuple[bytes, bytes]
"""From the first key up to, but not including, the second one."""


def beginnings_of(spec: StoreSpec, own: pa.BinaryArray) -> pa.BinaryArray:
    """Own keys without their times."""
    offsets = offsets_of(own)
    return cut(own, offsets[:-1], offsets[1:] - np.int32(_TIME_BYTES * (2 if spec.kind == SESSION else 1)))


def ranges_of_keys(
    spec: StoreSpec,
    state: StoreColumns,
    beginnings: pa.BinaryArray,
    earliest: Times,
    latest: Times | None = None,
    *,
    lead: bytes = b"",
) -> list[KeyRange]:
    """Per key, its entries from its earliest to its latest time, in every slice that may have some.

    `lead` comes before own keys. Without `latest` the ranges are open to later times.
    """
    newest = noted_number(read_note(state, NEWEST))
    if newest is None or not len(beginnings):
        return []
    size = spec.slice_ms
    prefixes = {number: slice_prefix(number) + lead for number in range(int(earliest.min()) // size, newest + 1)}
    ends = [None] * len(beginnings) if latest is None else latest.tolist()
    ranges: list[KeyRange] = []
    for beginning, first, last in zip(beginnings.to_pylist(), earliest.tolist(), ends, strict=True):
        start = beginning + time_bytes(first)
        stop = beginning + (AFTER_TIMES if last is None else time_bytes(last) + AFTER_TIME)
        until = newest if last is None else min(newest, last // size)
        ranges += [(prefixes[n] + start, prefixes[n] + stop) for n in range(first // size, until + 1)]
    return sorted(ranges)
