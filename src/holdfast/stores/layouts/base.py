"""The base of all layouts: how a batch is merged into a store, what a state part changes, where entries are stored.

A layout says where the entries of one store are among its bytes, what is stored beside them, and when they expire. No
other module knows. It has five users:

    a task of an aggregate   `writer`    whole columns, over the state at `v-1`
    a processor's store      `entries`   one entry at a time, over the task's overlay
    a query                  `reader`    one entry at a time, or a range; `visible` where one place is enough
    a sink, the rewriter     `changed`, `areas`, `split`, `joined`
    a replica                `hidden`    the range of slices to drop
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import ClassVar, Final, NamedTuple, Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.access import ENTRY_SCHEMA, Now, OrderedBytes, ReadableBytes, StoreColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cell, Cells, pack, unpack, unpack_many
from holdfast.stores.formats.keys import after_prefix, decode_keys
from holdfast.stores.formats.quick_cells import ExpiryClock
from holdfast.stores.layouts.areas import (
    ENTRY_AREA,
    EXPIRY_AREA,
    NOTE_AREA,
    RECENCY_AREA,
    SLICE_AREA,
    WAITING_AREA,
)
from holdfast.stores.layouts.expiry import shorter_ttl
from holdfast.stores.layouts.slices import retention_time, slices_to_drop
from holdfast.stores.scans import close
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

T = TypeVar("T")

EMPTY: Final = pack(Cell(b""))
"""The cell of a stored key without a value: a row of an index, or a delete in a history."""

AREAS: Final = (ENTRY_AREA, SLICE_AREA, EXPIRY_AREA, RECENCY_AREA, NOTE_AREA, WAITING_AREA)
REWRITE_NOTE: Final = NOTE_AREA + b"rewrite"
"""The note with the progress of a rewrite. It is the last key of every part that a rewrite step writes."""

TOMBSTONES: Final = "tombstones"
"""The option of a table whose changelog deletes keys."""

REMOVED: Final = "removed"
"""Counts entries that were removed one by one because they had expired."""
EVICTED: Final = "evicted"
"""Counts entries that `max_entries` had no room for."""

Count = Callable[[str, int], None]
"""Adds a number to a counter of the store, by name."""

Merge = Callable[[pa.BinaryArray], pa.BinaryArray]
"""The rows that the keys of a chunk had, null where they had none → their rows after the batch."""

FEW: Final = 1_000
"""Up to this many entries are counted one by one: a task reads them with one request."""

Batch = tuple[Sequence[bytes], Sequence[bytes]]
"""Own keys, and the cell of each; never empty."""


def area_of(key: bytes) -> tuple[bytes, bytes | None]:
    """The area that a key is in, and the key where the next area starts.

    >>> area_of(SLICE_AREA + b"...")
    (b'\\x02', b'\\x03')
    """
    return key[:1], after_prefix(key[:1])


def is_entry(key: bytes) -> bool:
    """Whether a key is that of an entry, and not of an index or a note."""
    return key[:1] in (ENTRY_AREA, SLICE_AREA)


class NotByKey(HoldfastError):
    """A store was asked for entries by key alone, and its entries are by key and time."""

    category = ErrorCategory.BUG


class Counted(NamedTuple):
    """How many visible entries were counted, and how many rows are stored for them."""

    entries: int
    rows: int


class ReadableEntries(Protocol):
    """Cells by an entry's own key, without expired ones."""

    def find(self, key: bytes) -> bytes | None: ...

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        """The entries of the moment of the call in the order of their keys, in batches; None: up to the last entry."""

    def count(self, most: int) -> Counted:
        """Counts the first entries, up to `most`."""

    def without_touching(self) -> "ReadableEntries":
        """The same entries for a reader whose reads change nothing."""


class Ended(NamedTuple):
    """How many entries were removed at the end of a version."""

    evicted: int = 0
    removed: int = 0


