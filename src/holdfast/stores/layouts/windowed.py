"""The windowed layout: windows and sessions, by key and time, in slices (`timed` has the bytes they share).

    window    0x02 | slice of its start | 0x01 | key | start; where duplicates stay, the number of the put follows
    session   0x02 | slice of its end   | 0x01 | key | end | start

A window is there while its start, a session while its end, is later than the store's clock less its retention. Sessions
stand by their ends, so a search for those that reach into a span starts at the earliest end.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeVar

import pyarrow as pa

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.formats.times import Row, time_at, time_bytes
from holdfast.stores.layouts.base import AFTER_SLICED, NOTES, SLICED, Changed, Layout
from holdfast.stores.layouts.slices import first_live_slice, slice_prefix, split_sliced
from holdfast.stores.layouts.timed import AFTER_TIME, AFTER_TIMES, NotedNumber, TimedEntries
from holdfast.stores.scans import FIRST_ROWS, Closing, batches, close
from holdfast.stores.spec import StoreSpec

T = TypeVar("T")

PUTS: Final = NOTES + b"puts"
"""The note of how many puts a store with duplicates has had."""


@dataclass(frozen=True)
class WindowedLayout(Layout):
    """Entries by key and time, in slices."""

    entry_areas = (SLICED,)
    one_place = False

    def changed(self, part: pa.Table) -> Changed:
        raise self._not_by_key()

    def own_key(self, stored: bytes) -> bytes:
        return split_sliced(stored)[1]

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        return [(slice_prefix(first_live_slice(self.spec, now)), AFTER_SLICED)]


class WindowEntries(TimedEntries):
    """Windows by key and start."""

    def __init__(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._duplicates = bool(spec.option("duplicates"))
        self._puts = NotedNumber(PUTS, bytes_)
        self.at = -16 if self._duplicates else -8
        """Where the start is, from the end of a stored key."""

    def find(self, beginning: bytes, start: int) -> bytes | None:
        """The cell of a window, the last one put; None where it is hidden or there is none."""
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
        read: Callable[[Sequence[Row]], Sequence[T]],
        *,
        reverse: bool,
    ) -> Closing[T]:
        """What `read` makes of the windows of a key that start from one time to another, in order."""
        slice_ms = self._slice_ms
        if last is None or last // slice_ms != (number := first // slice_ms):
            return Closing.of_batches(self._fetch(beginning, first, last, read, reverse=reverse))
        # Within one slice they are often few: then they are read here and now, and nothing stays open.
        place = slice_prefix(number) + beginning
        rows = self._bytes.scan(place + time_bytes(first), place + time_bytes(last) + AFTER_TIME, reverse=reverse)
        found = list(islice(rows, FIRST_ROWS))
        if len(found) < FIRST_ROWS:
            return Closing(iter(read(found)))
        return Closing.of_batches(map(read, chain((found,), batches(rows))), rows)

    def _fetch(
        self,
        beginning: bytes,
        first: int,
        last: int | None,
        read: Callable[[Sequence[Row]], Sequence[T]],
        *,
        reverse: bool,
    ) -> Iterator[Iterable[T]]:
        start = beginning + time_bytes(first)
        stop = beginning + (AFTER_TIMES if last is None else time_bytes(last) + AFTER_TIME)
        slices = self.slices(first, last)
        for prefix in reversed(slices) if reverse else slices:
            for rows in batches(self._bytes.scan(prefix + start, prefix + stop, reverse=reverse)):
                yield read(rows)

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, first: int, last: int | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, int, bytes]]:
        """The same of the keys from one to another: own key, start and cell of each."""
        rows = self.scan_keys(self.slices(first, last), key_from, key_to, reverse=reverse)
        at = self.at
        try:
            for own, cell in rows:
                start = time_at(own, at)
                if start >= first and (last is None or start <= last):
                    yield own, start, cell
        finally:
            close(rows)

    def put(self, writable: OrderedBytes, beginning: bytes, start: int, cell: bytes | None) -> None:
        """Sets or, with None, deletes a window. With duplicates every put stays, and None does nothing."""
        own = beginning + time_bytes(start)
        if self._duplicates:
            if cell is None:
                return
            number = (self._puts.get() or 0) + 1
            own += time_bytes(number)
            self._puts.raise_to(number, writable)
        if cell is None:
            writable.delete(self.place(start, own))
        else:
            self.put_at(writable, start, own, cell)

    def delete(self, writable: OrderedBytes, beginning: bytes, start: int) -> None:
        """Removes a window, with all its duplicates."""
        place = self.place(start, beginning + time_bytes(start))
        if self._duplicates:
            for stored, _ in list(self._bytes.scan(place, place + AFTER_TIME)):
                writable.delete(stored)
        else:
            writable.delete(place)


class SessionEntries(TimedEntries):
    """Sessions by key, end and start."""

    def find(self, beginning: bytes, start: int, end: int) -> bytes | None:
        """The cell of one session; None where it is hidden or there is none."""
        return None if end <= self.kept_after else self._bytes.get(self._at(beginning, start, end))

    def fetch(
        self,
        beginning: bytes,
        first: int,
        latest: int | None,
        read: Callable[[int, int, bytes], T],
        *,
        reverse: bool,
    ) -> Iterator[T]:
        """What `read` makes of start, end and cell of a key's sessions that end at `first` or later.

        Those that start after `latest` are left out.
        """
        start, stop = beginning + time_bytes(first), beginning + AFTER_TIMES
        slices = self.slices(first, None)
        for prefix in reversed(slices) if reverse else slices:
            rows = self._bytes.scan(prefix + start, prefix + stop, reverse=reverse)
            try:
                for stored, cell in rows:
                    began = time_at(stored, -8)
                    if latest is None or began <= latest:
                        yield read(began, time_at(stored, -16), cell)
            finally:
                close(rows)

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, first: int, latest: int | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, int, int, bytes]]:
        """The same of the keys from one to another: own key, start, end and cell of each."""
        rows = self.scan_keys(self.slices(first, None), key_from, key_to, reverse=reverse)
        try:
            for own, cell in rows:
                start, end = time_at(own, -8), time_at(own, -16)
                if end >= first and (latest is None or start <= latest):
                    yield own, start, end, cell
        finally:
            close(rows)

    def put(self, writable: OrderedBytes, beginning: bytes, start: int, end: int, cell: bytes | None) -> None:
        """Sets or, with None, removes a session."""
        if cell is None:
            writable.delete(self._at(beginning, start, end))
        else:
            self.put_at(writable, end, beginning + time_bytes(end) + time_bytes(start), cell)

    def _at(self, beginning: bytes, start: int, end: int) -> bytes:
        return self.place(end, beginning + time_bytes(end) + time_bytes(start))
