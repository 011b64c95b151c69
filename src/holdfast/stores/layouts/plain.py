"""The plain layout: every key has its entry, under itself.

One that was put with a TTL of its own has a row in the expiry index, through which it is removed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from holdfast.stores.access import Now, OrderedBytes, ReadableBytes, StoreColumns
from holdfast.stores.formats.cells import NEVER, all_begin_with, pack_many, unpack_many
from holdfast.stores.formats.times import time_at, time_bytes
from holdfast.stores.layouts.base import EMPTY, Batch, Count, Ended, Layout, Merge, ReadableEntries, latest, part
from holdfast.stores.layouts.expiry import AT_MOST, INDEX, ROW_BYTES, ExpiryClock, expires_of, index_key, shown
from holdfast.stores.scans import columns
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

CATCH_UP = 2
"""How many expired entries a version removes by its end for each it has put with a TTL: so they don't pile up."""

_PLAIN = EMPTY
"""What a cell without timestamp and expiry begins with: almost all do, and then nothing else has to be looked at."""


@dataclass(frozen=True)
class PlainLayout(Layout):
    """Entries under their own keys."""

    def writer(self, version: Version, now: Now, state: StoreColumns, count: Count) -> "PlainWriter":
        return PlainWriter(self.spec, state)

    def reader(self, bytes_: ReadableBytes, now: Now) -> "ReadablePlainEntries":
        return ReadablePlainEntries(bytes_, now)

    def entries(self, bytes_: OrderedBytes, now: Now) -> "PlainEntries":
        return PlainEntries(bytes_, now)


class PlainWriter:
    """Rows of an aggregate that stay for good."""

    def __init__(self, spec: StoreSpec, state: StoreColumns) -> None:
        self._spec = spec
        self._state = state

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        held = unpack_many(self._state.get(keys))
        rows = merge(newest_rows(self._spec, held.payloads, held.schemas))
        return part(keys, pack_many(rows, latest(held, times), schema=self._spec.schema))

    def rest(self) -> None:
        return None


class ReadablePlainEntries:
    """Entries at their own keys."""

    def __init__(self, bytes_: ReadableBytes, now: Now) -> None:
        self._get, self._get_many, self._scan = bytes_.get, bytes_.get_many, bytes_.scan
        self._shows = ExpiryClock(now.wall).shows

    def find(self, key: bytes) -> bytes | None:
        cell = self._get(key)
        return cell if cell is not None and (cell.startswith(_PLAIN) or self._shows(cell)) else None

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._get_many(keys)
        if all_begin_with(_PLAIN, [cell for cell in found if cell is not None]):
            return found
        shows = self._shows
        return [cell if cell is not None and shows(cell) else None for cell in found]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        for keys, found in columns(self._scan(start, stop, reverse=reverse)):
            if all_begin_with(_PLAIN, found):
                yield keys, found
            else:
                yield from shown(self._shows, keys, found)

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        return list(keys)

    def quiet(self) -> ReadableEntries:
        return self


class PlainEntries(ReadablePlainEntries):
    """Entries at their own keys, to be changed; those with a TTL are in the expiry index."""

    def __init__(self, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(bytes_, now)
        self._bytes = bytes_
        self._wall = now.wall
        self._due = 0
        """How many rows of the index this version is still to look at."""

    def expiry(self, ttl_ms: int | None) -> int:
        return NEVER if ttl_ms is None else self._wall + ttl_ms

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        if expires != NEVER:
            # An entry that is put again and again is to have one row. Without a TTL the old row is left to its time.
            old = self._bytes.get(key)
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
        cell = self._bytes.get(key)
        if cell is None:
            return None
        self._bytes.delete(key)
        if (expires := expires_of(cell)) != NEVER:
            self._bytes.delete(index_key(expires, key))
        return cell if self._shows(cell) else None

    def begin_version(self) -> int:
        return self._remove(AT_MOST)

    def end_of_version(self) -> Ended:
        return Ended(removed=self._remove(self._due)) if self._due > 0 else Ended()

    def _remove(self, most: int) -> int:
        """Looks at so many rows of entries that are over, and says how many entries went."""
        rows = self._bytes.scan(INDEX, INDEX + time_bytes(self._wall + 1))
        over = [row for row, _ in islice(rows, most)]
        self._due -= len(over)
        removed = 0
        for row, cell in zip(over, self._bytes.get_many([row[ROW_BYTES:] for row in over]), strict=True):
            self._bytes.delete(row)
            if cell is not None and expires_of(cell) == time_at(row, len(INDEX)):  # or it was put again since
                self._bytes.delete(row[ROW_BYTES:])
                removed += 1
        return removed
