"""What waits to be sent: an index of windows, in the order of the event clock at which each is due.

    0x06 | due, 8 bytes big-endian, sign bit flipped | own key  →  empty cell

A row is put when a window is to be sent later, and deleted in the version that sends it. So what waits survives every
crash, and its size has no limit but that of the store. How many rows there are is noted under `0x05 waiting`.

A window is sent in the version after the one whose event clock is past its due time, so its cell is still needed then,
even if its retention has passed meanwhile. Replicas drop slices of such a store one step later (`drops_later`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.stores.access import OrderedBytes, ReadableBytes, StoreColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.formats.times import time_at, time_bytes
from holdfast.stores.layouts.areas import (
    NOTE_AREA,
    PREFIX_BYTES,
    WAITING_AREA,
    flip_signs,
    numbered_keys,
    split_numbered_keys,
)
from holdfast.stores.layouts.base import EMPTY, note_part, read_note
from holdfast.stores.layouts.expiring import deletes, empty_cells
from holdfast.stores.layouts.timed import noted_number, number_note
from holdfast.stores.layouts.windowed_rows import Times
from holdfast.stores.scans import close
from holdfast.stores.spec import StoreSpec

FINAL: Final = "final"
EVERY: Final = "emit_every_ms"
"""Options of a store whose windows are sent when they close, or at most so often."""

WAITING_COUNT: Final = "waiting"
"""Counts the windows that wait, not those that a version adds."""

WAITING: Final = NOTE_AREA + b"waiting"
GRACES: Final = NOTE_AREA + b"graces"
PAGE_ROWS: Final = 100_000

_END: Final = bytes([WAITING_AREA[0] + 1])


def drops_later(spec: StoreSpec) -> bool:
    """Whether windows of a store may wait to be sent."""
    return bool(spec.option(FINAL) or spec.option(EVERY))


def first_waiting(bytes_: ReadableBytes) -> int | None:
    """When the first window is due."""
    rows = bytes_.scan(WAITING_AREA, _END)
    row = next(rows, None)
    close(rows)
    return None if row is None else time_at(row[0], 1)


class WaitingRows:
    """The index of one store in a task: what is due, and what this version changes."""

    def __init__(self, state: StoreColumns) -> None:
        self._state = state
        self._added = 0
        self.size = 0
        """How many windows wait, after `rest`."""

    def due(self, event: int) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        """The rows that are due at an event clock, in order and in pages: stored keys, and the own keys of windows."""
        start, stop = WAITING_AREA, WAITING_AREA + time_bytes(event + 1)
        while True:
            page = whole(self._state.scan(start, stop, limit=PAGE_ROWS)["key"])
            if len(page):
                yield page, split_numbered_keys(page)[1]
            if len(page) < PAGE_ROWS:
                return
            start = page[-1].as_py() + b"\x00"

    def put(self, due: Times, own: pa.BinaryArray) -> pa.Table:
        """Rows of windows that don't wait yet."""
        self._added += len(own)
        return empty_cells(_keys(due, own))

    def put_missing(self, due: Times, own: pa.BinaryArray) -> pa.Table:
        """Rows of windows of which some wait already."""
        rows = _keys(due, own)
        rows = rows.filter(self._state.get(rows).is_null())
        self._added += len(rows)
        return empty_cells(rows)

    def remove(self, due: Times, own: pa.BinaryArray) -> pa.Table:
        """Deletes of rows of which some may not be there."""
        rows = _keys(due, own)
        return self.sent(rows.filter(self._state.get(rows).is_valid()))

    def sent(self, rows: pa.BinaryArray) -> pa.Table:
        self._added -= len(rows)
        return deletes(rows)

    def rest(self) -> pa.Table | None:
        """The note of the number of rows, if it has changed."""
        before = noted_number(read_note(self._state, WAITING)) or 0
        self.size = before + self._added
        return note_part(WAITING, number_note(self.size)) if self._added else None


class WaitingEntries:
    """The same index one window at a time, for stores that a user's function changes.

    The graces by which windows of the store have waited so far are noted under `0x05 graces`, 8 bytes each. A window
    that waits since before a change of the grace is found by them.
    """

    def __init__(self, bytes_: OrderedBytes) -> None:
        self._bytes = bytes_
        self._added = 0

    def due(self, event: int) -> list[tuple[int, bytes]]:
        """The windows that are due at an event clock: since when, and their own keys."""
        rows = self._bytes.scan(WAITING_AREA, WAITING_AREA + time_bytes(event + 1))
        return [(time_at(row, 1), row[PREFIX_BYTES:]) for row, _ in rows]

    def put(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Lets windows wait that don't wait yet: when each is due, and its own key."""
        for due, own in rows:
            self._bytes.put(_key(due, own), EMPTY)
            self._added += 1

    def put_missing(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Lets windows wait of which some wait already."""
        there = self._bytes.get_many([_key(*row) for row in rows])
        self.put(row for row, cell in zip(rows, there, strict=True) if cell is None)

    def sent(self, due: int, own: bytes) -> None:
        """Removes a row that is there."""
        self._bytes.delete(_key(due, own))
        self._added -= 1

    def remove(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Removes rows of which some may not be there."""
        for row, cell in zip(rows, self._bytes.get_many([_key(*row) for row in rows]), strict=True):
            if cell is not None:
                self.sent(*row)

    def graces(self, present: int) -> list[int]:
        """The graces by which windows may wait, the present one included, which is noted."""
        note = self._bytes.get(GRACES)
        noted = b"" if note is None else unpack(note).payload
        known = [time_at(noted, at) for at in range(0, len(noted), 8)]
        if present not in known:
            known.append(present)
            self._bytes.put(GRACES, pack(Cell(b"".join(map(time_bytes, known)))))
        return known

    def rest(self) -> int:
        """Notes the number of rows at the end of a version, and returns it."""
        number = (noted_number(self._bytes.get(WAITING)) or 0) + self._added
        if self._added:
            self._bytes.put(WAITING, number_note(number))
        return number


def _key(due: int, own: bytes) -> bytes:
    return WAITING_AREA + time_bytes(due) + own


def _keys(due: Times, own: pa.BinaryArray) -> pa.BinaryArray:
    return numbered_keys(WAITING_AREA, flip_signs(np.asarray(due)), own)
