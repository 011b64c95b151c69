"""Ranges of stored keys: the entries of many keys within spans of time, for one bulk read."""

from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.stores.access import StoreColumns
from holdfast.stores.formats.byte_columns import cut, from_matrix, join_rows, offsets_of
from holdfast.stores.formats.key_order import key_order
from holdfast.stores.layouts.areas import flip_signs
from holdfast.stores.layouts.base import read_note
from holdfast.stores.layouts.slices import sliced_keys, slices_of
from holdfast.stores.layouts.timed import AFTER_TIME, AFTER_TIMES, NEWEST, noted_number
from holdfast.stores.layouts.windowed_rows import Times
from holdfast.stores.ranges import Ranges, expanded
from holdfast.stores.spec import SESSION, StoreSpec

_TIME_BYTES: Final = 8


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
) -> Ranges:
    """Per key, its entries from its earliest to its latest time, in every slice that may have some; in key order.

    `lead` comes before own keys. Without `latest` the ranges are open to later times. No key is there twice.
    """
    newest = noted_number(read_note(state, NEWEST))
    if newest is None or not len(beginnings):
        return Ranges.of([])
    first = slices_of(earliest, spec.slice_ms)
    last = np.full(len(first), newest) if latest is None else np.minimum(newest, slices_of(latest, spec.slice_ms))
    before = pa.scalar(lead, pa.binary())
    starts = join_rows(before, beginnings, _as_bytes(earliest))
    after = [pa.scalar(AFTER_TIMES, pa.binary())]
    if latest is not None:
        after = [_as_bytes(latest), pa.scalar(AFTER_TIME, pa.binary())]
    stops = join_rows(before, beginnings, *after)
    by_key = key_order(beginnings)
    slices, keys = expanded(first[by_key], np.maximum(first, last + 1)[by_key])
    order = np.argsort(slices, kind="stable")
    rows = pa.array(by_key[keys[order]])
    return Ranges(sliced_keys(slices[order], starts.take(rows)), sliced_keys(slices[order], stops.take(rows)))


def _as_bytes(times: Times) -> pa.BinaryArray:
    """Times as they are in stored keys."""
    return from_matrix(flip_signs(times).astype(">u8").view(np.uint8).reshape(len(times), _TIME_BYTES))
