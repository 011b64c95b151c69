"""The versioned store: what each key's value was at any time, for as long as the history is kept.

A put says since when a value is valid; it ends the value before it, and is ended by the next, whatever order they
arrive in. A key's latest value is a plain entry. Every earlier one is stored in the slice of when it ended,

    0x02 | slice | 0x01 | key | valid to | valid from  →  cell

so the first one that ends after a time is the one that was valid then, if it had begun. The history is kept for the
retention; the latest value stays, and is what was valid at any time since it began, however long ago. A delete is a put
of None: an entry that begins and ends at that time, or a late put before it would come back to life. It goes with its
slice; by then a put before it is refused, so nothing can come back.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, Unpack, overload

from holdfast.errors import TopologyError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import Cell, unpack
from holdfast.stores.kinds.base import NOTES, REFUSED, Options, Prefetch, Time, View, millis
from holdfast.stores.kinds.containers import Closing, close
from holdfast.stores.kinds.keying import time_at, time_bytes
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.kinds.timed import Number, TimedStore, TimedView
from holdfast.stores.options import Length, kept_for
from holdfast.stores.options import millis as length
from holdfast.stores.spec import VERSIONED, StoreSpec

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
K2 = TypeVar("K2")
K3 = TypeVar("K3")

DELETED = NOTES + b"deleted"
"""The note of the latest time of any delete. A key without a latest value has no entry that ends after it."""

_NOTHING = cells.pack(Cell(b""))


class VersionedRecord(NamedTuple, Generic[V]):
    """A value, since when it is valid, and until before when; None if it is the latest."""

    value: V
    timestamp: int
    valid_to: int | None


class _Old(NamedTuple):
    """An entry of the history. One that begins when it ends is a delete."""

    place: bytes
    cell: bytes
    valid_from: int
    valid_to: int


class ReadOnlyVersionedKeyValueStore(TimedView[K, V]):
    """Reads a versioned store."""

    TIMES = 2
    _deleted: Number

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._deleted = Number(DELETED, bytes_)

    def get(self, key: K, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """A key's latest value, or the one that was valid at a time. Before the history that can only be the latest."""
        latest = self._bytes.get(self._encode(key))
        if as_of is None:
            return None if latest is None else self._latest(latest)
        time = millis(as_of)
        if latest is not None and unpack(latest).timestamp <= time:
            return self._latest(latest)
        if time < self._kept_after:
            return None
        old = self._next_old(self._beginning(key), time)
        return self._record(old) if old is not None and old.valid_from <= time else None

    def history(
        self, key: K, from_: Time | None = None, to: Time | None = None, *, reverse: bool = False
    ) -> Closing[VersionedRecord[V]]:
        """A key's values that were valid at some time from one to another, both included; the earliest first.

        Of times before the history only the latest value is known.
        """
        first, last = None if from_ is None else millis(from_), None if to is None else millis(to)
        if first is not None and last is not None and last < first:
            return Closing(iter(()))
        kept = self._kept_after if first is None else max(self._kept_after, first)
        return Closing(self._history(key, kept, last, reverse=reverse))

    def _history(self, key: K, first: int, last: int | None, *, reverse: bool) -> Iterator[VersionedRecord[V]]:
        data = self._bytes.get(self._encode(key))
        latest = None if data is None else self._latest(data)
        if latest is not None and last is not None and latest.timestamp > last:
            latest = None
        if latest is not None and reverse:
            yield latest
        known = last is None or last >= first  # or all of the span is before the history
        for old in self._olds(self._beginning(key), first, reverse=reverse) if known else ():
            if last is not None and old.valid_from > last:
                if reverse:
                    continue
                break
            if old.valid_from < old.valid_to:
                yield self._record(old)
        if latest is not None and not reverse:
            yield latest

    def _olds(self, own: bytes, after: int, *, reverse: bool = False) -> Iterator[_Old]:
        """What of a key's history ends after a time, in the order of ends."""
        start, stop = own + time_bytes(after + 1), own + b"\xff" * 17
        slices = self._slices(after + 1, None)
        for prefix in reversed(slices) if reverse else slices:
            rows = self._bytes.scan(prefix + start, prefix + stop, reverse=reverse)
            try:
                for place, cell in rows:
                    yield _Old(place, cell, time_at(place, -8), time_at(place, -16))
            finally:
                close(rows)

    def _next_old(self, own: bytes, after: int) -> _Old | None:
        olds = self._olds(own, after)
        found = next(olds, None)
        close(olds)
        return found

    def _latest(self, cell: bytes) -> VersionedRecord[V]:
        return VersionedRecord(self._values.read(cell), unpack(cell).timestamp, None)

    def _record(self, old: _Old) -> VersionedRecord[V]:
        return VersionedRecord(self._values.read(old.cell), old.valid_from, old.valid_to)


