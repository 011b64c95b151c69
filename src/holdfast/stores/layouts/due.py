"""When the next thing in a store is due by the wall clock.

Entries in slices are hidden as soon as the wall clock has passed them: nothing has to be done but to move the clock.
Entries in the expiry index are removed by tasks. Both are found with one look at the first key, so a slice is known to
have entries, but not when exactly: from the first time at which one of them can be hidden on, its store is due again
after every hundredth of the slice.

Event time passes only with records, so entries that it hides are never due. Windows that wait to be sent are due
`AT_ONCE` if the event clock of the version is past their time: the version that sends them is the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.formats.times import time_at, time_bytes
from holdfast.stores.layouts.areas import EXPIRY_AREA, RECENCY_AREA
from holdfast.stores.layouts.slices import first_live_slice, slice_prefix, split_sliced
from holdfast.stores.layouts.waiting import drops_later, first_waiting
from holdfast.stores.scans import close
from holdfast.stores.spec import StoreSpec
from holdfast.words import Millis

STEPS = 100
"""In how many steps the entries of a slice are hidden."""
AT_ONCE: Final = Millis(0)
"""The time of what doesn't wait for the wall clock: what is due by event time, or after a start."""


class Due(NamedTuple):
    """The next times at which something is due, in milliseconds of the wall clock; None: never."""

    hidden: int | None = None
    """When entries may be hidden."""
    tasks: int | None = None
    """When tasks have to run: to remove entries, or to call punctuators."""

    @property
    def first(self) -> int | None:
        """
        >>> Due(hidden=7, tasks=5).first, Due().first
        (5, None)
        """
        return min((time for time in self if time is not None), default=None)

    @classmethod
    def soonest(cls, several: Iterable[Due]) -> Due:
        """What is due first in several stores or tasks.

        >>> Due.soonest([Due(hidden=7), Due(hidden=5, tasks=9), Due()])
        Due(hidden=5, tasks=9)
        """
        columns = zip(*several, strict=True)
        return cls(*(min((time for time in times if time is not None), default=None) for times in columns))


def may_be_due(spec: StoreSpec) -> bool:
    """Whether anything in such a store can be due: an aggregate without a TTL and event time need no look."""
    if spec.slice_ms:
        return drops_later(spec) or not (spec.retention_ms and spec.clock == "event")
    return bool(spec.ttl_ms) or spec.value.by_processor


def next_due(spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> Due:
    """What is due next in a store, seen at a version with these clocks."""
    if not may_be_due(spec):
        return Due()
    if not spec.slice_ms:
        return Due(tasks=_first_time(bytes_, EXPIRY_AREA))
    if drops_later(spec):
        waiting = first_waiting(bytes_)
        is_due = waiting is not None and now.event is not None and waiting <= now.event
        return Due(tasks=AT_ONCE if is_due else None)
    # Of entries with a TTL of their own, the second in which they expire is marked.
    own = Due(_first_time(bytes_, EXPIRY_AREA + time_bytes(now.wall + 1)))
    return Due.soonest([Due(_next_in_slices(spec, bytes_, now)), own])


def _next_in_slices(spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> int | None:
    stored = _first(bytes_, slice_prefix(first_live_slice(spec, now)), EXPIRY_AREA)
    if stored is None:
        return None
    begins = split_sliced(stored)[0] * spec.slice_ms
    keep = spec.retention_ms or spec.ttl_ms
    step = max(1, spec.slice_ms // STEPS)
    return min(max(begins + keep, now.wall + step), begins + spec.slice_ms + keep)


def _first_time(bytes_: ReadableBytes, start: bytes) -> int | None:
    """The first time in the expiry index."""
    row = _first(bytes_, start, RECENCY_AREA)
    return None if row is None else time_at(row, 1)


def _first(bytes_: ReadableBytes, start: bytes, stop: bytes) -> bytes | None:
    rows = bytes_.scan(start, stop)
    row = next(rows, None)
    close(rows)
    return None if row is None else row[0]
