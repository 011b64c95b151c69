"""Access to the bytes of one store, in order, and the time of a version.

A store reads and writes through these protocols. In a task the bytes are its overlay over the state at `v-1`, in a
query a read view of a replica, in a test a dictionary.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from sortedcontainers import SortedDict

ENTRY_SCHEMA: Final = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
"""Entries of a store as columns. In the part of a segment, a null value is a tombstone."""

BEGINNING: Final = -(2**62)
"""The event clock before the first event, so that an app that starts with last year's records keeps them."""


@dataclass(frozen=True)
class Now:
    """The time of a version, in milliseconds. It is in the commit, so it is the same on every replica.

    In a task of version `v`: the wall clock of `v`, chosen before the tasks run, and the event clock of `v-1`. For a
    query at `v`: both of `v`.
    """

    wall: int
    event: int | None = None


class ReadableBytes(Protocol):
    """One store's bytes, in order."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop in the order of the keys, or backwards.

        They are those of the moment of the call, whatever is written while the caller iterates.
        """

    def approximate_count(self) -> int:
        """About how many keys are stored, those of indexes and notes included."""


class ColumnBlock(NamedTuple):
    """Entries in the order of their keys, as columns."""

    keys: pa.BinaryArray
    values: pa.BinaryArray


class ColumnBytes(ReadableBytes, Protocol):
    """One store's bytes, in order, which are also read as columns."""

    def columns(self, start: bytes, stop: bytes | None) -> Generator[ColumnBlock, None, None]:
        """Entries with start <= key < stop in the order of the keys, in blocks of bounded size, none of them empty."""


class StoreColumns(Protocol):
    """One store at one version as Arrow columns: what a task reads in bulk."""

    def get(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """The cells of these keys, null where there is none."""

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        """The first `limit` entries with start <= key < stop, in order or backwards: columns `key` and `value`."""

    def approximate_count(self) -> int: ...


class OrderedBytes(ReadableBytes, Protocol):
    """One store's bytes, in order, to be changed."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Sets many keys, one value per key; of a key that comes twice the last value stays."""

    def delete(self, key: bytes) -> None: ...

    def hold(self, entries: int, size: int) -> None:
        """Reports that the store itself holds this many more entries and bytes until the version ends.

        Negative numbers mean fewer. They count towards the memory limit of a version.
        """


class DictBytes:
    """Ordered bytes in a dictionary, for tests and for a processor without Spark.

    >>> store = DictBytes()
    >>> store.put(b"b", b"2"); store.put(b"a", b"1")
    >>> list(store.scan(b"a", None))
    [(b'a', b'1'), (b'b', b'2')]
    """

    def __init__(self) -> None:
        self.entries: SortedDict[bytes, bytes] = SortedDict()

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self.entries.get(key)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.entries.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        keys = self.entries.irange(start, stop, inclusive=(True, False), reverse=reverse)
        return iter([(key, self.entries[key]) for key in keys])

    def columns(self, start: bytes, stop: bytes | None) -> Generator[ColumnBlock, None, None]:
        if rows := list(self.scan(start, stop)):
            keys, values = zip(*rows, strict=True)
            yield ColumnBlock(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))

    def approximate_count(self) -> int:
        return len(self.entries)

    def put(self, key: bytes, value: bytes) -> None:
        self.entries[key] = value

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.entries.update(zip(keys, values, strict=True))

    def delete(self, key: bytes) -> None:
        self.entries.pop(key, None)

    def hold(self, entries: int, size: int) -> None:
        """Does nothing: a dictionary has no limit."""


class BytesAsColumns:
    """Ordered bytes as columns."""

    def __init__(self, bytes_: ReadableBytes) -> None:
        self._bytes = bytes_
        self.approximate_count = bytes_.approximate_count

    def get(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        return pa.array(self._bytes.get_many(keys.to_pylist()), pa.binary())

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        rows = list(islice(self._bytes.scan(start, stop, reverse=reverse), limit))
        return pa.table([[key for key, _ in rows], [cell for _, cell in rows]], schema=ENTRY_SCHEMA)
