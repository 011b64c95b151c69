"""Windows and sessions whose values a user's function computes (`topology.window_reducing`).

To the log and to queries they are window and session stores. In a task they also have the latest event time of each
window, the windows that the version has changed, and the index of those that wait to be sent
(`stores.layouts.waiting`). Sliding windows have a second store, with the records that they are made of.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.times import time_at, time_bytes
from holdfast.stores.kinds.base import LATE, Prefetch
from holdfast.stores.kinds.session import SessionStore
from holdfast.stores.kinds.timed import TimedStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.stores.layouts.waiting import WAITING_COUNT, WaitingEntries, drops_later
from holdfast.stores.spec import StoreSpec


class StoredWindow(NamedTuple):
    """A stored window, and the event time of its latest record."""

    start: int
    end: int
    value: Any
    timestamp: int


class WindowsBefore:
    """The windows that a version has changed so far, without values.

    Each is as it was before the version; None: it was not there.
    """

    def __init__(self) -> None:
        self.before: dict[bytes, StoredWindow | None] = {}
        self._of_record: list[bytes] = []

    def note(self, own: bytes, there: StoredWindow | None) -> None:
        """Notes what a window is before it changes, unless the version has changed it already."""
        if own not in self.before:
            self.before[own] = None if there is None else there._replace(value=None)
            self._of_record.append(own)

    def begin_record(self) -> None:
        self._of_record = []

    def undo_record(self) -> None:
        for own in self._of_record:
            del self.before[own]


class ReducedStore(TimedStore[Any, Any], ABC):
    """What windows and sessions have in common. `own` is a key and the times of a window, as bytes."""

    SINK_COLUMNS: ClassVar[tuple[str, ...]] = ("value", "timestamp")

    waiting: WaitingEntries
    changed: WindowsBefore

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[Any]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self.waiting = WaitingEntries(self._writable)
        self.changed = WindowsBefore()

    @abstractmethod
    def own(self, key: Any, start: int, end: int) -> bytes:
        """The key and the times of a window."""

    @abstractmethod
    def times_of(self, own: bytes) -> tuple[int, int]:
        """The start and the end of a window."""

    def key_of(self, own: bytes) -> Any:
        return self._key_of(own)

    def count_late(self) -> None:
        self._count(LATE, 1)

    def held(self, own: bytes) -> StoredWindow | None:
        """A window, also one that is past its retention and waits to be sent."""
        start, end = self.times_of(own)
        cell = self._writable.get(self._place(own))
        return None if cell is None else self._held(start, end, cell)

    def is_there(self, own: bytes) -> bool:
        return self._writable.get(self._place(own)) is not None

    def keep(self, own: bytes, value: Any, timestamp: int) -> None:
        self._timed.put_at(self._time(own), own, self._values.cell(value, timestamp))

    def drop(self, own: bytes) -> None:
        self._writable.delete(self._place(own))

    @abstractmethod
    def _time(self, own: bytes) -> int:
        """The time by which a window is in a slice: the first one after its key."""

    def _place(self, own: bytes) -> bytes:
        return self._timed.place(self._time(own), own)

    def _held(self, start: int, end: int, cell: bytes) -> StoredWindow:
        return StoredWindow(start, end, self._values.read(cell), unpack(cell).timestamp)

    @property
    def waits(self) -> bool:
        """Whether windows wait to be sent."""
        return drops_later(self._spec)

    def due(self, event: int) -> Iterator[tuple[bytes, int, StoredWindow | None]]:
        """The windows that are due at an event clock: since when, and what is stored of them."""
        waiting = self.waiting.due(event)
        found = self._writable.get_many([self._place(own) for _, own in waiting])
        for (due, own), cell in zip(waiting, found, strict=True):
            yield own, due, None if cell is None else self._held(*self.times_of(own), cell)

    def begin_record(self) -> None:
        super().begin_record()
        self.changed.begin_record()

    def undo_record(self) -> None:
        super().undo_record()
        self.changed.undo_record()

    def end_of_version(self) -> None:
        super().end_of_version()
        if self.waits:
            self._count(WAITING_COUNT, self.waiting.rest())


class ReducedWindows(ReducedStore, WindowStore[Any, Any]):
    """One value per key and window."""

    def own(self, key: Any, start: int, end: int) -> bytes:
        return self._beginning(key) + time_bytes(start)

    def times_of(self, own: bytes) -> tuple[int, int]:
        start = time_at(own, -8)
        return start, start + self._size

    def _time(self, own: bytes) -> int:
        return time_at(own, -8)


class ReducedSessions(ReducedStore, SessionStore[Any, Any]):
    """One value per key and session."""

    def own(self, key: Any, start: int, end: int) -> bytes:
        return self._beginning(key) + time_bytes(end) + time_bytes(start)

    def times_of(self, own: bytes) -> tuple[int, int]:
        return time_at(own, -8), time_at(own, -16)

    def _time(self, own: bytes) -> int:
        return time_at(own, -16)

    def near(self, key: Any, earliest_end: int, latest_start: int) -> list[StoredWindow]:
        """The sessions that overlap a span, in the order of their ends."""
        rows = self._timed.fetch(self._beginning(key), earliest_end, latest_start, reverse=False)
        return [self._held(start, end, cell) for _, start, end, cell in rows]


class KeptRecords(WindowStore[Any, Any]):
    """The records that sliding windows are made of, by key, event time and the order in which they came.

    A value is an object of the class of events that the user's function names, or of one with all columns.
    """

    def __init__(self, name: str, *, value: Any, fields: tuple[str, ...], **options: Any) -> None:
        super().__init__(name, value=value, duplicates=True, **options)
        self._fields = fields
        """The attributes of an event that are kept, in the order of the value's fields."""

    def add(self, key: Any, time: int, event: Any) -> Any:
        """Keeps a record, and returns its event as any later call reads it."""
        kept = event if type(event) is self._type else self._type(*(getattr(event, name) for name in self._fields))
        cell = self._values.cell(kept)
        self._timed.put(self._beginning(key), time, cell)
        return self._values.read(cell)

    def near(self, key: Any, time: int) -> list[tuple[int, bytes]]:
        """The records that may be in a window with one of this time, or right after it, as times and cells."""
        first = max(time - self._size, self._timed.kept_after + 1)
        rows = self._timed.scan_key(self._beginning(key), first, time + self._size + 1, reverse=False)
        return [(time_at(stored, self._timed.at), cell) for stored, cell in rows]

    def event(self, cell: bytes) -> Any:
        return self._values.read(cell)

    def prefetch(self, keys: Sequence[Any], times: Sequence[int]) -> Prefetch:
        size = self._size
        return self._prefetched_ranges(keys, times, lambda first, last: (first - size, last + size + 1))
