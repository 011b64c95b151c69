"""Whole stores as blocks of columns: where the entries of a range of keys are, by the store's layout.

A key may be in several slices, of which the newest counts. So a range comes as one or more parts, the newest first,
and readers merge them.
"""

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, cast

from holdfast.stores.access import ColumnBlock, ColumnBytes, Now, OrderedBytes
from holdfast.stores.layouts.areas import ENTRY_AREA, SLICE_AREA
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.sliced import SlicedLayout
from holdfast.stores.layouts.slices import kept_after, live_prefixes, split_sliced_keys
from holdfast.stores.layouts.windowed import SessionEntries, WindowedLayout, WindowEntries
from holdfast.stores.spec import SESSION, StoreSpec

KeyRange = tuple[bytes, bytes | None]
"""Keys of entries, as they are encoded, from the first up to but not including the second; None: to the last."""

ALL_KEYS: Final[KeyRange] = (ENTRY_AREA, None)


class TimeRange(NamedTuple):
    """Windows by their starts and sessions by their ends, in milliseconds, both included. None leaves an end open."""

    first: int | None = None
    last: int | None = None


ALWAYS: Final = TimeRange()

Blocks = Generator[ColumnBlock, None, None]


def blocks_of(
    spec: StoreSpec, bytes_: ColumnBytes, now: Now, keys: KeyRange, times: TimeRange
) -> Iterator[list[Blocks]]:
    """The entries of a range by their own keys. The parts of one list have the same keys, the newest part first."""
    layout, (start, stop) = layout_of(spec), keys
    after = SLICE_AREA if stop is None else stop
    if isinstance(layout, WindowedLayout):
        entries = SessionEntries if spec.kind == SESSION else WindowEntries
        last = None if spec.kind == SESSION else times.last  # sessions are sliced by their ends
        for prefix in entries(spec, cast(OrderedBytes, bytes_), now).slices(times.first, last):
            yield [_without_slice(bytes_.columns(prefix + start, prefix + after))]
    elif isinstance(layout, SlicedLayout):
        yield [_without_slice(bytes_.columns(p + start, p + after)) for p in live_prefixes(spec, now.wall)]
    else:
        yield [bytes_.columns(start, after)]


def oldest_kept(spec: StoreSpec, now: Now) -> int:
    """Windows and sessions of this time or an earlier one are hidden."""
    return kept_after(spec, now)


def _without_slice(blocks: Blocks) -> Blocks:
    """The entries of one slice by their own keys."""
    try:
        for block in blocks:
            yield ColumnBlock(split_sliced_keys(block.keys)[1], block.values)
    finally:
        blocks.close()
