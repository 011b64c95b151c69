"""A store in a task: its state at `v-1`, and over it the task's own writes.

A read looks into the task's writes, then into the prefetched entries, and asks the instance only for entries in
neither. Writes stay in memory until the end of the task, so several writes of one key become one, and a new key that is
deleted again becomes none. Entries at `v-1` never change, so a read entry stays valid while the task runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import compress
from typing import Final

import pyarrow as pa
from sortedcontainers import SortedList

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.segments import STATE, STATE_SCHEMA, too_large
from holdfast.pipeline.task_state import TaskState
from holdfast.stores.layouts.base import area_of, is_entry
from holdfast.stores.ranges import Range, Ranges, Spans, united

FIRST_PAGE: Final = 1_000
"""How many entries of a range that was not prefetched are read first. A range with fewer is cached."""
LATER_PAGES: Final = 20_000
ITERATED: Final = 50_000
"""After how many keys of a scan it keeps only those of its newest page."""
ENTRY_BYTES: Final = 150
"""The measured memory of an entry beside its key and value: two objects and a place in a dictionary."""

Entries = Sequence[tuple[bytes, bytes]]


class TooMuchState(HoldfastError):
    """A task changed more in one version than it may keep in memory."""

    category = ErrorCategory.INVALID


class _Unknown(Enum):
    UNKNOWN = 0


UNKNOWN: Final = _Unknown.UNKNOWN


class Budget:
    """How many bytes of changes a task may still keep. All its stores share it."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def exceeded(self, store: str) -> TooMuchState:
        return TooMuchState(
            f"A task holds more than {self.limit:,} bytes of changes in one version (the last was to store {store!r}), "
            "which is the setting batch.state_bytes. Raise it, or use smaller batches (batch.max_records, "
            "batch.max_files) or more partitions."
        )


