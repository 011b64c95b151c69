"""What every layout can be asked: how a batch is merged into a store, what a state part changes, where entries stand.

A layout says where the entries of one store stand among its bytes, what stands beside them, and when they are gone.
Nobody else knows. It is used in four ways:

    a task of an aggregate   `writer`    whole columns, over the state at `v-1`
    a processor's store      `entries`   one entry at a time, over the task's overlay
    a query                  `reader`    one entry at a time, or a range; `visible` where one place is enough
    a sink, the rewriter     `changed`, `areas`, `split`, `joined`

The first byte of a stored key is its area:

    0x01   entries under their own keys
    0x02   entries in slices, by time (`slices`)
    0x03   the expiry index (`expiry`)
    0x04   the recency index (`recency`)
    0x05   notes: numbers that the store remembers, the count of its entries, how far a rewrite is
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.stores.access import ENTRY_SCHEMA, Now, OrderedBytes, ReadableBytes, StoreColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import NEVER, NO_TIMESTAMP, Cell, Cells, pack, unpack, unpack_many
from holdfast.stores.formats.keys import FORMAT
from holdfast.stores.layouts.slices import AFTER_AREA, AREA
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

AREA_OF_ENTRIES: Final = FORMAT
NOTES: Final = b"\x05"
EMPTY: Final = pack(Cell(b""))
"""The cell of a row that says everything in its key."""

REMOVED: Final = "removed"
"""Counts entries that were removed one by one because their TTL had passed."""
EVICTED: Final = "evicted"
"""Counts entries that `max_entries` had no room for."""

Count = Callable[[str, int], None]
"""Counts something of a store: a name and how many."""

Merge = Callable[[pa.BinaryArray], pa.BinaryArray]
"""The rows a chunk's keys had, null where they had none → their rows after the batch."""

Batch = tuple[Sequence[bytes], Sequence[bytes]]
"""Own keys, and the cell of each; never none at all."""


class NotByKey(HoldfastError):
    """A store was asked for entries by key alone, and its entries are by key and time."""

    category = ErrorCategory.BUG


class ReadableEntries(Protocol):
    """Cells by an entry's own key, without those that have expired."""

    def find(self, key: bytes) -> bytes | None: ...

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        """Entries in order, some at a time."""

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        """Where these entries may be stored."""

    def quiet(self) -> "ReadableEntries":
        """The same for a reader whose reads change nothing."""


class Ended(NamedTuple):
    """How many entries went at the end of a version."""

    evicted: int = 0
    removed: int = 0


class Entries(ReadableEntries, Protocol):
    """Cells by an entry's own key, to be changed."""

    def expiry(self, ttl_ms: int | None) -> int:
        """When an entry that is written now expires; NEVER if it doesn't."""

    def put(self, key: bytes, cell: bytes, expires: int) -> None: ...

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None: ...

    def remove(self, key: bytes) -> bytes | None:
        """Removes an entry, and returns its cell unless it had expired."""

    def begin_version(self) -> int:
        """Removes expired entries where that has to be done one by one, and says how many."""

    def end_of_version(self) -> Ended:
        """Lets go of entries that there is no room for, and says how many."""


