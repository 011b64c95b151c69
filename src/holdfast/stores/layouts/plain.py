"""The plain layout: every entry under its own key.

An entry that was put with a TTL of its own has a row in the expiry index, through which it is removed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, OrderedBytes
from holdfast.stores.formats.cells import NEVER, all_begin_with, pack_many, unpack_many
from holdfast.stores.formats.times import Row, time_at, time_bytes
from holdfast.stores.layouts.areas import EXPIRY_AREA, PREFIX_BYTES, SLICE_AREA
from holdfast.stores.layouts.base import EMPTY, Batch, BatchWriter, Ended, Entries, Layout, Merge, latest, part
from holdfast.stores.layouts.expiry import AT_MOST, expires_of, index_key
from holdfast.stores.scans import columns
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec

CATCH_UP = 2
"""How many expired entries a version removes by its end per entry that it puts with a TTL: so they don't accumulate."""

_PLAIN = EMPTY
"""The first bytes of a cell without timestamp and expiry. Almost all cells start so, and need no other check."""


Chosen = Callable[[pa.BinaryArray], pa.BooleanArray]
"""The stored rows of some keys, null where there is none → which of the keys change."""


class PlainWriter(BatchWriter):
    """Rows of an aggregate that never expire."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        before = unpack_many(self._state.get(keys))
        rows = merge(newest_rows(self._spec, before.payloads, before.schemas))
        return part(keys, pack_many(rows, latest(before, times), schema=self._spec.schema))

    def replace(
        self, keys: pa.BinaryArray, times: pa.Array | None, rows: pa.BinaryArray, chosen: Chosen
    ) -> pa.Table | None:
        """What it changes to set the rows of these keys, null to delete one. `chosen` decides, given the stored rows.

        To delete a key that isn't there changes nothing.
        """
        before = unpack_many(self._state.get(keys))
        stored = newest_rows(self._spec, before.payloads, before.schemas)
        wanted = pc.and_(chosen(stored), pc.or_(pc.is_valid(rows), pc.is_valid(stored)))
        if not pc.any(wanted).as_py():
            return None
        cells = pack_many(rows, times, schema=self._spec.schema)
        return part(keys.filter(wanted), cells.filter(wanted))


class PlainEntries(Entries):
    """Entries under their own keys; those with a TTL are in the expiry index."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._get = bytes_.get
        self._due = self._due_before = 0
        """How many rows of the index this version still has to check, now and when the record began."""

    def find(self, key: bytes) -> bytes | None:
        cell = self._get(key)
        return cell if cell is not None and (cell.startswith(_PLAIN) or self._shows(cell)) else None

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._bytes.get_many(keys)
        if all_begin_with(_PLAIN, [cell for cell in found if cell is not None]):
            return found
        shows = self._shows
        return [cell if cell is not None and shows(cell) else None for cell in found]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        return self._visible(self._bytes.scan(start, SLICE_AREA if stop is None else stop, reverse=reverse))

    def _visible(self, rows: Iterator[Row]) -> Iterator[Batch]:
        for keys, found in columns(rows):
            if all_begin_with(_PLAIN, found):
                yield keys, found
            else:
                yield from self._shown(keys, found)

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        if expires != NEVER:
            # A key that is put repeatedly gets one row. A put without a TTL leaves the old row until its time comes.
            old = self._get(key)
            if old is not None and (was := expires_of(old)) not in (NEVER, expires):
                self._bytes.delete(index_key(was, key))
            self._bytes.put(index_key(expires, key), EMPTY)
            self._due += CATCH_UP
        self._bytes.put(key, cell)

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None:
        if expires == NEVER:
            self._bytes.put_many(keys, cells)
        else:
            for key, cell in zip(keys, cells, strict=True):
                self.put(key, cell, expires)

    def remove(self, key: bytes) -> bytes | None:
        cell = self._get(key)
        if cell is None:
            return None
        self._bytes.delete(key)
        if (expires := expires_of(cell)) != NEVER:
            self._bytes.delete(index_key(expires, key))
        return cell if self._shows(cell) else None

    def begin_version(self) -> int:
        return self._remove_expired(AT_MOST)

    def end_of_version(self) -> Ended:
        return Ended(removed=self._remove_expired(self._due)) if self._due > 0 else Ended()

    def begin_record(self) -> None:
        self._due_before = self._due

    def undo_record(self) -> None:
        self._due = self._due_before

    def _remove_expired(self, most: int) -> int:
        """Checks up to `most` rows of expired entries, and returns how many entries were removed."""
        rows = self._bytes.scan(EXPIRY_AREA, EXPIRY_AREA + time_bytes(self._wall + 1))
        expired = [row for row, _ in islice(rows, most)]
        self._due -= len(expired)
        removed = 0
        for row, cell in zip(expired, self._bytes.get_many([row[PREFIX_BYTES:] for row in expired]), strict=True):
            self._bytes.delete(row)
            if cell is not None and expires_of(cell) == time_at(row, 1):  # otherwise it was put again since
                self._bytes.delete(row[PREFIX_BYTES:])
                removed += 1
        return removed


@dataclass(frozen=True)
class PlainLayout(Layout):
    """Entries under their own keys."""

    WRITER = PlainWriter
    ENTRIES = READER = PlainEntries