class StoreState:
    """One store in one task: ordered bytes to read and to change.

    >>> from holdfast.pipeline.task_state import EmptyState
    >>> state = StoreState("scores", EmptyState(), Budget(1 << 20))
    >>> state.put(b"b", b"2"); state.put(b"a", b"1"); state.delete(b"b")
    >>> state.get(b"a"), state.get(b"b"), list(state.scan(b"a", None))
    (b'1', None, [(b'a', b'1')])
    """

    __slots__ = (
        "_before",
        "_budget",
        "_ends",
        "_page_read",
        "_perhaps_new",
        "_read",
        "_spans",
        "_written",
        "along",
        "changes",
        "iterated",
        "iterated_page",
        "name",
    )

    def __init__(self, name: str, before: TaskState, budget: Budget) -> None:
        self.name = name
        self.changes: dict[bytes, bytes | None] = {}
        """The task's writes; None is a delete."""
        self.iterated: list[bytes] = []
        """The keys that the last scan has returned so far, in its order; of a long one, the last of them."""
        self.iterated_page = 0
        """Grows with each change of `iterated`."""
        self.along: Callable[[bytes], list[bytes]] = _nothing
        """The keys that a lookup of this one reads along, if it has to ask."""
        self._before = before
        self._budget = budget
        self._page_read: Mapping[bytes, bytes] = {}
        """The last two pages of a long scan: entries that are decoded together may be of both."""
        self._ends: dict[bytes, bytes] = {}
        """Area → its last key at `v-1`, where that was read."""
        self._perhaps_new: set[bytes] = set()
        """Deleted keys that may not have been there at `v-1`."""
        self._read: dict[bytes, bytes | None] = {}
        self._spans = Spans()
        self._written: SortedList[bytes] | None = None
        """The sorted keys of the changes, from the first scan that needs them."""

    # Reading

    def get(self, key: bytes) -> bytes | None:
        value = self.changes.get(key, UNKNOWN)
        if value is UNKNOWN:
            value = self._read.get(key, UNKNOWN)
            if value is UNKNOWN:
                return self._fetch(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        changes, read = self.changes, self._read
        missing = next((key for key in keys if key not in read and key not in changes), None)
        if missing is not None:
            self.prefetch(keys if missing in self._page_read else [*keys, *self.along(missing)])
        if not changes:
            return list(map(read.__getitem__, keys))
        return [changes[key] if key in changes else read[key] for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the moment of the call. The task's own are copied here; those at `v-1` never change."""
        if stop is not None and start >= stop:
            return iter(())
        return self._merged(start, stop, self._own(start, stop), reverse)

    def _merged(
        self, start: bytes, stop: bytes | None, own: dict[bytes, bytes | None], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Reads the state at `v-1` when the first entry is asked for."""
        before = self._spans.find(start, stop)
        if before is None and self._is_new(start, stop):
            before = []
        if before is None:
            page = self._page(start, stop, reverse, FIRST_PAGE)
            if len(page) == FIRST_PAGE:
                yield from self._paged(start, stop, page, own, reverse)
                return
            self._remember([(start, stop)], page if not reverse else page[::-1])
            before = self._spans.find(start, stop)
            assert before is not None
        keys = sorted({*before, *own}) if own and before else before or list(own)
        read = self._read
        keys = keys[::-1] if reverse else keys
        self._note_iterated(keys, first=True)
        for key in keys:
            value = own[key] if key in own else read[key]
            if value is not None:
                yield key, value

    def approximate_count(self) -> int:
        """Counts a put as a new key unless the key was read."""
        read, written = self._read, self.changes.items()
        change = sum(-1 if value is None else read.get(key) is None for key, value in written)
        return max(0, self._before.approximate_count(self.name) + change)

    # Writing

    def put(self, key: bytes, value: bytes) -> None:
        changes = self.changes
        old = changes.get(key, UNKNOWN)
        if old is UNKNOWN:
            grown = len(key) + len(value) + ENTRY_BYTES
            if self._written is not None:
                self._written.add(key)
        else:
            grown = len(value) - (len(old) if old is not None else 0)
        changes[key] = value
        budget = self._budget
        budget.left -= grown
        if budget.left < 0:
            raise budget.exceeded(self.name)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        changes = self.changes
        new = dict(zip(keys, values, strict=True))
        if not changes.keys().isdisjoint(new):
            for key, value in new.items():
                self.put(key, value)
            return
        changes.update(new)
        if self._written is not None:
            self._written.update(new)
        self.hold(len(new), sum(map(len, new)) + sum(map(len, new.values())))

    def delete(self, key: bytes) -> None:
        # A layout deletes only rows of an index that are there, unless this version has written them.
        if self._read.get(key) is None and (key in self.changes or is_entry(key)):
            self._perhaps_new.add(key)
        self.put(key, b"")
        self.changes[key] = None

    def hold(self, entries: int, size: int) -> None:
        budget = self._budget
        budget.left -= size + ENTRY_BYTES * entries
        if budget.left < 0:
            raise budget.exceeded(self.name)

    # Around a chunk of records

    def prefetch(self, keys: Iterable[bytes], ranges: Iterable[Range] = ()) -> None:
        """Reads keys and ranges in bulk, without those that are already known."""
        changes, read, page = self.changes, self._read, self._page_read
        missing = {key for key in keys if key not in changes and key not in read}
        if page:
            read.update({key: page[key] for key in missing if key in page})
        wanted = sorted(missing - page.keys())
        if wanted:
            found = self._before.get(self.name, pa.array(wanted, pa.binary()))
            read.update(zip(wanted, found.to_pylist(), strict=True))
        spans = [span for span in united(ranges) if self._spans.find(*span) is None]
        if spans:
            self._remember(spans, _pairs(self._before.scan_many(self.name, Ranges.of(spans))))

    def forget(self) -> None:
        """Drops the entries that were read, for the next chunk."""
        self._read = {}
        self._page_read = {}
        self._spans = Spans()
        self.iterated = []

    def settle(self) -> None:
        """Removes tombstones of keys that were not there at `v-1`, at the end of a version.

        A key that came and went within the version leaves nothing, neither in the log nor for sinks.
        """
        gone = sorted(key for key in self._perhaps_new if self.changes[key] is None)
        self._perhaps_new.clear()
        unknown = [key for key in gone if key not in self._read and not self._spans.covers(key)]
        there = {key for key in gone if self._read.get(key) is not None}
        if unknown:
            found = self._before.get(self.name, pa.array(unknown, pa.binary()))
            there.update(compress(unknown, found.is_valid().to_pylist()))
        for key in gone:
            if key not in there:
                del self.changes[key]
        self._written = None

    def table(self) -> pa.Table:
        """The changes as a state part."""
        try:
            keys, values = pa.array(self.changes.keys(), pa.binary()), pa.array(self.changes.values(), pa.binary())
        except pa.ArrowCapacityError as error:  # one value is too large
            raise too_large(STATE, self.name, max(len(value or b"") for value in self.changes.values())) from error
        return pa.table([keys, values], schema=STATE_SCHEMA)

    def _own(self, start: bytes, stop: bytes | None) -> dict[bytes, bytes | None]:
        """The changes within a range, in order."""
        changes = self.changes
        if not changes:
            return {}  # no need to sort before the first write
        if self._written is None:
            self._written = SortedList(changes)
        return {key: changes[key] for key in self._written.irange(start, stop, inclusive=(True, False))}

    def _fetch(self, key: bytes) -> bytes | None:
        if self._spans.covers(key) or self._is_new(key, key):
            return None
        self.prefetch([key] if key in self._page_read else [key, *self.along(key)])
        return self._read[key]

    def _is_new(self, start: bytes, stop: bytes | None) -> bool:
        """Whether a range is after all entries that its area had at `v-1`.

        With time, windows, sessions and entries with a TTL get to slices that are still empty. One read of the area's
        last key answers for all of them.
        """
        area, after = area_of(start)
        if stop is None or after is None or stop > after:
            return False
        if area not in self._ends:
            last = self._before.scan(self.name, area, after, reverse=True, limit=1)["key"]
            self._ends[area] = last[0].as_py() if len(last) else area
        return start > self._ends[area]

    def _note_iterated(self, keys: list[bytes], *, first: bool) -> None:
        self.iterated = keys if first or len(self.iterated) > ITERATED else self.iterated + keys
        self.iterated_page += 1

    def _page(self, start: bytes, stop: bytes | None, reverse: bool, limit: int) -> Entries:
        return _pairs(self._before.scan(self.name, start, stop, reverse=reverse, limit=limit))

    def _remember(self, spans: Sequence[Range], entries: Entries) -> None:
        self._read.update(entries)
        self._spans.add(spans, [key for key, _ in entries])

    def _paged(
        self, start: bytes, stop: bytes | None, page: Entries, own: dict[bytes, bytes | None], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """A long range, page by page, merged with the task's own writes."""
        waiting = list(own) if reverse else list(reversed(own))
        first = True
        there: dict[bytes, bytes] = {}
        while page:
            last = page[-1][0]
            mine = []
            while waiting and (waiting[-1] >= last if reverse else waiting[-1] <= last):
                mine.append(waiting.pop())
            former, there = there, dict(page)
            self._page_read = former | there
            keys = sorted({*there, *mine}, reverse=reverse)
            self._note_iterated(keys, first=first)
            first = False
            yield from _entries(keys, own, there)
            if reverse:
                page = self._page(start, last, True, LATER_PAGES)
            else:
                page = self._page(last + b"\x00", stop, False, LATER_PAGES)
        yield from _entries(reversed(waiting), own, {})


def _nothing(key: bytes) -> list[bytes]:
    return []


def _entries(
    keys: Iterable[bytes], own: Mapping[bytes, bytes | None], read: Mapping[bytes, bytes | None]
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of keys that were read or written."""
    for key in keys:
        value = own[key] if key in own else read[key]
        if value is not None:
            yield key, value


def _pairs(entries: pa.Table) -> Entries:
    return list(zip(entries["key"].to_pylist(), entries["value"].to_pylist(), strict=True))
