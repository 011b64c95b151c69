"""The base of the key-value stores: entries as a Python container, `store[key]`, `key in store`, `store.items(a, b)`.

An iterator shows the entries of the moment of the call, and keeps a scan open until it is used up, closed, or left by
`with`. Where entries are stored is the store's layout (`stores.layouts`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypedDict, TypeVar, overload

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.codecs.values import StoreCodec
from holdfast.stores.formats.keys import prefix_range
from holdfast.stores.kinds.base import K, Options, Prefetch, Store, V, View, length_in_ms
from holdfast.stores.kinds.coding import Values
from holdfast.stores.layouts.base import EVICTED, REMOVED, Batch, Counted, Entries, ReadableEntries
from holdfast.stores.layouts.slices import slice_ms_for
from holdfast.stores.options import Length, bound, millis, words
from holdfast.stores.scans import Closing, close
from holdfast.stores.spec import StoreSpec

R = TypeVar("R")
D = TypeVar("D")


class NoLength(HoldfastError, TypeError):
    """A store was asked for its length."""

    category = ErrorCategory.INVALID


UNSET = object()
"""A default that wasn't given, where None could be one."""


class EntryLimits(TypedDict, total=False):
    """How long a key-value store keeps its entries, and how many."""

    ttl: Length | None
    ttl_to_sinks: bool
    max_entries: int | None
    refresh_on_read: bool


class KeyValueOptions(Options, EntryLimits, total=False):
    """The options of a key-value store."""


class EntryView(View[K, V], Generic[K, V, R]):
    """Reads entries by key. R is what a read returns: the value, or the value with its timestamp.

    A key of one component is the value itself, a key of several is a tuple. Ranges include both ends, as in Kafka
    Streams; None leaves an end open. An end may be the first components of a key: all keys that begin with them.
    """

    _found: ReadableEntries
    _read: Callable[[bytes], R]
    _read_many: Callable[[Sequence[bytes]], list[R]]

    def _attach(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now, codec: StoreCodec[V]) -> None:
        super()._attach(spec, bytes_, now, codec)
        self._values = Values(codec, self._layout.lead)
        self._found = self._layout.reader(bytes_, now)

    def _count_some(self, most: int) -> Counted:
        return self._found.count(most)

    @overload
    def get(self, key: K) -> R | None: ...

    @overload
    def get(self, key: K, default: D) -> R | D: ...

    def get(self, key: K, default: object = None) -> object:
        """The value of a key, or the default."""
        cell = self._found.find(self._encode(key))
        return default if cell is None else self._read(cell)

    def get_many(self, keys: Sequence[K]) -> dict[K, R]:
        """The values of those keys that are there, by key, by one lookup for all of them."""
        found = self._found.find_many(self._encode_many(keys))
        there = [key for key, cell in zip(keys, found, strict=True) if cell is not None] if None in found else keys
        if len(self._spec.key.fields) > 1:
            there = [tuple(key) for key in there]  # type: ignore[arg-type, misc]
        return dict(zip(there, self._read_many([cell for cell in found if cell is not None]), strict=True))

    def __getitem__(self, key: K) -> R:
        cell = self._found.find(self._encode(key))
        if cell is None:
            raise KeyError(key)
        return self._read(cell)

    def __contains__(self, key: K) -> bool:
        return self._found.find(self._encode(key)) is not None

    def range(self, from_: K | None = None, to: K | None = None) -> Closing[tuple[K, R]]:
        """Entries from one key to another, both included, in the order of the keys."""
        return self._entries(from_, to, reverse=False)

    def reverse_range(self, from_: K | None = None, to: K | None = None) -> Closing[tuple[K, R]]:
        """The same entries as `range`, the last one first."""
        return self._entries(from_, to, reverse=True)

    def items(self, from_: K | None = None, to: K | None = None) -> Closing[tuple[K, R]]:
        """The same as `range`, by the name that dictionaries use."""
        return self.range(from_, to)

    def prefix(self, prefix: Any, *, reverse: bool = False, partial: bool | None = None) -> Closing[tuple[K, R]]:
        """Entries whose key begins with this text or these bytes, or, as a tuple, with these components.

        The last component given is whole unless it is the key's last, or `partial=True`.
        """
        values = tuple(prefix) if isinstance(prefix, tuple | list) else (prefix,)
        start, stop = prefix_range(self._spec.key, values, partial=partial)
        return self._scan(start, stop, reverse=reverse)

    def scan(self, *, reverse: bool = False) -> Closing[tuple[K, R]]:
        """Every entry, in the order of the keys."""
        return self._entries(None, None, reverse=reverse)

    def keys(self) -> Closing[K]:
        """Every key, in order."""
        return Closing(_column(self.items(), 0))

    def values(self) -> Closing[R]:
        """Every value, in the order of the keys."""
        return Closing(_column(self.items(), 1))

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> NoReturn:
        raise NoLength(
            f"store {self.name!r} doesn't know how many entries it has without reading them all. "
            "approximate_count() is quick; sum(1 for _ in store.keys()) is exact."
        )

    def __bool__(self) -> Literal[True]:
        return True  # otherwise Python asks for the length

    def _entries(self, from_: K | None, to: K | None, *, reverse: bool) -> Closing[tuple[K, R]]:
        start, stop = prefix_range(self._spec.key, ())
        if from_ is not None:
            start, _ = self._bound(from_)
        if to is not None:
            _, stop = self._bound(to)
        if stop is not None and start >= stop:
            return Closing(iter(()))
        return self._scan(start, stop, reverse=reverse)

    def _bound(self, key: Any) -> tuple[bytes, bytes | None]:
        """The stored keys of an end: one key, or all keys that begin with the given components."""
        if isinstance(key, tuple | list) and 0 < len(key) < len(self._spec.key.fields):
            return prefix_range(self._spec.key, key)
        encoded = self._encode(key)
        return encoded, encoded + b"\x00"  # a key followed by 0x00 is the next key in order

    def _scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Closing[tuple[K, R]]:
        """Entries with start <= key < stop."""
        return Closing.of_columns(self._typed_columns(self._found.scan(start, stop, reverse=reverse)))

    def _typed_columns(self, batches: Iterator[Batch]) -> Iterator[tuple[list[K], list[R]]]:
        try:
            for keys, cells in batches:
                yield self._decode_many(keys), self._read_many(cells)
        finally:
            close(batches)