class BatchWriter(Protocol):
    """Merges the rows of one task's batch into a store, one chunk of keys after the other."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table | None:
        """What a chunk of keys changes: a state part, or nothing yet. `times` are its latest event times, in ms."""

    def rest(self) -> pa.Table | None:
        """What is left to write when all chunks have come."""


@dataclass(frozen=True)
class Changed:
    """The entries that a state part changes: own keys, and what their cells say; null in all of it where one is gone.

    Payloads are the values alone, without what a layout keeps before them.
    """

    keys: pa.BinaryArray
    cells: Cells

    @property
    def gone(self) -> pa.BooleanArray:
        return self.cells.payloads.is_null()

    def in_order(self) -> "Changed":
        """The same in the order of the keys."""
        order = pc.sort_indices(self.keys)
        return Changed(self.keys.take(order), Cells(*(column.take(order) for column in self.cells)))


@dataclass(frozen=True)
class Layout:
    """The layout of one store. What isn't said otherwise is true of entries under their own keys."""

    spec: StoreSpec

    lead = 0
    """How many bytes of a payload stand before the value and belong to the layout."""
    deletes = False
    """Whether an aggregate's keys can be deleted: then a sink is told which."""
    entry_areas: ClassVar[tuple[bytes, ...]] = (AREA_OF_ENTRIES,)
    """The areas that entries are in."""
    one_place = True
    """Whether an entry stands under its own key, so that one lookup finds it."""

    def writer(self, version: Version, now: Now, state: StoreColumns, count: Count) -> BatchWriter:
        """What merges a batch of an aggregate."""
        raise self._not_by_key()

    def reader(self, bytes_: ReadableBytes, now: Now) -> ReadableEntries:
        """The entries by their own keys, without expired ones; of a versioned store the latest values."""
        raise self._not_by_key()

    def entries(self, bytes_: OrderedBytes, now: Now) -> Entries:
        """The same, to be changed one at a time."""
        raise self._not_by_key()

    def changed(self, part: pa.Table) -> Changed:
        """Which entries a state part changes, and which are gone. Rewritten entries say what they said: none."""
        keys, cells = rows_in(part, AREA_OF_ENTRIES)
        return Changed(keys, self.split(unpack_many(cells))[1])

    def split(self, cells: Cells) -> tuple[object, Cells]:
        """What the layout keeps before the values of a column of cells, and the cells without it."""
        return None, cells

    def joined(self, leads: object, payloads: pa.BinaryArray) -> pa.BinaryArray:
        """Payloads with what `split` took off before them."""
        return payloads

    def cell(self, data: bytes) -> Cell:
        """A stored cell with the value alone as its payload."""
        cell = unpack(data)
        return replace(cell, payload=cell.payload[self.lead :]) if self.lead else cell

    def visible(self, data: bytes | None, now: Now) -> Cell | None:
        """The same; None where there is none, or it has expired."""
        cell = None if data is None else self.cell(data)
        return None if cell is None or (cell.expires != NEVER and cell.expires <= now.wall) else cell

    def own_key(self, stored: bytes) -> bytes:
        """The own key of the entry that is stored there."""
        return stored

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        """The ranges of stored keys in which entries are that still show, in order."""
        return [(AREA_OF_ENTRIES, SLICED)]

    def _not_by_key(self) -> NotByKey:
        return NotByKey(f"store {self.spec.name!r} is of kind {self.spec.kind}, and has no entries by key alone.")


SLICED: Final = AREA
AFTER_OWN_KEYS: Final = SLICED
"""After every own key; slices, indexes and notes follow."""
AFTER_SLICED: Final = AFTER_AREA
REWRITE_NOTE: Final = NOTES + b"rewrite"
"""How far the rewrite of old entries is. The part a step writes ends with it, by which `changed` tells it."""


def part(keys: pa.BinaryArray, cells: pa.BinaryArray) -> pa.Table:
    """Keys and their cells as a state part; a null cell is a tombstone."""
    return pa.table([keys, cells], schema=ENTRY_SCHEMA)


def rows_in(part: pa.Table, area: bytes) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The stored keys and cells of a state part that are in an area; none at all of a step of the rewrite."""
    keys, cells = whole(part["key"]), whole(part["value"])
    if len(keys) and keys[-1].as_py() == REWRITE_NOTE:
        return keys.slice(0, 0), cells.slice(0, 0)
    inside = pc.starts_with(keys, area)
    return (keys, cells) if pc.all(inside).as_py() else (keys.filter(inside), cells.filter(inside))


def latest(held: Cells, times: pa.Array | None) -> pa.Array | None:
    """The event times of the merged rows: no row goes back in time."""
    return None if times is None else pc.fill_null(pc.max_element_wise(held.timestamps, times), NO_TIMESTAMP)
