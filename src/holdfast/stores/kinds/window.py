"""The window store: one value per key and window start.

With `duplicates=True` every put is kept. A window is kept while its start is later than the store's clock minus the
retention; a put of an older window is refused and counted. `stores.layouts.windowed` has the bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, Required, Unpack, overload

from holdfast.errors import TopologyError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.times import Row
from holdfast.stores.kinds.base import K1, K2, K3, K, Options, Prefetch, Time, V, View, check_span, millis
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.kinds.timed import TimedStore, TimedView
from holdfast.stores.layouts.windowed import WindowEntries
from holdfast.stores.options import Length, span_fields, words
from holdfast.stores.options import millis as length
from holdfast.stores.scans import Closing
from holdfast.stores.spec import WINDOW, StoreSpec


class Windowed(NamedTuple, Generic[K]):
    """A key in one of its windows, from start to before end, in milliseconds since 1970."""

    key: K
    start: int
    end: int


class WindowOptions(Options, total=False):
    size: Required[Length]
    retention: Length | None
    grace: Length
    duplicates: bool


class ReadOnlyWindowStore(TimedView[K, V]):
    """Reads a window store."""

    _size: int
    ENTRIES = WindowEntries
    _timed: WindowEntries
    _typed: Callable[[Sequence[Row]], list[tuple[int, V]]]
    """Reads windows of one key as (start, value)."""

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        self._size = spec.option("window_ms")
        super()._attach(spec, bytes_, now, codec)
        self._typed = self._values.timed_reader(self._timed.at)

    def _times(self) -> int:
        return 2 if self._spec.option("duplicates") else 1

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
        """The value of the window with this start; or the windows of a key that start from one time to another.

        Both times are included, and None leaves an end open. Windows come as (start, value), the earliest first.
        """
        if start is not None:
            return self._one(key, millis(start))
        first, last = self._span(from_, to)
        return self._timed.fetch(self._beginning(key), first, last, self._typed, reverse=reverse)

    def fetch_all(
        self, from_: Time | None = None, to: Time | None = None, *, reverse: bool = False
    ) -> Closing[tuple[Windowed[K], V]]:
        """The windows of all keys that start from one time to another, in the order of keys, then of starts."""
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
        """The same for a range of keys, both ends included."""
        first, last = self._span(from_, to)
        between = self._beginning_or_none(key_from), self._beginning_or_none(key_to)
        return Closing(self._windows(self._timed.fetch_keys(*between, first, last, reverse=reverse)))

    def _span(self, from_: Time | None, to: Time | None) -> tuple[int, int | None]:
        check_span(from_, to)
        first = self._timed.kept_after + 1
        if from_ is not None and (time := from_ if type(from_) is int else millis(from_)) > first:
            first = time
        return first, to if to is None or type(to) is int else millis(to)

    def _one(self, key: K, start: int) -> V | None:
        cell = self._timed.find(self._beginning(key), start)
        return None if cell is None else self._values.read(cell)

    def _windows(self, rows: Iterator[tuple[bytes, int, bytes]]) -> Iterator[tuple[Windowed[K], V]]:
        size, read, key_of = self._size, self._values.read, self._key_of
        with Closing(rows):
            for own, start, cell in rows:
                yield Windowed(key_of(own), start, start + size), read(cell)


def _windows(view: ReadOnlyWindowStore[Any, Any], key: Any, *, from_: int | None, to: int | None) -> Iterator[Item]:
    size = view._size
    with view.fetch(key, from_=from_, to=to) as windows:
        for start, value in windows:
            yield {"start": start, "end": start + size, "value": value}


def _all_windows(
    view: ReadOnlyWindowStore[Any, Any], first: Any, last: Any, *, from_: int | None, to: int | None
) -> Iterator[Item]:
    with view.fetch_keys(first, last, from_, to) as windows:
        for (key, start, end), value in windows:
            yield {"key": key, "start": start, "end": end, "value": value}


class WindowStore(TimedStore[K, V], ReadOnlyWindowStore[K, V]):
    """One value per key and window start.

    >>> from holdfast.stores.access import DictBytes
    >>> plays = WindowStore("plays", value=int, size="1m").bind(DictBytes(), Now(wall=120_000))
    >>> plays.put("ann", 3, 0); plays.put("ann", 5, 60_000)
    >>> plays.fetch("ann", 60_000), list(plays.fetch("ann", from_=0, to=60_000))
    (5, [(0, 3), (60000, 5)])
    """

    KIND: ClassVar[str | None] = WINDOW
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyWindowStore
    QUERIES: ClassVar[tuple[Query, ...]] = (
        Query(
            "windows",
            _windows,
            optional={"from_": TIME, "to": TIME},
            order=itemgetter("start"),
            all_keys=_all_windows,
        ),
    )

    @overload
    def __init__(self: "WindowStore[str, V]", name: str, *, value: type[V], **options: Unpack[WindowOptions]): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], **options: Unpack[WindowOptions]): ...

    @overload
    def __init__(
        self: "WindowStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        **options: Unpack[WindowOptions],
    ): ...

    @overload
    def __init__(
        self: "WindowStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        **options: Unpack[WindowOptions],
    ): ...

    def __init__(self, name: str, *, value: Any, key: Any = str, **options: Any):
        super().__init__(name, key=key, value=value, **options)

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
        size_ms, span = length(size, "size", where), "a window's size"
        fields = span_fields(where, span=span, entries="windows", span_ms=size_ms, grace=grace, retention=retention)
        return {**fields, "fixed": (("window_ms", size_ms), *((("duplicates", True),) if duplicates else ()))}

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        yield f"size {words(spec.option('window_ms'))}, grace {words(spec.option('grace_ms') or 0)}"
        yield from super().describe_options(spec)
        if spec.option("duplicates"):
            yield "keeps duplicates"

    def put(self, key: K, value: V | None, start: Time) -> None:
        """Sets the value of a window; None deletes it. With duplicates every put is kept, and None does nothing."""
        beginning, time = self._beginning(key), millis(start)
        if self._refused(time):
            return
        cell = None if value is None else self._values.cell(value)
        self._timed.put(beginning, time, cell)

    def delete(self, key: K, start: Time) -> None:
        """Removes a window, with all its duplicates."""
        self._timed.delete(self._beginning(key), millis(start))

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        size = self._size
        return self._prefetched_ranges(keys, times, lambda first, last: (first - size, last + size))

    def read_only(self) -> ReadOnlyWindowStore[K, V]:
        """The same windows, without the methods that change them."""
        return self._as(ReadOnlyWindowStore)
