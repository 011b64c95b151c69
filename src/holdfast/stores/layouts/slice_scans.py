"""Scans of several slices as one, in the order of the entries' own keys."""

import heapq
from collections.abc import Iterator, Sequence

from holdfast.stores.access import ReadableBytes
from holdfast.stores.formats.times import Row
from holdfast.stores.layouts.areas import PREFIX_BYTES, SLICE_AREA
from holdfast.stores.scans import close


def scan_slices(
    bytes_: ReadableBytes, prefixes: Sequence[bytes], start: bytes, stop: bytes | None, *, reverse: bool = False
) -> Iterator[Row]:
    """Entries with start <= own key < stop in these slices, as (own key, cell).

    Of entries with the same key, the one in the slice that is named first comes first.
    """
    after = SLICE_AREA if stop is None else stop  # own keys begin with 0x01
    return _merged(
        [bytes_.scan(prefix + start, prefix + after, reverse=reverse) for prefix in prefixes], reverse=reverse
    )


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
    """Of neighbours with the same key only the first."""
    last = None
    try:
        for key, data in rows:
            if key != last:
                last = key
                yield key, data
    finally:
        close(rows)
