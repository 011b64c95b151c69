"""The versioned store: what the value of each key was at any time, for as long as the history is kept.

A put says since when a value is valid. It ends the value before it and is ended by the next one, in whatever order they
arrive. A delete is a put of None. `stores.layouts.versioned` has the bytes.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, Unpack, overload

from holdfast.errors import TopologyError
from holdfast.stores.formats.cells import unpack
from holdfast.stores.kinds.base import K1, K2, K3, REFUSED, K, Options, Prefetch, Time, V, View, check_span, millis
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.kinds.timed import TimedStore, TimedView
from holdfast.stores.layouts.versioned import DELETED, Old, VersionedEntries
from holdfast.stores.options import Length, kept_for, words
from holdfast.stores.options import millis as length
from holdfast.stores.scans import Closing
from holdfast.stores.spec import VERSIONED


class VersionedRecord(NamedTuple, Generic[V]):
    """A value, the time since it is valid, and the time it ended; None if it is the latest."""

    value: V
    timestamp: int
    valid_to: int | None


class ReadOnlyVersionedKeyValueStore(TimedView[K, V]):
    """Reads a versioned store."""

    ENTRIES = VersionedEntries
    TIMES = 2
    _timed: VersionedEntries

    def get(self, key: K, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """The latest value of a key, or the value at a time. Before the history only the latest value is known."""
        latest = self._timed.latest(self._encode(key))
        if as_of is None:
            return None if latest is None else self._latest(latest)
        time = millis(as_of)
        if latest is not None and unpack(latest).timestamp <= time:
            return self._latest(latest)
        if time < self._timed.kept_after:
            return None
        old = self._timed.next_old(self._beginning(key), time)
        return self._record(old) if old is not None and old.valid_from <= time else None

    def history(
        self, key: K, from_: Time | None = None, to: Time | None = None, *, reverse: bool = False
    ) -> Closing[VersionedRecord[V]]:
        """The values of a key that were valid between two times, both included; the earliest first.

        Before the history only the latest value is known.
        """
        data = self._timed.latest(self._encode(key))
        check_span(from_, to)
        first, last = None if from_ is None else millis(from_), None if to is None else millis(to)
        latest = None if data is None else self._latest(data)
        if latest is not None and last is not None and latest.timestamp > last:
            latest = None
        kept = self._timed.kept_after if first is None else max(self._timed.kept_after, first)
        known = last is None or last >= kept  # otherwise the whole span is before the history
        olds = self._timed.olds(self._beginning(key), kept, reverse=reverse) if known else iter(())
        return Closing(self._history(latest, olds, last, reverse=reverse))

    def _history(
        self, latest: VersionedRecord[V] | None, olds: Iterator[Old], last: int | None, *, reverse: bool
    ) -> Iterator[VersionedRecord[V]]:
        with Closing(olds):
            if latest is not None and reverse:
                yield latest
            for old in olds:
                if last is not None and old.valid_from > last:
                    if reverse:
                        continue
                    break
                if old.valid_from < old.valid_to:
                    yield self._record(old)
            if latest is not None and not reverse:
                yield latest

    def _latest(self, cell: bytes) -> VersionedRecord[V]:
        return VersionedRecord(self._values.read(cell), unpack(cell).timestamp, None)

    def _record(self, old: Old) -> VersionedRecord[V]:
        return VersionedRecord(self._values.read(old.cell), old.valid_from, old.valid_to)


def _history(
    view: ReadOnlyVersionedKeyValueStore[Any, Any], key: Any, *, from_: int | None, to: int | None
) -> Iterator[Item]:
    with view.history(key, from_, to) as records:
        for record in records:
            yield {"value": record.value, "timestamp": record.timestamp, "valid_to": record.valid_to}


class VersionedKeyValueStore(TimedStore[K, V], ReadOnlyVersionedKeyValueStore[K, V]):
    """What the value of each key was at any time, for as long as `retention`.

    >>> from holdfast.stores.access import DictBytes, Now
    >>> prices = VersionedKeyValueStore("prices", value=int, retention="1h").bind(DictBytes(), Now(wall=9_000))
    >>> prices.put("tea", 3, 1_000), prices.put("tea", 4, 5_000)
    (True, True)
    >>> prices.get("tea", as_of=2_000)
    VersionedRecord(value=3, timestamp=1000, valid_to=5000)
    """

    KIND: ClassVar[str | None] = VERSIONED
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyVersionedKeyValueStore
    BY_KEY: ClassVar[bool] = True
    QUERIES: ClassVar[tuple[Query, ...]] = (
        Query("history", _history, optional={"from_": TIME, "to": TIME}, order=itemgetter("timestamp")),
    )

    @overload
    def __init__(
        self: "VersionedKeyValueStore[str, V]",
        name: str,
        *,
        value: type[V],
        retention: Length,
        **options: Unpack[Options],
    ): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], retention: Length, **options: Unpack[Options]): ...

    @overload
    def __init__(
        self: "VersionedKeyValueStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        retention: Length,
        **options: Unpack[Options],
    ): ...

    @overload
    def __init__(
        self: "VersionedKeyValueStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        retention: Length,
        **options: Unpack[Options],
    ): ...

    def __init__(self, name: str, *, value: Any, key: Any = str, **options: Any):
        super().__init__(name, key=key, value=value, **options)

    @classmethod
    def options(cls, where: str, *, retention: Length | None = None) -> dict[str, Any]:
        if retention is None:
            raise TopologyError(f"{where}: a versioned store needs retention=: how long the history is kept.")
        if not (keep_ms := length(retention, "retention", where, shortest=0)):
            raise TopologyError(
                f'{where}: retention="{words(keep_ms)}" keeps no history. Use 1ms or more, or '
                "hf.TimestampedKeyValueStore, which has the newest value by event time."
            )
        return kept_for(keep_ms)

    def put(self, key: K, value: V | None, timestamp: Time) -> bool:
        """Sets the value of a key from a time on; None: it has none. Returns False if that is before the history.

        Values before and after that time stay, whichever was put first. A value of exactly that time is replaced.
        """
        encoded, time = self._encode(key), millis(timestamp)
        if time < self._timed.kept_after:
            self._count(REFUSED, 1)
            return False
        cell = None if value is None else self._values.cell(value, time)
        self._timed.put(encoded, self._beginning(key), cell, time)
        return True

    def delete(self, key: K, timestamp: Time) -> VersionedRecord[V] | None:
        """Ends the value of a key at a time, and returns the value it had then; None if that is refused."""
        had = self.get(key, as_of=timestamp)
        return had if self.put(key, None, timestamp) else None

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        wanted = super().prefetch(keys, times)
        return Prefetch([*wanted.keys, DELETED], [])

    def read_only(self) -> ReadOnlyVersionedKeyValueStore[K, V]:
        """The same history, without the methods that change it."""
        return self._as(ReadOnlyVersionedKeyValueStore)
