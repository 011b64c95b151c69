"""The key-value store: a value by key, for as long as it is wanted.

Without options an entry stays until it is deleted. With `ttl=` every entry goes some time after it was put, by the
wall clock; `put(..., ttl=)` says so of one entry. With `max_entries=` a partition keeps the entries used last. Where
entries stand in each case is the store's layout (`stores.layouts`); this is the typed view.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar, Unpack, overload

from holdfast.errors import TopologyError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.cells import NO_TIMESTAMP
from holdfast.stores.kinds.base import Options, Prefetch, Store, View, length_in_ms
from holdfast.stores.kinds.coding import Values
from holdfast.stores.kinds.containers import ReadableContainer, WritableContainer
from holdfast.stores.layouts.base import EVICTED, REMOVED, Entries, ReadableEntries
from holdfast.stores.layouts.slices import slice_ms_for
from holdfast.stores.options import Length, bound, millis, words
from holdfast.stores.scans import ROWS
from holdfast.stores.spec import KEY_VALUE, StoreSpec

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
D = TypeVar("D")
K1 = TypeVar("K1")
K2 = TypeVar("K2")
K3 = TypeVar("K3")


class KeyValueOptions(Options, total=False):
    """What a key-value store can be told."""

    ttl: Length | None
    max_entries: int | None
    refresh_on_read: bool


class ReadableEntryStore(ReadableContainer[K, V, R]):
    """What the key-value stores share when they are read: which entries there are, and what is over."""

    _found: ReadableEntries

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._values = Values(codec, self._layout.lead)
        self._found = self._layout.reader(bytes_, now)

    @abstractmethod
    def _read(self, cell: bytes) -> R: ...

    def _read_many(self, cells: Sequence[bytes]) -> list[R]:
        return [self._read(cell) for cell in cells]

    def get_many(self, keys: Sequence[K]) -> list[R | None]:
        """What each of these keys has: one question for all of them."""
        read = self._read
        found = self._found.find_many(self._encode_many(keys))
        return [None if cell is None else read(cell) for cell in found]

    def _scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Iterable[tuple[K, R]]]:
        for keys, cells in self._found.scan(start, stop, reverse=reverse):
            yield zip(self._decode_many(keys), self._read_many(cells), strict=True)


class EntryStore(Store[K, V], ReadableEntryStore[K, V, R], WritableContainer[K, V, R]):
    """What the key-value stores share when they are written to."""

    BY_KEY: ClassVar[bool] = True

    _entries_: Entries
    _expires: int
    """When an entry that is put without a TTL of its own is over."""

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._entries_ = self._found = self._layout.entries(self._writable, now)
        self._expires = self._entries_.expiry(None)

    @classmethod
    def options(
        cls,
        where: str,
        *,
        ttl: Length | None = None,
        max_entries: int | None = None,
        refresh_on_read: bool = False,
    ) -> dict[str, Any]:
        ttl_ms, most = 0 if ttl is None else millis(ttl, "ttl", where), bound(max_entries, where)
        if refresh_on_read and not most:
            raise TopologyError(f"{where}: refresh_on_read=True says what max_entries evicts. Say max_entries=... too.")
        return {
            "ttl_ms": ttl_ms,
            "max_entries": most,
            "slice_ms": slice_ms_for(ttl_ms) if ttl_ms and not most else 0,
            "options": (("refresh_on_read", True),) if refresh_on_read else (),
        }

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        if spec.ttl_ms:
            slices = f", in slices of {words(spec.slice_ms)}" if spec.slice_ms else ""
            yield f"ttl {words(spec.ttl_ms)}{slices}"
        if spec.max_entries:
            reads = "reads refresh" if spec.option("refresh_on_read") else "reads don't refresh"
            yield f"at most {spec.max_entries:,} entries per partition, the least recently used go, {reads}"

    def delete(self, key: K) -> R | None:
        """Removes a key, and returns what it had."""
        cell = self._entries_.remove(self._encode(key))
        return None if cell is None else self._read(cell)

    def begin_version(self) -> None:
        if removed := self._entries_.begin_version():
            self._count(REMOVED, removed)

    def end_of_version(self) -> None:
        ended = self._entries_.end_of_version()
        for what, number in ((EVICTED, ended.evicted), (REMOVED, ended.removed)):
            if number:
                self._count(what, number)

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        return Prefetch(self._entries_.places(self._encode_many(list(dict.fromkeys(keys)))), [])

    def _expiry(self, ttl: Length | int | None) -> int:
        if ttl is None:
            return self._expires
        return self._entries_.expiry(length_in_ms(ttl, "ttl", self.name))

    def _quiet_as(self, view: type["Readable"]) -> "Readable":
        found = self._as(view)
        found._found = self._found.quiet()
        return found


Readable = TypeVar("Readable", bound=ReadableEntryStore[Any, Any, Any])


class ReadOnlyKeyValueStore(ReadableEntryStore[K, V, V]):
    """Reads a key-value store.

    >>> from holdfast.stores.access import DictBytes
    >>> store = KeyValueStore("scores", value=int).bind(DictBytes(), Now(wall=0))
    >>> store.put("ann", 3)
    >>> view = store.read_only()
    >>> view.get("ann"), view.get("bob"), hasattr(view, "put")
    (3, None, False)
    """

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: object = None) -> object:
        """What a key has, or the default."""
        cell = self._found.find(self._encode(key))
        return default if cell is None else self._values.read(cell)

    def _find(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self._found.find(self._encode(key)) is not None

    def _read(self, cell: bytes) -> V:
        return self._values.read(cell)

    def _read_many(self, cells: Sequence[bytes]) -> list[V]:
        return self._values.read_many(cells)

    def get_many(self, keys: Sequence[K]) -> list[V | None]:
        """What each of these keys has: one question for all of them."""
        return self._values.read_known(self._found.find_many(self._encode_many(keys)))


class KeyValueStore(EntryStore[K, V, V], ReadOnlyKeyValueStore[K, V]):
    """A value by key.

    >>> from holdfast.stores.access import DictBytes
    >>> scores = KeyValueStore("scores", key=(str, int), value=float).bind(DictBytes(), Now(wall=0))
    >>> scores["ann", 1] = 3.5
    >>> scores["ann", 1], ("bob", 1) in scores, dict(scores.prefix("ann"))
    (3.5, False, {('ann', 1): 3.5})
    """

    KIND: ClassVar[str | None] = KEY_VALUE
    SINK_COLUMNS: ClassVar[tuple[str, ...]] = ("value",)
    VIEW: ClassVar[type[View[Any, Any]]] = ReadOnlyKeyValueStore

    @overload
    def __init__(self: "KeyValueStore[str, V]", name: str, *, value: type[V], **options: Unpack[KeyValueOptions]): ...

    @overload
    def __init__(self, name: str, *, key: type[K], value: type[V], **options: Unpack[KeyValueOptions]): ...

    @overload
    def __init__(
        self: "KeyValueStore[tuple[K1, K2], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2]],
        value: type[V],
        **options: Unpack[KeyValueOptions],
    ): ...

    @overload
    def __init__(
        self: "KeyValueStore[tuple[K1, K2, K3], V]",
        name: str,
        *,
        key: tuple[type[K1], type[K2], type[K3]],
        value: type[V],
        **options: Unpack[KeyValueOptions],
    ): ...

    def __init__(self, name: str, *, value: Any, key: Any = str, **options: Unpack[KeyValueOptions]):
        super().__init__(name, key=key, value=value, **options)

    def put(self, key: K, value: V | None, ttl: Length | int | None = None) -> None:
        """Sets a key's value, for as long as `ttl` if given; None deletes, as in Kafka Streams."""
        encoded = self._encode(key)
        if value is None:
            self._entries_.remove(encoded)
            return
        expires = self._expires if ttl is None else self._expiry(ttl)
        self._entries_.put(encoded, self._values.cell(value, NO_TIMESTAMP, expires), expires)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Sets many keys, given as a mapping or as pairs. This is the quick way to set a thousand."""
        for keys, values in _taken(entries):
            cells = self._values.cells(values, self._expires)
            if cells is None:
                for key, value in zip(keys, values, strict=True):
                    self.put(key, value)
            else:
                self._entries_.put_many(self._encode_many(keys), cells, self._expires)

    def read_only(self) -> ReadOnlyKeyValueStore[K, V]:
        """The same entries, without the methods that change them."""
        return self._quiet_as(ReadOnlyKeyValueStore)


def _taken(entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> Iterator[tuple[list[K], list[V]]]:
    """Keys and values, some at a time."""
    if isinstance(entries, Mapping):
        left, theirs = iter(entries.keys()), iter(entries.values())
        while keys := list(islice(left, ROWS)):
            yield keys, list(islice(theirs, ROWS))
        return
    pairs = iter(entries)
    while True:
        keys, values = [], []
        for key, value in islice(pairs, ROWS):  # not zip(*...), which would have to keep all the pairs
            keys.append(key)
            values.append(value)
        if not keys:
            return
        yield keys, values
