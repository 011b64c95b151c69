"""The windowed layout: windows and sessions, by key and time, in slices (`timed` has the bytes that they share).

    window    0x02 | slice of its start | 0x01 | key | start; with duplicates, the number of the put follows
    session   0x02 | slice of its end   | 0x01 | key | end | start
    point     0x02 | slice of its time  | 0x00 | 0x01 | key | time, of sliding windows of an aggregate alone

A window is kept while its start is later than the store's clock minus the retention, and a session until its end is
earlier. Sessions are in the order of their ends, so a search for sessions that overlap a span starts at the earliest
end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, OrderedBytes
from holdfast.stores.formats.cells import unpack_many
from holdfast.stores.formats.times import Row, time_at, time_bytes
from holdfast.stores.layouts.areas import EXPIRY_AREA, NOTE_AREA, SLICE_AREA
from holdfast.stores.layouts.base import Changed, Counted, Layout, rows_in
from holdfast.stores.layouts.key_ranges import beginnings_of
from holdfast.stores.layouts.slices import first_live_slice, slice_prefix, split_sliced, split_sliced_keys
from holdfast.stores.layouts.timed import AFTER_TIME, NotedNumber, TimedEntries
from holdfast.stores.layouts.windowed_rows import Times, WindowedWriter, are_points, split_own_keys
from holdfast.stores.scans import FIRST_ROWS, Closing, batches, chained, close
from holdfast.stores.spec import StoreSpec

T = TypeVar("T")

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
"""The columns in which sinks get the times of a window."""

PUTS: Final = NOTE_AREA + b"puts"
"""The note of how many puts a store with duplicates has had."""


@dataclass(frozen=True)
class WindowedLayout(Layout):
    """Entries by key and time, in slices."""

    WRITER = WindowedWriter
    entry_areas = (SLICE_AREA,)
    one_place = False

    def changed(self, part: pa.Table) -> Changed:
        keys, cells = rows_in(part, SLICE_AREA)
        own = split_sliced_keys(keys)[1]
        if self.spec.option("sliding"):
            windows = pc.invert(are_points(own))
            own, cells = own.filter(windows), cells.filter(windows)
        return Changed(own, unpack_many(cells))

    def key_columns(self, keys: pa.BinaryArray) -> dict[str, pa.Array]:
        found = split_own_keys(self.spec, keys)
        names = (field.name for field in self.spec.key.fields)
        columns = dict(zip(names, found.key, strict=True))
        return columns | {WINDOW_START: _moments(found.starts), WINDOW_END: _moments(found.ends)}

    def own_key(self, stored: bytes) -> bytes:
        return split_sliced(stored)[1]

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        return [(slice_prefix(first_live_slice(self.spec, now)), EXPIRY_AREA)]


@dataclass(frozen=True)
class SessionLayout(WindowedLayout):
    """Sessions. One that is merged into another is deleted."""

    always_deletes = True

    def event_times(self, changed: Changed) -> pa.Int64Array:
        """The event times of sessions; that of a deleted one is the time of the session that it is part of now."""
        gone = changed.gone.to_numpy(zero_copy_only=False)
        times = changed.cells.timestamps
        if not gone.any():
            return times
        parts = split_own_keys(self.spec, changed.keys)
        keys = beginnings_of(self.spec, changed.keys).dictionary_encode().indices.to_numpy()
        order = np.lexsort((gone, parts.starts, keys))
        # In this order, the last session before a deleted one that isn't deleted. Sessions of a key are apart.
        last = np.maximum.accumulate(np.where(gone[order], -1, np.arange(len(order))))
        into = np.empty(len(order), dtype=np.int64)
        into[order] = np.where(last < 0, order, order[last])
        is_part = (keys[into] == keys) & (parts.ends[into] >= parts.ends)
        return times.take(pa.array(into, mask=~is_part))


def _moments(times: Times) -> pa.Array:
    return pa.array(times * np.int64(1_000)).cast(pa.timestamp("us", "UTC"))


class WindowEntries(TimedEntries):
    """Windows by key and start."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._duplicates = bool(spec.option("duplicates"))
        self._puts = NotedNumber(PUTS, bytes_)
        self._notes.append(self._puts)
        self.at = -16 if self._duplicates else -8
        """Where the start is, counted from the end of a stored key."""

    def find(self, beginning: bytes, start: int) -> bytes | None:
        """The cell of a window, with duplicates the last one put; None if it is hidden or missing."""
        if start <= self.kept_after:
            return None
        place = self.place(start, beginning + time_bytes(start))
        if not self._duplicates:
            return self._bytes.get(place)
        rows = self._bytes.scan(place, place + AFTER_TIME, reverse=True)
        cell = next((data for _, data in rows), None)
        close(rows)
        return cell

    def fetch(
        self,
        beginning: bytes,
        first: int,
        last: int | None,
        read: Callable[[Sequence[Row]], list[T]],
        *,
        reverse: bool,
    ) -> Closing[T]:
        """The windows of a key that start from `first` to `last`, in order, each batch of rows as `read` returns it."""
        slice_ms = self._slice_ms
        if last is None or last // slice_ms != (number := first // slice_ms):
            return Closing.of_batches(_read(batches(self.scan_key(beginning, first, last, reverse=reverse)), read))
        # Within one slice there are often only a few. They are read at once, so no scan stays open.
        place = slice_prefix(number) + beginning
        rows = self._bytes.scan(place + time_bytes(first), place + time_bytes(last) + AFTER_TIME, reverse=reverse)
        found = list(islice(rows, FIRST_ROWS))
        if len(found) < FIRST_ROWS:
            return Closing.of_list(read(found))
        return Closing.of_batches(_read(chained([iter((found,)), batches(rows)]), read))

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, first: int, last: int | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, int, bytes]]:
        """The windows of a range of keys: own key, start and cell."""
        rows = self.scan_keys(self.slices(first, last), key_from, key_to, reverse=reverse)
        return self._between(rows, first, last)

    def _between(self, rows: Iterator[Row], first: int, last: int | None) -> Iterator[tuple[bytes, int, bytes]]:
        at = self.at
        try:
            for own, cell in rows:
                start = time_at(own, at)
                if start >= first and (last is None or start <= last):
                    yield own, start, cell
        finally:
            close(rows)

    def count(self, most: int) -> Counted:
        return self._counted(self.fetch_keys(None, None, self.kept_after + 1, None, reverse=False), most)

    def put(self, beginning: bytes, start: int, cell: bytes | None) -> None:
        """Sets or, with None, deletes a window. With duplicates every put is kept, and None does nothing."""
        own = beginning + time_bytes(start)
        if self._duplicates:
            if cell is None:
                return
            number = (self._puts.get() or 0) + 1
            own += time_bytes(number)
            self._puts.raise_to(number)
        if cell is None:
            self._bytes.delete(self.place(start, own))
        else:
            self.put_at(start, own, cell)

    def delete(self, beginning: bytes, start: int) -> None:
        """Removes a window, with all its duplicates."""
        place = self.place(start, beginning + time_bytes(start))
        if self._duplicates:
            for stored, _ in list(self._bytes.scan(place, place + AFTER_TIME)):
                self._bytes.delete(stored)
        else:
            self._bytes.delete(place)


