"""The key-value store: a typed view of ordered bytes.

The view knows how keys and values become bytes and nothing of where the bytes live. A task gives it its overlay, a
query a replica's picture, a test a dictionary; what each has to do is `OrderedBytes`, or `ReadableBytes` for reading.
"""

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.stores import cells
from holdfast.stores.keys import decode_key, encode_key, prefix_range
from holdfast.stores.types import Schema
from holdfast.stores.values import Codec

K = TypeVar("K")
V = TypeVar("V")


class ReadableBytes(Protocol):
    """One store's bytes, in order."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop."""

    def approximate_count(self) -> int: ...


class OrderedBytes(ReadableBytes, Protocol):
    """One store's bytes, in order, to be changed."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...


class ReadOnlyKeyValueStore(Generic[K, V]):
    """Reads a store's entries by typed key.

    A key of one component is the value itself, one of several a tuple. Ranges include both ends, as in Kafka Streams;
    None leaves an end open.
    """

    def __init__(self, name: str, bytes_: ReadableBytes, key: Schema, codec: Codec[V]) -> None:
        self.name = name
        self._bytes = bytes_
        self._key = key
        self._single = len(key.fields) == 1
        self._codec = codec

    def get(self, key: K) -> V | None:
        data = self._bytes.get(self._encoded(key))
        return None if data is None else self._value(data)

    def __getitem__(self, key: K) -> V:
        data = self._bytes.get(self._encoded(key))
        if data is None:
            raise KeyError(key)
        return self._value(data)

    def __contains__(self, key: K) -> bool:
        return self._bytes.get(self._encoded(key)) is not None

    def range(self, from_: K | None = None, to: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries from one key to another, both included, in key order."""
        return self._entries(*self._bounds(from_, to), reverse=False)

    def reverse_range(self, from_: K | None = None, to: K | None = None) -> Iterator[tuple[K, V]]:
        """The same entries as `range`, the last one first."""
        return self._entries(*self._bounds(from_, to), reverse=True)

    def prefix(self, prefix: Any, *, reverse: bool = False, partial: bool | None = None) -> Iterator[tuple[K, V]]:
        """Entries whose key begins with this text or these bytes, or, as a tuple, with these components.

        The last component given is whole unless it is the key's last, or `partial=True`.
        """
        values = tuple(prefix) if isinstance(prefix, tuple | list) else (prefix,)
        return self._entries(*prefix_range(self._key, values, partial=partial), reverse=reverse)

    def scan(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Every entry, in key order."""
        return self._entries(*self._bounds(None, None), reverse=reverse)

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self.scan()

    def approximate_count(self) -> int:
        """About how many entries there are; an engine may count one that was rewritten lately more than once."""
        return self._bytes.approximate_count()

    def _bounds(self, from_: K | None, to: K | None) -> tuple[bytes, bytes | None]:
        first, last = prefix_range(self._key, ())
        # A key followed by 0x00 is the next one in order.
        return (
            first if from_ is None else self._encoded(from_),
            last if to is None else self._encoded(to) + b"\x00",
        )

    def _entries(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[K, V]]:
        if stop is not None and start >= stop:
            return iter(())
        found = self._bytes.scan(start, stop, reverse=reverse)
        return ((self._decoded(key), self._value(data)) for key, data in found)

    def _encoded(self, key: K) -> bytes:
        return encode_key(self._key, (key,) if self._single else cast(tuple[object, ...], key))

    def _decoded(self, data: bytes) -> K:
        values = decode_key(self._key, data)
        return cast(K, values[0] if self._single else values)

    def _value(self, data: bytes) -> V:
        return self._codec.decode(cells.unpack(data).payload)


class KeyValueStore(ReadOnlyKeyValueStore[K, V]):
    """Reads and writes a store's entries by typed key."""

    def __init__(self, name: str, bytes_: OrderedBytes, key: Schema, codec: Codec[V]) -> None:
        super().__init__(name, bytes_, key, codec)
        self._writable = bytes_

    def put(self, key: K, value: V | None) -> None:
        """Sets a key's value; None deletes, as in Kafka Streams."""
        encoded = self._encoded(key)
        if value is None:
            self._writable.delete(encoded)
        else:
            self._writable.put(encoded, cells.pack(cells.Cell(self._codec.encode(value))))

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Sets a key's value if it has none, and returns the one it had."""
        there = self.get(key)
        if there is None:
            self.put(key, value)
        return there

    def delete(self, key: K) -> V | None:
        """Removes a key, and returns the value it had."""
        encoded = self._encoded(key)
        data = self._bytes.get(encoded)
        if data is None:
            return None
        self._writable.delete(encoded)
        return self._value(data)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        encoded = self._encoded(key)
        if self._bytes.get(encoded) is None:
            raise KeyError(key)
        self._writable.delete(encoded)
