"""The sliced layout: entries with a TTL, each in the slice of the version that wrote it.

A key may have a copy in every live slice, and the newest copy counts. So a read asks the slices from the newest on,
each one only for the keys that are still missing. A put goes to the newest slice and shadows older copies. An expired
entry counts as missing, wherever its bytes are. Aggregates delete nothing: a replica drops a slice as a whole when
all of it is hidden.

An entry of a processor's store can have a shorter TTL of its own. The seconds in which such entries expire are marked
in the expiry index, one row per second, for the driver of a quiet app:

    0x03 | second, 8 bytes  →  empty cell

A version that marks a second deletes the marks that have passed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter

import numpy as np
import pyarrow as pa

from holdfast.stores.access import Now, OrderedBytes, StoreColumns
from holdfast.stores.formats.cells import pack_many, unpack_many
from holdfast.stores.formats.times import Row
from holdfast.stores.layouts.areas import ENTRY_AREA, EXPIRY_AREA, SLICE_AREA
from holdfast.stores.layouts.base import (
    EMPTY,
    Batch,
    BatchWriter,
    Changed,
    Counted,
    Entries,
    Layout,
    Merge,
    latest,
    part,
    rows_in,
)
from holdfast.stores.layouts.expiry import AT_MOST, due_second, expiry, index_key, visible
from holdfast.stores.layouts.slice_scans import first_of_each, scan_slices
from holdfast.stores.layouts.slices import (
    first_live_slice,
    live_prefixes,
    live_slices,
    slice_prefix,
    sliced_keys,
    split_sliced,
    split_sliced_keys,
)
from holdfast.stores.scans import close, columns
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec


class SlicedWriter(BatchWriter):
    """Rows of an aggregate that expire a TTL after the last record of their key."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        slices = live_slices(self._spec, self._now.wall)
        before = visible(unpack_many(newest(keys, slices, self._state)), self._now)
        rows = merge(newest_rows(self._spec, before.payloads, before.schemas))
        expires = expiry(self._spec, self._now, len(rows))
        cells = pack_many(rows, latest(before, times), expires, schema=self._spec.schema)
        return part(sliced_keys(slices[0], keys), cells)


def newest(keys: pa.BinaryArray, slices: range, state: StoreColumns) -> pa.BinaryArray:
    """The newest copy of the cell of each key, null where no slice has one."""
    missing = np.arange(len(keys))
    found: list[pa.Array] = []
    places: list[np.typing.NDArray[np.int64]] = []
    for number in slices:
        if not len(missing):
            break
        asked = keys if len(missing) == len(keys) else keys.take(pa.array(missing))
        cells = state.get(sliced_keys(number, asked))
        if cells.null_count == len(cells):
            continue
        there = cells.is_valid().to_numpy(zero_copy_only=False)
        found.append(cells.drop_null())
        places.append(missing[there])
        missing = missing[~there]
    if not found:
        return pa.nulls(len(keys), pa.binary())
    back = np.empty(len(keys), dtype=np.int64)
    back[np.concatenate([*places, missing])] = np.arange(len(keys))
    return pa.concat_arrays([*found, pa.nulls(len(missing), pa.binary())]).take(pa.array(back))


class SlicedEntries(Entries):
    """Entries in slices. A put goes to the newest slice, a removal to all slices that have a copy."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._prefixes = live_prefixes(spec, now.wall)
        self._newest, *self._older = self._prefixes
        self._due: dict[int, None] = {}
        """The marked seconds, the newest mark last."""
        self._due_before = 0

    def find(self, key: bytes) -> bytes | None:
        cell = self._bytes.get(self._newest + key)
        if cell is None:
            older = self._bytes.get_many([prefix + key for prefix in self._older])
            cell = next((copy for copy in older if copy is not None), None)
        return cell if cell is not None and self._shows(cell) else None

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for prefix in self._prefixes:
            missing = [key for key in keys if key not in found]
            if not missing:
                break
            copies = zip(missing, self._bytes.get_many([prefix + key for key in missing]), strict=True)
            found.update((key, cell) for key, cell in copies if cell is not None)
        return [cell if (cell := found.get(key)) is not None and self._shows(cell) else None for key in keys]

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        return self._visible(scan_slices(self._bytes, self._prefixes, start, stop, reverse=reverse))

    def _visible(self, rows: Iterator[Row]) -> Iterator[Batch]:
        for keys, found in columns(first_of_each(rows)):
            yield from self._shown(keys, found)

    def count(self, most: int) -> Counted:
        rows = entries = 0
        copies = scan_slices(self._bytes, self._prefixes, ENTRY_AREA, None)
        for _, same in groupby(copies, itemgetter(0)):
            newest, *older = [cell for _, cell in same]
            rows += 1 + len(older)
            entries += self._shows(newest)
            if entries == most:
                break
        close(copies)
        return Counted(entries, rows)

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        return [prefix + key for prefix in self._prefixes for key in keys]

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        self._mark(expires)
        self._bytes.put(self._newest + key, cell)

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None:
        self._mark(expires)
        newest = self._newest
        self._bytes.put_many([newest + key for key in keys], cells)

    def _mark(self, expires: int) -> None:
        """Marks the second in which an entry expires before the store's TTL: its slice doesn't say when it is due."""
        if expires >= self._wall + self._ttl_ms or (second := due_second(expires)) in self._due:
            return
        if not self._due:
            past = self._bytes.scan(EXPIRY_AREA, index_key(self._wall + 1, b""))
            for mark in [mark for mark, _ in islice(past, AT_MOST)]:
                self._bytes.delete(mark)
        self._due[second] = None
        self._bytes.put(index_key(second, b""), EMPTY)

    def begin_record(self) -> None:
        self._due_before = len(self._due)

    def undo_record(self) -> None:
        while len(self._due) > self._due_before:
            self._due.popitem()

    def remove(self, key: bytes) -> bytes | None:
        places = self.places([key])
        found = [(place, cell) for place, cell in zip(places, self._bytes.get_many(places), strict=True) if cell]
        for place, _ in found:
            self._bytes.delete(place)
        return found[0][1] if found and self._shows(found[0][1]) else None


@dataclass(frozen=True)
class SlicedLayout(Layout):
    """Entries in slices, by the time of their write."""

    WRITER = SlicedWriter
    ENTRIES = READER = SlicedEntries
    entry_areas = (SLICE_AREA,)
    one_place = False

    def changed(self, part: pa.Table) -> Changed:
        keys, cells = rows_in(part, SLICE_AREA)
        numbers, own = split_sliced_keys(keys)
        if len(numbers) and (numbers != numbers[0]).any():
            own, cells = _newest_copies(numbers, own, cells)
        return Changed(own, unpack_many(cells))

    def own_key(self, stored: bytes) -> bytes:
        return split_sliced(stored)[1]

    def areas(self, now: Now) -> list[tuple[bytes, bytes]]:
        # Entries that are written to a slice after it was dropped would never be dropped.
        return [(slice_prefix(first_live_slice(self.spec, now)), EXPIRY_AREA)]


def _newest_copies(
    numbers: np.typing.NDArray[np.int64], keys: pa.BinaryArray, cells: pa.BinaryArray
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """One row per key: the newest slice that has a cell counts. Where none has one, the key is deleted."""
    found: dict[bytes, bytes | None] = {}
    for n in np.argsort(numbers, kind="stable").tolist():
        key, cell = keys[n].as_py(), cells[n].as_py()
        if cell is not None or key not in found:
            found[key] = cell
    return pa.array(found.keys(), pa.binary()), pa.array(found.values(), pa.binary())
