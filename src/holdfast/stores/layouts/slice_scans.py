"""Scans of several slices as one, in the order of the entries' own keys."""

import heapq
from collections.abc import Iterator, Sequence

from holdfast.stores.access import ReadableBytes
from holdfast.stores.formats.times import Row
from holdfast.stores.layouts.slices import PREFIX_BYTES
from holdfast.stores.scans import close


def scan_slices(
    bytes_: ReadableBytes, prefixes: Sequence[bytes], start: bytes, stop: bytes | None, *, reverse: bool = False
) -> Iterator[Row]:
    """Entries with start <= own key < stop of these slices, as (own key, cell).

    Of entries with one key, the one of the slice that is named first comes first.
    """
    scans = [_scan(bytes_, prefix, start, stop, reverse=reverse) for prefix in prefixes]
    if len(scans) == 1:
        return _own(scans[0])
    return _merged(scans, reverse=reverse)


def _scan(bytes_: ReadableBytes, prefix: bytes, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Row]:
    # An own key begins with 0x01, so 0x02 is after them all.
    return bytes_.scan(prefix + start, prefix + (b"\x02" if stop is None else stop), reverse=reverse)


def _own(rows: Iterator[Row]) -> Iterator[Row]:
    try:
        for key, data in rows:
            yield key[PREFIX_BYTES:], data
    finally:
        close(rows)


def _merged(scans: Sequence[Iterator[Row]], *, reverse: bool) -> Iterator[Row]:
    ranks = range(len(scans), 0, -1) if reverse else range(len(scans))
    ranked = [_ranked(rows, rank) for rows, rank in zip(scans, ranks, strict=True)]
    try:
        for key, _, data in heapq.merge(*ranked, reverse=reverse):
            yield key, data
    finally:
        for rows in scans:
            close(rows)


def _ranked(rows: Iterator[Row], rank: int) -> Iterator[tuple[bytes, int, bytes]]:
    for key, data in rows:
        yield key[PREFIX_BYTES:], rank, data


def first_of_each(rows: Iterator[Row]) -> Iterator[Row]:
    """Of neighbours with one key only the first."""
    last = None
    try:
        for key, data in rows:
            if key != last:
                last = key
                yield key, data
    finally:
        close(rows)
