"""The session store: one value per key and session. A session lasts from its first event to its last.

A session is kept until its end is more than the retention before the store's clock (`stores.layouts.windowed`).
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, Unpack, overload

from holdfast.errors import BadValue
from holdfast.stores.kinds.base import K1, K2, K3, K, Options, Prefetch, Time, V, View, check_span, length_in_ms, millis
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.kinds.timed import TimedStore, TimedView
from holdfast.stores.layouts.windowed import SessionEntries
from holdfast.stores.options import Length, span_fields, words
from holdfast.stores.options import millis as length
from holdfast.stores.scans import Closing, close
from holdfast.stores.spec import SESSION, StoreSpec


class Session(NamedTuple, Generic[K]):
    """A session of a key: the times of its first and last event, in milliseconds since 1970."""

    key: K
    start: int
    end: int


class SessionOptions(Options, total=False):
    """The options of a session store."""

    gap: Length | None
    grace: Length
    retention: Length | None


class ReadOnlySessionStore(TimedView[K, V]):
    """Reads a session store."""

    ENTRIES = SessionEntries
    TIMES = 2
    _timed: SessionEntries

    def get(self, key: K, start: Time, end: Time) -> V | None:
        """The value of one session."""
        cell = self._timed.find(self._beginning(key), millis(start), millis(end))
        return None if cell is None else self._values.read(cell)

    def find(
        self, key: K, earliest_end: Time | None = None, latest_start: Time | None = None, *, reverse: bool = False
    ) -> Closing[tuple[Session[K], V]]:
        """The sessions of a key that overlap `earliest_end` to `latest_start`, in the order of their ends.

        These end at `earliest_end` or later and start at `latest_start` or earlier. None leaves an end open.
        """
        first, latest = self._span(earliest_end, latest_start)
        rows = self._timed.fetch(self._beginning(key), first, latest, reverse=reverse)
        return Closing(self._sessions(rows, lambda _: key))

    def find_keys(
        self,
        key_from: K | None,
        key_to: K | None,
        earliest_end: Time | None = None,
        latest_start: Time | None = None,
        *,
        reverse: bool = False,
    ) -> Closing[tuple[Session[K], V]]:
        """The same for a range of keys, both ends included, in the order of keys, then of ends."""
        first, latest = self._span(earliest_end, latest_start)
        between = self._beginning_or_none(key_from), self._beginning_or_none(key_to)
        return Closing(self._sessions(self._timed.fetch_keys(*between, first, latest, reverse=reverse), self._key_of))

    def fetch(self, key: K, *, reverse: bool = False) -> Closing[tuple[Session[K], V]]:
        """All sessions of a key, in the order of their ends."""
        return self.find(key, reverse=reverse)

    def _span(self, earliest_end: Time | None, latest_start: Time | None) -> tuple[int, int | None]:
        check_span(earliest_end, latest_start)
        kept = self._timed.kept_after + 1
        first = kept if earliest_end is None else max(kept, millis(earliest_end))
        return first, None if latest_start is None else millis(latest_start)

    def _sessions(
        self, rows: Iterator[tuple[bytes, int, int, bytes]], key_of: Callable[[bytes], K]
    ) -> Iterator[tuple[Session[K], V]]:
        read = self._values.read
        try:
            for own, start, end, cell in rows:
                yield Session(key_of(own), start, end), read(cell)
        finally:
            close(rows)


def _sessions(view: ReadOnlySessionStore[Any, Any], key: Any, *, from_: int | None, to: int | None) -> Iterator[Item]:
    with view.find(key, from_, to) as sessions:
        for session, value in sessions:
            yield {"start": session.start, "end": session.end, "value": value}


def _all_sessions(
    view: ReadOnlySessionStore[Any, Any], first: Any, last: Any, *, from_: int | None, to: int | None
) -> Iterator[Item]:
    with view.find_keys(first, last, from_, to) as sessions:
        for (key, start, end), value in sessions:
            yield {"key": key, "start": start, "end": end, "value": value}


class SessionStore(TimedStore[K, V], ReadOnlySessionStore[K, V]):
    """One value per key and session.

    >>> from holdfast.stores.access import DictBytes, Now
    >>> visits = SessionStore("visits", value=int, gap="10s").bind(DictBytes(), Now(wall=0))
    >>> visits.merge("ann", 5_000, None, lambda one, other: one + other, 1)
    Session(key='ann', start=5000, end=5000)
    >>> visits.merge("ann", 9_000, None, lambda one, other: one + other, 1)
    Session(key='ann', start=5000, end=9000)
    >>> list(visits.fetch("ann"))
    [(Session(key='ann', start=5000, end=9000), 2)]
    """

    KIND: ClassVar[str | None] = SESSION
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlySessionStore
    QUERIES: ClassVar[tuple[Query, ...]] = (
        Query(
            "sessions",
            _sessions,
            optional={"from_": TIME, "to": TIME},
            order=itemgetter("end", "start"),
            all_keys=_all_sessions,
        ),
    )

    @overload
    def __init__(self: "SessionStore[str, V]", name: str, *, value: type[V], **options: Unpack[SessionOptions]): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], **options: Unpack[SessionOptions]): ...

    @overload
    def __init__(
        self: "SessionStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        **options: Unpack[SessionOptions],
    ): ...

    @overload
    def __init__(
        self: "SessionStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        **options: Unpack[SessionOptions],
    ): ...

    def __init__(self, name: str, *, value: Any, key: Any = str, **options: Unpack[SessionOptions]):
        super().__init__(name, key=key, value=value, **options)

    @classmethod
    def options(
        cls, where: str, *, gap: Length | None = None, grace: Length = "0s", retention: Length | None = None
    ) -> dict[str, Any]:
        gap_ms, span = 0 if gap is None else length(gap, "gap", where), "a session's gap"
        fields = span_fields(where, span=span, entries="sessions", span_ms=gap_ms, grace=grace, retention=retention)
        return {**fields, "fixed": (("window_ms", gap_ms),) if gap_ms else ()}

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        if gap := spec.option("window_ms"):
            yield f"gap {words(gap)}, grace {words(spec.option('grace_ms') or 0)}"
        yield from super().describe_options(spec)

    def put(self, session: Session[K], value: V | None) -> None:
        """Sets the value of a session; None removes it."""
        beginning, start, end = self._beginning(session.key), millis(session.start), millis(session.end)
        if start > end:
            raise BadValue(f"{session} starts after it ends. Start is the time of its first event, end of its last.")
        if self._refused(end):
            return
        cell = None if value is None else self._values.cell(value)
        self._timed.put(beginning, start, end, cell)

    def remove(self, session: Session[K]) -> None:
        """Removes a session."""
        start, end = millis(session.start), millis(session.end)
        self._timed.put(self._beginning(session.key), start, end, None)

    def merge(
        self, key: K, at: Time, gap: Length | int | None, merge_values: Callable[[V, V], V], initial: V
    ) -> Session[K] | None:
        """Adds an event to a key: sessions within the gap of it become one session, with their values merged.

        The gap is a length of time such as "30m", or milliseconds; None is the gap of the declaration. Values are
        merged in the order of their sessions, and `initial`, the value of the event, last. Returns None for an event
        so late that its session would be hidden already; it is refused and counted.
        """
        beginning, time, gap_ms, timed = self._beginning(key), millis(at), self._gap_ms(gap), self._timed
        near = list(timed.fetch(beginning, max(timed.kept_after + 1, time - gap_ms), time + gap_ms, reverse=False))
        if not near and self._refused(time):
            return None
        start, end = time, time
        merged: V | None = None
        for _, first, last, cell in near:
            start, end = min(start, first), max(end, last)
            value = self._values.read(cell)
            merged = value if merged is None else merge_values(merged, value)
        for place, first, last, _ in near:
            if (first, last) != (start, end):
                timed.remove(place)
        merged = initial if merged is None else merge_values(merged, initial)
        timed.put(beginning, start, end, None if merged is None else self._values.cell(merged))
        return Session(key, start, end)

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        gap = self._spec.option("window_ms") or 0
        return self._prefetched_ranges(keys, times, lambda first, last: (first - gap, None))

    def read_only(self) -> ReadOnlySessionStore[K, V]:
        """The same sessions, without the methods that change them."""
        return self._as(ReadOnlySessionStore)

    def _gap_ms(self, gap: Length | int | None) -> int:
        if gap is not None:
            return length_in_ms(gap, "gap", self.name)
        if not (declared := self._spec.option("window_ms")):
            raise BadValue(
                f'store {self.name!r} has no gap. Give merge() one, such as "30m", or declare the store with gap=.'
            )
        return int(declared)