class Entries(ReadableEntries, ABC):
    """Cells by an entry's own key, without expired ones; they can be changed."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        self._bytes = bytes_
        self._ttl_ms, self._wall = spec.ttl_ms, now.wall
        self._shows = ExpiryClock(now.wall).shows

    @abstractmethod
    def put(self, key: bytes, cell: bytes, expires: int) -> None: ...

    @abstractmethod
    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None: ...

    @abstractmethod
    def remove(self, key: bytes) -> bytes | None:
        """Removes an entry, and returns its cell unless it had expired."""

    def count(self, most: int) -> Counted:
        found: list[bytes] = []
        batches = self.scan(ENTRY_AREA, None, reverse=False)
        for _, cells in batches:
            found += cells
            if len(found) >= most:
                break
        close(batches)
        found = found[:most]
        expiring = sum(not cell.startswith(EMPTY) and unpack(cell).expires != NEVER for cell in found)
        return Counted(len(found), len(found) + expiring)  # an entry that expires is in the expiry index too

    def expiry(self, ttl_ms: int | None) -> int:
        """When an entry that is written now expires; NEVER if it doesn't."""
        ttl_ms = shorter_ttl(ttl_ms, self._ttl_ms)
        return self._wall + ttl_ms if ttl_ms else NEVER

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        """Where these entries may be stored."""
        return list(keys)

    def without_touching(self) -> ReadableEntries:
        return self

    def begin_version(self) -> int:
        """Removes expired entries where that has to be done one by one, and returns how many."""
        return 0

    def end_of_version(self) -> Ended:
        """Removes entries that there is no room for, and returns how many."""
        return Ended()

    def begin_record(self) -> None:
        """Called before each record that may be undone: notes what is in memory beside the bytes."""

    def of_record(self, changes: Mapping[bytes, bytes | None]) -> Mapping[bytes, bytes | None]:
        """The entries that the record has changed, given the changes of its bytes."""
        return changes

    def undo_record(self) -> None:
        """Restores what was in memory when the record began. Its bytes are restored already."""

    def _shown(self, keys: Sequence[bytes], found: Sequence[bytes]) -> Iterator[Batch]:
        """A batch without expired entries."""
        show = list(map(self._shows, found))
        if any(show):
            yield list(compress(keys, show)), list(compress(found, show))


class BatchWriter(ABC):
    """Merges the rows of one task's batch into a store, one chunk of keys after the other."""

    def __init__(self, spec: StoreSpec, version: Version, now: Now, state: StoreColumns, count: Count) -> None:
        self._spec, self._version, self._now = spec, version, now
        self._state, self._count = state, count

    @abstractmethod
    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table | None:
        """What a chunk of keys changes: a state part, or None so far. `times` are its latest event times, in ms."""

    def rest(self) -> pa.Table | None:
        """What is left to write after the last chunk."""
        return None


@dataclass(frozen=True)
class Changed:
    """The entries that a state part changes: own keys and their cells, null for a deleted entry.

    Payloads are the values alone, without the bytes that a layout stores before them.
    """

    keys: pa.BinaryArray
    cells: Cells

    @property
    def gone(self) -> pa.BooleanArray:
        return self.cells.payloads.is_null()

    def in_order(self, *, deleted_first: bool = False) -> "Changed":
        """The same entries in the order of their keys, perhaps with deleted ones before all others."""
        there = self.cells.payloads.is_valid()
        columns = [("there", "ascending"), ("key", "ascending")][0 if deleted_first else 1 :]
        order = pc.sort_indices(pa.table({"there": there, "key": self.keys}), sort_keys=columns)
        return Changed(self.keys.take(order), Cells(*(column.take(order) for column in self.cells)))