def _history(
    view: ReadOnlyVersionedKeyValueStore[Any, Any], key: Any, *, from_: int | None, to: int | None
) -> Iterator[Item]:
    with view.history(key, from_, to) as records:
        for record in records:
            yield {"value": record.value, "timestamp": record.timestamp, "valid_to": record.valid_to}


class VersionedKeyValueStore(TimedStore[K, V], ReadOnlyVersionedKeyValueStore[K, V]):
    """What each key's value was at any time, for as long as `retention`.

    >>> from holdfast.stores.access import DictBytes
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

    def __init__(self, name: str, *, value: Any, retention: Length, key: Any = str, **options: Unpack[Options]):
        super().__init__(name, key=key, value=value, retention=retention, **options)

    @classmethod
    def options(cls, where: str, *, retention: Length | None = None) -> dict[str, Any]:
        if retention is None:
            raise TopologyError(f"{where}: a versioned store needs retention=: how long a key's history is kept.")
        return kept_for(length(retention, "retention", where))

    def put(self, key: K, value: V | None, timestamp: Time) -> bool:
        """Says what a key's value is since a time; None: that it has none. False: it is older than the history.

        A value before or after it in time keeps its place, whichever was put first. One of the very same time is
        replaced.
        """
        time = millis(timestamp)
        if time < self._kept_after:
            self._count(REFUSED, 1)
            return False
        encoded, own = self._encode(key), self._beginning(key)
        cell = None if value is None else self._values.cell(value, time)
        latest = self._bytes.get(encoded)
        since = None if latest is None else unpack(latest).timestamp
        if latest is not None and since is not None and since <= time:
            self._follow(encoded, own, latest, since, cell, time)
        else:
            self._insert(encoded, own, since, cell, time)
        return True

    def delete(self, key: K, timestamp: Time) -> VersionedRecord[V] | None:
        """Says that a key has no value since a time, and returns the one it had then; None if that is refused."""
        had = self.get(key, as_of=timestamp)
        return had if self.put(key, None, timestamp) else None

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        wanted = super().prefetch(keys, times)
        return Prefetch([*wanted.keys, DELETED], [])

    def read_only(self) -> ReadOnlyVersionedKeyValueStore[K, V]:
        """The same history, without the methods that change it."""
        return self._as(ReadOnlyVersionedKeyValueStore)

    def _follow(self, encoded: bytes, own: bytes, latest: bytes, since: int, cell: bytes | None, time: int) -> None:
        """The usual put: what was the latest is now old, or is replaced."""
        if since < time:
            self._keep_old(own, latest, since, time)
        self._set_latest(encoded, own, cell, time)

    def _insert(self, encoded: bytes, own: bytes, since: int | None, cell: bytes | None, time: int) -> None:
        """A put before the latest value, or of a key that has none."""
        deleted = self._deleted.get()
        quiet = since is None and (deleted is None or deleted < time)
        after = None if quiet else self._next_old(own, time)
        if after is None and since is None:  # nothing begins later: it is the latest itself
            if cell is None:
                self._keep_delete(own, time)
            else:
                self._undelete(own, time)
                self._writable.put(encoded, cell)
        elif after is not None and after.valid_from <= time:
            self._split(own, after, cell, time)
        else:
            self._undelete(own, time)
            ends = after.valid_from if after is not None else since
            assert ends is not None
            self._set_old(own, cell, time, ends)

    def _split(self, own: bytes, old: _Old, cell: bytes | None, time: int) -> None:
        """What was valid then ends at that time, or is replaced."""
        self._writable.delete(old.place)
        if old.valid_from < time:
            self._keep_old(own, old.cell, old.valid_from, time)
        self._set_old(own, cell, time, old.valid_to)

    def _set_latest(self, encoded: bytes, own: bytes, cell: bytes | None, time: int) -> None:
        if cell is not None:
            self._writable.put(encoded, cell)
            return
        self._writable.delete(encoded)
        self._keep_delete(own, time)

    def _set_old(self, own: bytes, cell: bytes | None, time: int, ends: int) -> None:
        if cell is None:
            self._keep_delete(own, time)
        else:
            self._keep_old(own, cell, time, ends)

    def _keep_old(self, own: bytes, cell: bytes, valid_from: int, valid_to: int) -> None:
        if valid_to > self._kept_after:
            self._put_in_slice(valid_to, own + time_bytes(valid_to) + time_bytes(valid_from), cell)

    def _keep_delete(self, own: bytes, time: int) -> None:
        if time > self._kept_after:
            self._put_in_slice(time, own + time_bytes(time) + time_bytes(time), _NOTHING)
            self._deleted.raise_to(time, self._writable)

    def _undelete(self, own: bytes, time: int) -> None:
        """A value of the very time of a delete replaces it."""
        deleted = self._deleted.get()
        if deleted is not None and deleted >= time:
            place = self._place(time, own + time_bytes(time) + time_bytes(time))
            if self._bytes.get(place) is not None:
                self._writable.delete(place)
