"""Stores as the Python containers people know: `store[key]`, `key in store`, `for key, value in store.items(a, b)`.

Everything here is said in terms of a few methods of the kind (`get`, `_scan`, `delete`), so that it means the same for
every kind that has keys and values. An iterator holds a scan open; it lets go when it is used up, closed, or left by
`with`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.formats.keys import prefix_range
from holdfast.stores.kinds.base import View
from holdfast.stores.scans import Closing

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")


class NoLength(HoldfastError, TypeError):
    """A store was asked for its length."""

    category = ErrorCategory.INVALID


class Unset:
    """What stands for a default that wasn't given, where None could be one."""


UNSET = Unset()


class ReadableContainer(View[K, V], ABC, Generic[K, V, R]):
    """Entries by key. R is what reading gives: the value, or the value with its timestamp.

    A key of one component is the value itself, one of several a tuple. Ranges include both ends, as in Kafka Streams;
    None leaves an end open.
    """

    @abstractmethod
    def _find(self, key: K) -> R | None: ...

    @abstractmethod
    def _scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Iterable[tuple[K, R]]]:
        """Entries with start <= key < stop, in batches."""

    @overload
    def get(self, key: K) -> R | None: ...

    @overload
    def get(self, key: K, default: D) -> R | D: ...

    def get(self, key: K, default: object = None) -> object:
        """What a key has, or the default."""
        found = self._find(key)
        return default if found is None else found

    def __getitem__(self, key: K) -> R:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: K) -> bool:
        return self._find(key) is not None

    def range(self, from_: K | None = None, to: K | None = None) -> Closing[tuple[K, R]]:
        """Entries from one key to another, both included, in the order of the keys."""
        return self._entries(from_, to, reverse=False)

    def reverse_range(self, from_: K | None = None, to: K | None = None) -> Closing[tuple[K, R]]:
        """The same entries as `range`, the last one first."""
        return self._entries(from_, to, reverse=True)

    def items(self, from_: K | None = None, to: K | None = None) -> Closing[tuple[K, R]]:
        """The same as `range`, under the name dictionaries have for it."""
        return self._entries(from_, to, reverse=False)

    def prefix(self, prefix: Any, *, reverse: bool = False, partial: bool | None = None) -> Closing[tuple[K, R]]:
        """Entries whose key begins with this text or these bytes, or, as a tuple, with these components.

        The last component given is whole unless it is the key's last, or `partial=True`.
        """
        values = tuple(prefix) if isinstance(prefix, tuple | list) else (prefix,)
        start, stop = prefix_range(self._spec.key, values, partial=partial)
        return Closing.of_batches(self._scan(start, stop, reverse=reverse))

    def scan(self, *, reverse: bool = False) -> Closing[tuple[K, R]]:
        """Every entry, in the order of the keys."""
        return self._entries(None, None, reverse=reverse)

    def keys(self) -> Closing[K]:
        """Every key, in order."""
        return Closing(_firsts(self._entries(None, None, reverse=False)))

    def values(self) -> Closing[R]:
        """Every value, in the order of the keys."""
        return Closing(_seconds(self._entries(None, None, reverse=False)))

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> NoReturn:
        raise NoLength(
            f"store {self.name!r} doesn't know how many entries it has without reading them all. "
            "approximate_count() is quick; sum(1 for _ in store.keys()) is exact."
        )

    def __bool__(self) -> Literal[True]:
        return True  # or Python would ask for the length

    def _entries(self, from_: K | None, to: K | None, *, reverse: bool) -> Closing[tuple[K, R]]:
        start, stop = prefix_range(self._spec.key, ())
        if from_ is not None:
            start = self._encode(from_)
        if to is not None:
            stop = self._encode(to) + b"\x00"  # a key followed by 0x00 is the next one in order
        if stop is not None and start >= stop:
            return Closing(iter(()))
        return Closing.of_batches(self._scan(start, stop, reverse=reverse))


class WritableContainer(ReadableContainer[K, V, R]):
    """Entries that can be removed by key, and set with `store[key] = ...`."""

    @abstractmethod
    def delete(self, key: K) -> R | None:
        """Removes a key, and returns what it had."""

    @abstractmethod
    def __setitem__(self, key: K, value: R) -> None: ...

    def __delitem__(self, key: K) -> None:
        if self.delete(key) is None:
            raise KeyError(key)

    @overload
    def pop(self, key: K) -> R: ...

    @overload
    def pop(self, key: K, default: D) -> R | D: ...

    def pop(self, key: K, default: object = UNSET) -> object:
        """Removes a key and returns what it had, or the default; without one it is a KeyError."""
        found = self.delete(key)
        if found is not None:
            return found
        if default is UNSET:
            raise KeyError(key)
        return default

    def setdefault(self, key: K, default: R) -> R:
        """What a key has; one that has nothing gets the default first."""
        found = self._find(key)
        if found is not None:
            return found
        self[key] = default
        return default

    def put_if_absent(self, key: K, value: R) -> R | None:
        """Sets a key that has nothing, and returns what it had."""
        found = self._find(key)
        if found is None:
            self[key] = value
        return found

    def update(self, entries: Mapping[K, R] | Iterable[tuple[K, R]]) -> None:
        """Sets many keys, given as a mapping or as pairs."""
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            self[key] = value


def _firsts(rows: Closing[tuple[K, Any]]) -> Iterator[K]:
    with rows:
        for key, _ in rows:
            yield key


def _seconds(rows: Closing[tuple[Any, R]]) -> Iterator[R]:
    with rows:
        for _, value in rows:
            yield value
