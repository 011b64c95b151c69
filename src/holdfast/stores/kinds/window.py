"""The window store: a value by key and window start.

An entry is stored at key and start, in the slice of its start; with `duplicates=True` a number follows, so that every
put stays. A window is there while its start is later than the stream's time less the retention; a put of an older one
is refused and counted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, Unpack, overload

from holdfast.errors import TopologyError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.kinds.base import NOTES, Options, Prefetch, Time, View, millis
from holdfast.stores.kinds.containers import FIRST_ROWS, Closing, batches, close
from holdfast.stores.kinds.keying import time_at, time_bytes
from holdfast.stores.kinds.merging import Row
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.kinds.timed import Number, TimedStore, TimedView
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.stores.options import Length, kept_for, retention_ms, words
from holdfast.stores.options import millis as length
from holdfast.stores.spec import WINDOW, StoreSpec

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
K2 = TypeVar("K2")
K3 = TypeVar("K3")

PUTS = NOTES + b"puts"
"""The note of how many puts a store with duplicates has had."""

_AFTER = b"\xff" * 9
"""What is after whatever follows a start."""
_LAST = b"\xff" * 17
"""What is after every start, and whatever follows it."""


class Windowed(NamedTuple, Generic[K]):
    """A key in one of its windows, from start to before end, in milliseconds since 1970."""

    key: K
    start: int
    end: int


class WindowOptions(Options, total=False):
    """What a window store can be told beside its size."""

    retention: Length | None
    grace: Length
    duplicates: bool


class ReadOnlyWindowStore(TimedView[K, V]):
    """Reads a window store."""

    _duplicates: bool
    _size: int
    _tail: int
    """Where the start begins, from the end of a stored key."""
    _puts: Number
    _typed: Callable[[Sequence[Row]], list[tuple[int, V]]]
    """Reads windows of one key as (start, value)."""

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        self._duplicates, self._size = bool(spec.option("duplicates")), spec.option("window_ms")
        self._tail = -16 if self._duplicates else -8
        self._puts = Number(PUTS, bytes_)
        super()._attach(spec, bytes_, now, codec)
        self._typed = self._values.timed_reader(self._tail)

    def _times(self) -> int:
        return -self._tail // 8

    @overload
    def fetch(self, key: K, start: Time) -> V | None: ...

    @overload
    def fetch(
        self, key: K, *, from_: Time | None = None, to: Time | None = None, reverse: bool = False
    ) -> Closing[tuple[int, V]]: ...

    def fetch(
        self,
        key: K,
        start: Time | None = None,
        *,
        from_: Time | None = None,
        to: Time | None = None,
        reverse: bool = False,
    ) -> V | Closing[tuple[int, V]] | None:
        """The value of the window that starts then; or the key's windows that start from one time to another.

        Both times are included, and None leaves an end open. Windows come as (start, value), the earliest first.
        """
        if start is not None:
            return self._one(key, millis(start))
        first, last = self._span(from_, to)
        own, slice_ms = self._beginning(key), self._slice_ms
        if last is None or last // slice_ms != (number := first // slice_ms):
            return Closing.of_batches(self._fetch(own, first, last, reverse=reverse))
        # Within one slice they are often few: then they are read here and now, and nothing stays open.
        place = slice_prefix(number) + own
        rows = self._bytes.scan(place + time_bytes(first), place + time_bytes(last) + _AFTER, reverse=reverse)
        found = list(islice(rows, FIRST_ROWS))
        if len(found) < FIRST_ROWS:
            return Closing(iter(self._typed(found)))
        return Closing.of_batches(map(self._typed, chain((found,), batches(rows))), rows)

    def fetch_all(
        self, from_: Time | None = None, to: Time | None = None, *, reverse: bool = False
    ) -> Closing[tuple[Windowed[K], V]]:
        """All keys' windows that start from one time to another, in the order of keys, then of starts."""
        return self.fetch_keys(None, None, from_, to, reverse=reverse)

    def fetch_keys(
        self,
        key_from: K | None,
        key_to: K | None,
        from_: Time | None = None,
        to: Time | None = None,
        *,
        reverse: bool = False,
    ) -> Closing[tuple[Windowed[K], V]]:
        """The same for the keys from one to another, both included."""
        first, last = self._span(from_, to)
        rows = self._scan_keys(self._slices(first, last), key_from, key_to, reverse=reverse)
        return Closing(self._windows(rows, first, last))

    def _span(self, from_: Time | None, to: Time | None) -> tuple[int, int | None]:
        first = self._kept_after + 1
        if from_ is not None and (time := from_ if type(from_) is int else millis(from_)) > first:
            first = time
        return first, to if to is None or type(to) is int else millis(to)

    def _one(self, key: K, start: int) -> V | None:
        if start <= self._kept_after:
            return None
        own = self._beginning(key) + time_bytes(start)
        if self._duplicates:
            place = self._place(start, own)
            rows = self._bytes.scan(place, place + b"\xff" * 9, reverse=True)
            cell = next((data for _, data in rows), None)  # the last one put
            close(rows)
        else:
            cell = self._bytes.get(self._place(start, own))
        return None if cell is None else self._values.read(cell)

    def _fetch(self, own: bytes, first: int, last: int | None, *, reverse: bool) -> Iterator[Iterable[tuple[int, V]]]:
        start, stop = own + time_bytes(first), own + (_LAST if last is None else time_bytes(last) + _AFTER)
        slices = self._slices(first, last)
        for prefix in reversed(slices) if reverse else slices:
            for rows in batches(self._bytes.scan(prefix + start, prefix + stop, reverse=reverse)):
                yield self._typed(rows)

    def _windows(self, rows: Iterator[Row], first: int, last: int | None) -> Iterator[tuple[Windowed[K], V]]:
        tail, size, read, key_of = self._tail, self._size, self._values.read, self._key_of
        try:
            for own, cell in rows:
                start = time_at(own, tail)
                if start >= first and (last is None or start <= last):
                    yield Windowed(key_of(own), start, start + size), read(cell)
        finally:
            close(rows)


