"""Where the entries of a key-value store are, and when they are over.

A store without a TTL keeps entries as they are, at their own keys. One that was put with a TTL of its own is hidden
from then on, and found through the expiry index when it is to be removed (so is any with a TTL in a store with
`max_entries`, see `lru`):

    0x03 | expires, 8 bytes big-endian, sign bit flipped | own key  →  empty cell

A store with a TTL for all keeps them in slices (see `stores.layouts.slices`): a put goes to the newest, so an older
copy is shadowed, and slices go whole. Both hide what is over by the wall clock of the version, whether its bytes are
there or not.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import compress, islice
from typing import NamedTuple, Protocol

from holdfast.errors import BadValue
from holdfast.settings.units import format_duration
from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import FORMAT, HEADER_BYTES, NEVER, Cell
from holdfast.stores.kinds.coding import all_begin_with
from holdfast.stores.kinds.containers import columns
from holdfast.stores.kinds.keying import time_at, time_bytes
from holdfast.stores.kinds.merging import first_of_each, scan_slices
from holdfast.stores.layouts.expiries import INDEX, ROW_BYTES
from holdfast.stores.layouts.slices import live_prefixes
from holdfast.stores.spec import StoreSpec

EMPTY = cells.pack(Cell(b""))
AT_MOST = 10_000
"""How many expired entries a version removes before its first record; those left wait, hidden."""

CATCH_UP = 2
"""How many it removes by its end for each it has put with a TTL, if that is more: so they don't pile up."""

_U64 = struct.Struct(">Q")
_NEVER = bytes(8)
_FORMAT_1 = bytes([FORMAT])
_PLAIN = EMPTY
"""What a cell without timestamp and expiry begins with: almost all do, and then nothing else has to be looked at."""


Batch = tuple[Sequence[bytes], Sequence[bytes]]
"""Own keys, and the cell of each; never none at all."""


class ReadableEntries(Protocol):
    """Cells by an entry's own key, without what is over."""

    def find(self, key: bytes) -> bytes | None: ...

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        """Entries in order, some at a time."""

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        """Where these entries may be stored."""

    def quiet(self) -> "ReadableEntries":
        """The same for a reader whose reads change nothing."""


class Entries(ReadableEntries, Protocol):
    """Cells by an entry's own key, to be changed."""

    def expiry(self, ttl_ms: int | None) -> int:
        """When an entry that is written now is over; NEVER if it isn't."""

    def put(self, key: bytes, cell: bytes, expires: int) -> None: ...

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None: ...

    def remove(self, key: bytes) -> bytes | None:
        """Removes an entry, and returns its cell unless it was over."""

    def begin_version(self) -> int:
        """Removes what is over where that has to be done one by one, and says how many."""

    def end_of_version(self) -> "Ended":
        """Lets go of what there is no room for, and says how many."""


class Ended(NamedTuple):
    """What went at a version's end."""

    evicted: int = 0
    removed: int = 0


def index_key(expires: int, key: bytes) -> bytes:
    """An entry's row in the expiry index.

    >>> index_key(1, b"\\x01ann").hex(" ")
    '03 80 00 00 00 00 00 00 01 01 61 6e 6e'
    """
    return INDEX + time_bytes(expires) + key


def expires_of(cell: bytes) -> int:
    """When a cell is over.

    >>> expires_of(cells.pack(Cell(b"", expires=7)))
    7
    """
    return cells.unpack(cell).expires


class ExpiryClock:
    """Tells what is over at one moment, from a cell's bytes as they are: this is asked of every cell that is read."""

    def __init__(self, wall: int) -> None:
        self._wall = _U64.pack(max(wall, 0))

    def shows(self, cell: bytes) -> bool:
        expires = cell[9:17] if cell[:1] == _FORMAT_1 and len(cell) >= HEADER_BYTES else _U64.pack(expires_of(cell))
        return expires == _NEVER or expires > self._wall


def shown(shows: Callable[[bytes], bool], keys: Sequence[bytes], found: Sequence[bytes]) -> Iterator[Batch]:
    """What is left of a batch without what is over."""
    show = list(map(shows, found))
    if any(show):
        yield list(compress(keys, show)), list(compress(found, show))


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


class ReadableSlicedEntries:
    """Entries in the slices of a store with a TTL."""

    def __init__(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> None:
        self._prefixes = live_prefixes(spec, now.wall)
        self._newest, *self._older = self._prefixes
        self._readable = bytes_
        self._get, self._get_many = bytes_.get, bytes_.get_many
        self._shows = ExpiryClock(now.wall).shows

    def find(self, key: bytes) -> bytes | None:
        cell = self._copy(key)
        return cell if cell is not None and self._shows(cell) else None

    def _copy(self, key: bytes) -> bytes | None:
        """The newest copy, whether it is over or not."""
        cell = self._get(self._newest + key)
        if cell is not None:
            return cell
        return next((c for c in self._get_many([prefix + key for prefix in self._older]) if c is not None), None)

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for prefix in self._prefixes:
            missing = [key for key in keys if key not in found]
            if not missing:
                break
            copies = zip(missing, self._get_many([prefix + key for key in missing]), strict=True)
            found.update((key, cell) for key, cell in copies if cell is not None)
        return [cell if (cell := found.get(key)) is not None and self._shows(cell) else None for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        newest = first_of_each(scan_slices(self._readable, self._prefixes, start, stop, reverse=reverse))
        for keys, found in columns(newest):
            yield from shown(self._shows, keys, found)

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        return [prefix + key for prefix in self._prefixes for key in keys]

    def quiet(self) -> ReadableEntries:
        return self


def shorter_ttl(ttl_ms: int | None, of_store: int) -> int:
    """An entry's TTL in a store that has one: its own if it is no longer, the store's if it has none."""
    if ttl_ms is not None and ttl_ms > of_store:
        raise BadValue(
            f"ttl={_words(ttl_ms)} is longer than the store's own of {_words(of_store)}, after which its entries go. "
            "Give a shorter one, or the store a longer one."
        )
    return of_store if ttl_ms is None else ttl_ms


class SlicedEntries(ReadableSlicedEntries):
    """Entries in slices, to be changed: a put goes to the newest, a removal to all that have a copy."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._bytes = bytes_
        self._wall, self._ttl_ms = now.wall, spec.ttl_ms

    def expiry(self, ttl_ms: int | None) -> int:
        return self._wall + shorter_ttl(ttl_ms, self._ttl_ms)

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        self._bytes.put(self._newest + key, cell)

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None:
        newest = self._newest
        self._bytes.put_many([newest + key for key in keys], cells)

    def remove(self, key: bytes) -> bytes | None:
        places = [prefix + key for prefix in self._prefixes]
        found = [(place, cell) for place, cell in zip(places, self._get_many(places), strict=True) if cell is not None]
        for place, _ in found:
            self._bytes.delete(place)
        return found[0][1] if found and self._shows(found[0][1]) else None

    def begin_version(self) -> int:
        return 0

    def end_of_version(self) -> Ended:
        return Ended()


def _words(millis: int) -> str:
    return format_duration(timedelta(milliseconds=millis))