class EntryStore(Store[K, V], EntryView[K, V, R]):
    """Reads and writes entries by key."""

    BY_KEY: ClassVar[bool] = True

    _entries_: Entries
    _expires: int
    """When an entry that is put without a TTL of its own expires."""

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
        ttl_to_sinks: bool = False,
        max_entries: int | None = None,
        refresh_on_read: bool = False,
    ) -> dict[str, Any]:
        ttl_ms, most = 0 if ttl is None else millis(ttl, "ttl", where), bound(max_entries, where)
        if refresh_on_read and not most:
            raise TopologyError(f"{where}: refresh_on_read=True says what max_entries evicts. Say max_entries=... too.")
        if ttl_to_sinks and not ttl_ms:
            raise TopologyError(f"{where}: ttl_to_sinks=True sends keys to sinks when they expire. Say ttl=... too.")
        # Entries that are counted, or whose end sinks are told, are removed one by one.
        one_by_one = ttl_to_sinks or bool(most)
        return {
            "ttl_ms": ttl_ms,
            "max_entries": most,
            "slice_ms": slice_ms_for(ttl_ms) if ttl_ms and not one_by_one else 0,
            "fixed": (("ttl_to_sinks", True),) if ttl_to_sinks and not most else (),
            "options": (("refresh_on_read", True),) if refresh_on_read else (),
        }

    @classmethod
    def describe_options(cls, spec: StoreSpec) -> Iterator[str]:
        if spec.ttl_ms:
            slices = f"in slices of {words(spec.slice_ms)}" if spec.slice_ms else "sinks get expired keys"
            yield f"ttl {words(spec.ttl_ms)}, {slices}"
        if spec.max_entries:
            reads = "reads refresh" if spec.option("refresh_on_read") else "reads don't refresh"
            yield f"at most {spec.max_entries:,} entries per partition, the least recently used go, {reads}"

    @abstractmethod
    def __setitem__(self, key: K, value: R) -> None: ...

    def delete(self, key: K) -> R | None:
        """Removes a key, and returns its value."""
        cell = self._entries_.remove(self._encode(key))
        return None if cell is None else self._read(cell)

    def __delitem__(self, key: K) -> None:
        if self.delete(key) is None:
            raise KeyError(key)

    @overload
    def pop(self, key: K) -> R: ...

    @overload
    def pop(self, key: K, default: D) -> R | D: ...

    def pop(self, key: K, default: object = UNSET) -> object:
        """Removes a key and returns its value, or the default; without a default a missing key is a KeyError."""
        found = self.delete(key)
        if found is not None:
            return found
        if default is UNSET:
            raise KeyError(key)
        return default

    def setdefault(self, key: K, default: R) -> R:
        """The value of a key; a missing key gets the default first."""
        found = self.put_if_absent(key, default)
        return default if found is None else found

    def put_if_absent(self, key: K, value: R) -> R | None:
        """Sets a missing key, and returns the value that a key has already."""
        found = self.get(key)
        if found is None:
            self[key] = value
        return found

    def update(self, entries: Mapping[K, R] | Iterable[tuple[K, R]]) -> None:
        """Sets many keys, given as a mapping or as pairs."""
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            self[key] = value

    def begin_version(self) -> None:
        if removed := self._entries_.begin_version():
            self._count(REMOVED, removed)

    def end_of_version(self) -> None:
        ended = self._entries_.end_of_version()
        for what, number in ((EVICTED, ended.evicted), (REMOVED, ended.removed)):
            if number:
                self._count(what, number)

    def begin_record(self) -> None:
        self._entries_.begin_record()

    def undo_record(self) -> None:
        self._entries_.undo_record()

    def check_record(self, changes: Mapping[bytes, bytes | None]) -> None:
        self.check_written(self._entries_.of_record(changes))

    def prefetch(self, keys: Sequence[K], times: Sequence[int]) -> Prefetch:
        return Prefetch(self._entries_.places(self._encode_many(list(dict.fromkeys(keys)))), [])

    def _expiry(self, ttl: Length | int | None) -> int:
        if ttl is None:
            return self._expires
        return self._entries_.expiry(length_in_ms(ttl, "ttl", self.name))

    def _quiet_as(self, view: type["ViewType"]) -> "ViewType":
        found = self._as(view)
        found._found = self._found.without_touching()
        return found


ViewType = TypeVar("ViewType", bound=EntryView[Any, Any, Any])


def _column(rows: Closing[tuple[Any, Any]], n: int) -> Iterator[Any]:
    with rows:
        for row in rows:
            yield row[n]