@dataclass(frozen=True)
class Layout:
    """The layout of one store. The defaults are those of entries under their own keys."""

    spec: StoreSpec

    WRITER: ClassVar[type[BatchWriter] | None] = None
    ENTRIES: ClassVar[type[Entries] | None] = None
    READER: ClassVar[type[Entries] | None] = None

    lead = 0
    """How many bytes of a payload come before the value and belong to the layout."""
    always_deletes: ClassVar[bool] = False
    """Whether keys of an aggregate can always be deleted."""
    entry_areas: ClassVar[tuple[bytes, ...]] = (ENTRY_AREA,)
    """The areas that contain entries."""
    one_place = True
    """Whether each entry is stored under its own key, so that one lookup finds it."""

    @property
    def deletes(self) -> bool:
        """Whether keys of an aggregate or a table can be deleted: then sinks are notified."""
        return self.always_deletes or bool(self.spec.option(TOMBSTONES))

    def writer(self, version: Version, now: Now, state: StoreColumns, count: Count) -> BatchWriter:
        """What merges a batch of an aggregate."""
        return self._by_key(self.WRITER)(self.spec, version, now, state, count)

    def reader(self, bytes_: ReadableBytes, now: Now) -> ReadableEntries:
        """The entries by their own keys, without expired ones; in a versioned store the latest values."""
        # What is returned has no method that writes.
        return self._by_key(self.READER)(self.spec, cast(OrderedBytes, bytes_), now)

    def entries(self, bytes_: OrderedBytes, now: Now) -> Entries:
        """The same entries, to be changed one at a time."""
        return self._by_key(self.ENTRIES)(self.spec, bytes_, now)

    def changed(self, part: pa.Table) -> Changed:
        """The entries that a state part changes or deletes. A rewrite step changes none: values stay what they were."""
        keys, cells = rows_in(part, ENTRY_AREA)
        return Changed(keys, self.split(unpack_many(cells))[1])

    def event_times(self, changed: Changed) -> pa.Int64Array:
        """The event times of changed entries, null for a deleted one that has none."""
        return changed.cells.timestamps

    def key_columns(self, keys: pa.BinaryArray) -> dict[str, pa.Array]:
        """Own keys as the columns that sinks get, by name."""
        names = (field.name for field in self.spec.key.fields)
        return dict(zip(names, decode_keys(self.spec.key, keys), strict=True))

    def estimate(self, bytes_: ReadableBytes, some: Counted) -> int:
        """How many entries a store has, from its stored rows and a count of some of its entries."""
        return bytes_.approximate_count() * some.entries // some.rows

    def clock(self, now: Now) -> int:
        """The clock that measures the store's retention."""
        return retention_time(self.spec, now)

    def hidden(self, now: Now) -> tuple[bytes, bytes] | None:
        """The range of stored keys that no reader sees at these clocks; None for a store without slices."""
        return slices_to_drop(self.spec, now.wall, now.event)

    def split(self, cells: Cells) -> tuple[object, Cells]:
        """What the layout stores before the values in a column of cells, and the cells without it."""
        return None, cells

    def joined(self, leads: object, payloads: pa.BinaryArray) -> pa.BinaryArray:
        """The payloads with what `split` removed."""
        return payloads

    def cell(self, data: bytes) -> Cell:
        """A stored cell with the value alone as its payload."""
        cell = unpack(data)
        return replace(cell, payload=cell.payload[self.lead :]) if self.lead else cell

    def shown(self, cells: pa.BinaryArray, now: Now) -> Cells:
        """A column of stored cells with the values alone; null where there is none, or it has expired."""
        found = self.split(unpack_many(cells))[1]
        over = pc.and_(pc.not_equal(found.expires, NEVER), pc.less_equal(found.expires, now.wall))
        if not pc.any(over).as_py():
            return found
        return Cells(*(pc.if_else(pc.fill_null(over, False), pa.scalar(None, each.type), each) for each in found))

    def visible(self, data: bytes | None, now: Now) -> Cell | None:
        """The same; None where there is no cell, or it has expired."""
        cell = None if data is None else self.cell(data)
        return None if cell is None or (cell.expires != NEVER and cell.expires <= now.wall) else cell

    def own_key(self, stored: bytes) -> bytes:
        """The own key of the entry under a stored key."""
        return stored

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        """The ranges of stored keys that can contain visible entries, in order."""
        return [(ENTRY_AREA, SLICE_AREA)]

    def _by_key(self, part: type[T] | None) -> type[T]:
        if part is None:
            raise self._not_by_key()
        return part

    def _not_by_key(self) -> NotByKey:
        return NotByKey(f"store {self.spec.name!r} is of kind {self.spec.kind}, and has no entries by key alone.")


def part(keys: pa.BinaryArray, cells: pa.BinaryArray) -> pa.Table:
    """Keys and their cells as a state part; a null cell is a tombstone."""
    return pa.table([keys, cells], schema=ENTRY_SCHEMA)


def note_part(key: bytes, cell: bytes) -> pa.Table:
    """One note as a state part."""
    return part(pa.array([key], pa.binary()), pa.array([cell], pa.binary()))


def read_note(state: StoreColumns, key: bytes) -> bytes | None:
    """The cell of one note."""
    cell: bytes | None = state.get(pa.array([key], pa.binary()))[0].as_py()
    return cell


def rows_in(part: pa.Table, area: bytes) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The stored keys and cells of a state part that are in an area; none of a rewrite step."""
    keys, cells = whole(part["key"]), whole(part["value"])
    if len(keys) and keys[-1].as_py() == REWRITE_NOTE:
        return keys.slice(0, 0), cells.slice(0, 0)
    inside = pc.starts_with(keys, area)
    return (keys, cells) if pc.all(inside).as_py() else (keys.filter(inside), cells.filter(inside))


def latest(before: Cells, times: pa.Array | None) -> pa.Array | None:
    """The event times of merged rows: the time of a row never goes back."""
    return None if times is None else pc.fill_null(pc.max_element_wise(before.timestamps, times), NO_TIMESTAMP)