def _windows(view: ReadOnlyWindowStore[Any, Any], key: Any, *, from_: int | None, to: int | None) -> Iterator[Item]:
    size = view._size
    with view.fetch(key, from_=from_, to=to) as windows:
        for start, value in windows:
            yield {"start": start, "end": start + size, "value": value}


class WindowStore(TimedStore[K, V], ReadOnlyWindowStore[K, V]):
    """A value by key and window start.

    >>> from holdfast.stores.access import DictBytes
    >>> plays = WindowStore("plays", value=int, size="1m").bind(DictBytes(), Now(wall=120_000))
    >>> plays.put("ann", 3, 0); plays.put("ann", 5, 60_000)
    >>> plays.fetch("ann", 60_000), list(plays.fetch("ann", from_=0, to=60_000))
    (5, [(0, 3), (60000, 5)])
    """

    KIND: ClassVar[str | None] = WINDOW
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyWindowStore
    QUERIES: ClassVar[tuple[Query, ...]] = (
        Query("windows", _windows, optional={"from_": TIME, "to": TIME}, order=itemgetter("start")),
    )

    @overload
    def __init__(
        self: "WindowStore[str, V]", name: str, *, value: type[V], size: Length, **options: Unpack[WindowOptions]
    ): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], size: Length, **options: Unpack[WindowOptions]): ...

    @overload
    def __init__(
        self: "WindowStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        size: Length,
        **options: Unpack[WindowOptions],
    ): ...

    @overload
    def __init__(
        self: "WindowStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        size: Length,
        **options: Unpack[WindowOptions],
    ): ...

    def __init__(self, name: str, *, value: Any, size: Length, key: Any = str, **options: Unpack[WindowOptions]):
        super().__init__(name, key=key, value=value, size=size, **options)

    @classmethod
    def options(
        cls,
        where: str,
        *,
        size: Length | None = None,
        grace: Length = "0s",
        retention: Length | None = None,
        duplicates: bool = False,
    ) -> dict[str, Any]:
        if size is None:
            raise TopologyError(f'{where}: a window store needs size=, such as size="5m".')
        size_ms, grace_ms = length(size, "size", where), length(grace, "grace", where, shortest=0)
        span = {"span": "a window's size", "entries": "windows"}
        kept = retention_ms(retention, where, span_ms=size_ms, grace_ms=grace_ms, **span)
        fixed = (("window_ms", size_ms), *((("duplicates", True),) if duplicates else ()))
        return {**kept_for(kept), "fixed": fixed, "options": (("grace_ms", grace_ms),) if grace_ms else ()}

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        yield f"size {words(spec.option('window_ms'))}, grace {words(spec.option('grace_ms') or 0)}"
        yield from super().describe_options(spec)
        if spec.option("duplicates"):
            yield "keeps duplicates"

    def put(self, key: K, value: V | None, start: Time) -> None:
        """Sets the value of a key's window; None deletes it. With duplicates every put stays, and None does nothing."""
        time = millis(start)
        if self._refused(time):
            return
        own = self._beginning(key) + time_bytes(time)
        if self._duplicates:
            if value is None:
                return
            number = (self._puts.get() or 0) + 1
            own += time_bytes(number)
            self._puts.raise_to(number, self._writable)
        if value is None:
            self._writable.delete(self._place(time, own))
        else:
            self._put_in_slice(time, own, self._values.cell(value))

    def delete(self, key: K, start: Time) -> None:
        """Removes a key's window, with all its duplicates."""
        time = millis(start)
        place = self._place(time, self._beginning(key) + time_bytes(time))
        if self._duplicates:
            for stored, _ in list(self._bytes.scan(place, place + b"\xff" * 9)):
                self._writable.delete(stored)
        else:
            self._writable.delete(place)

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        size = self._size
        return self._ranges_ahead(keys, times, lambda first, last: (first - size, last + size))

    def read_only(self) -> ReadOnlyWindowStore[K, V]:
        """The same windows, without the methods that change them."""
        return self._as(ReadOnlyWindowStore)