class SessionEntries(TimedEntries):
    """Sessions by key, end and start."""

    def find(self, beginning: bytes, start: int, end: int) -> bytes | None:
        """The cell of one session; None if it is hidden or missing."""
        return None if end <= self.kept_after else self._bytes.get(self._place(beginning, start, end))

    def fetch(
        self, beginning: bytes, first: int, latest: int | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, int, int, bytes]]:
        """The sessions of a key that end at `first` or later and start at `latest` or earlier.

        Each is its stored key, start, end and cell.
        """
        return _sessions(self.scan_key(beginning, first, None, reverse=reverse), first, latest)

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, first: int, latest: int | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, int, int, bytes]]:
        """The same for a range of keys, with the own key of each session."""
        return _sessions(self.scan_keys(self.slices(first, None), key_from, key_to, reverse=reverse), first, latest)

    def count(self, most: int) -> Counted:
        return self._counted(self.fetch_keys(None, None, self.kept_after + 1, None, reverse=False), most)

    def put(self, beginning: bytes, start: int, end: int, cell: bytes | None) -> None:
        """Sets or, with None, removes a session."""
        if cell is None:
            self._bytes.delete(self._place(beginning, start, end))
        else:
            self.put_at(end, beginning + time_bytes(end) + time_bytes(start), cell)

    def remove(self, place: bytes) -> None:
        """Removes the session under a stored key that `fetch` gave."""
        self._bytes.delete(place)

    def _place(self, beginning: bytes, start: int, end: int) -> bytes:
        return self.place(end, beginning + time_bytes(end) + time_bytes(start))


def _read(found: Iterator[list[Row]], read: Callable[[Sequence[Row]], list[T]]) -> Iterator[list[T]]:
    """What `read` makes of each batch of rows."""
    try:
        for rows in found:
            yield read(rows)
    finally:
        close(found)


def _sessions(rows: Iterator[Row], first: int, latest: int | None) -> Iterator[tuple[bytes, int, int, bytes]]:
    try:
        for key, cell in rows:
            start, end = time_at(key, -8), time_at(key, -16)
            if end >= first and (latest is None or start <= latest):
                yield key, start, end, cell
    finally:
        close(rows)
