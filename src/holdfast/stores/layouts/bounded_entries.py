"""The bounded layout, one entry at a time: what a processor's store with `max_entries` uses.

Evictions are in the log as deletes, so they are the same on every replica. Of the entries that a version touches, the
last `max_entries` are kept here, the one touched last at the end. When there are more, the first is dropped at once; if
it was new in this version, it is never written. The rest is decided when the version ends: entries of earlier versions
make room, expired ones first, then by the recency index (`recency`). A put is a touch. A get is one too with
`refresh_on_read`, and then it is a write.

An entry that expires, by its own TTL or the store's, has a row in the expiry index too (`expiry`), through which it is
removed when a version begins.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast.stores.access import Now, OrderedBytes
from holdfast.stores.formats.cells import NEVER
from holdfast.stores.formats.quick_cells import payload_of, payload_start
from holdfast.stores.formats.times import Row, time_at, time_bytes
from holdfast.stores.layouts import recency
from holdfast.stores.layouts.areas import EXPIRY_AREA, NOTE_AREA, PREFIX_BYTES, RECENCY_AREA, SLICE_AREA
from holdfast.stores.layouts.base import EMPTY, Batch, Ended, Entries, ReadableEntries
from holdfast.stores.layouts.expiry import AT_MOST, expires_of, index_key
from holdfast.stores.layouts.recency import SEQ_BYTES
from holdfast.stores.scans import close, columns
from holdfast.stores.spec import StoreSpec


class Was(NamedTuple):
    """An entry before a record changed it: its places in the three dictionaries of `BoundedEntries`."""

    touched: bytes | None
    number: int
    removed: bool
    changed: bool
    before: bytes | None


class TouchJournal:
    """Undoes what the current record did to the touched and removed entries.

    Each touch has a number, because a dictionary doesn't say where an entry was that was moved to its end.
    """

    def __init__(self, touched: Iterable[bytes]) -> None:
        self._numbers = {key: n for n, key in enumerate(touched)}
        self._next = len(self._numbers)
        self.noted: dict[bytes, Was] = {}

    def begin(self) -> None:
        self.noted = {}

    def touched(self, key: bytes) -> None:
        self._numbers[key] = self._next
        self._next += 1

    def note(
        self, key: bytes, touched: Mapping[bytes, bytes], removed: Mapping[bytes, None], before: Mapping[bytes, Any]
    ) -> None:
        if key not in self.noted:
            number = self._numbers.get(key, -1)
            self.noted[key] = Was(touched.get(key), number, key in removed, key in before, before.get(key))

    def undone(
        self, touched: OrderedDict[bytes, bytes], removed: dict[bytes, None], before: dict[bytes, bytes | None]
    ) -> OrderedDict[bytes, bytes]:
        """Restores the removed entries and those before, and returns the touched ones in their former order."""
        for key, was in self.noted.items():
            touched.pop(key, None)
            removed.pop(key, None)
            before.pop(key, None)
            if was.touched is not None:
                touched[key] = was.touched
                self._numbers[key] = was.number
            if was.removed:
                removed[key] = None
            if was.changed:
                before[key] = was.before
        return OrderedDict(sorted(touched.items(), key=lambda entry: self._numbers[entry[0]]))


class BoundedEntries(Entries):
    """Entries under their own keys, at most `max_entries` of them when a version ends."""

    def __init__(self, spec: StoreSpec, bytes_: OrderedBytes, now: Now) -> None:
        super().__init__(spec, bytes_, now)
        self._most = spec.max_entries
        self._refresh = bool(spec.option("refresh_on_read"))
        self._begin()

    def _begin(self) -> None:
        self._touched: OrderedDict[bytes, bytes] = OrderedDict()
        """The cells of touched entries, the one touched last at the end."""
        self._removed: dict[bytes, None] = {}
        """Entries of earlier versions that were removed."""
        self._before: dict[bytes, bytes | None] = {}
        """The cells that touched and removed entries had when the version began."""
        self._dropped = 0
        self._held = (0, 0)
        self._touches: TouchJournal | None = None
        """What undoes a record, from the first one on that may be undone."""

    def find(self, key: bytes) -> bytes | None:
        cell = self._peek(key)
        if cell is not None and self._refresh:
            self._touch(key, cell, cell)
        return cell

    def find_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._peek_many(keys)
        if self._refresh:
            for key, cell in zip(keys, found, strict=True):
                if cell is not None:
                    self._touch(key, cell, cell)
        return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[Batch]:
        """Entries in order. A scan touches none: it reads all of them and uses none in particular."""
        stop = SLICE_AREA if stop is None else stop
        changed = {key: self._touched.get(key) for key in self._before if start <= key < stop}
        return columns(self._visible(changed, self._bytes.scan(start, stop, reverse=reverse), reverse=reverse))

    def _visible(self, changed: Mapping[bytes, bytes | None], rows: Iterator[Row], *, reverse: bool) -> Iterator[Row]:
        """The rows with the entries that this version has changed; None: removed."""
        before = ((key, cell) for key, cell in rows if key not in changed)
        mine = sorted(((key, cell) for key, cell in changed.items() if cell is not None), reverse=reverse)
        try:
            for row in heapq.merge(mine, before, key=itemgetter(0), reverse=reverse):
                if self._shows(row[1]):
                    yield row
        finally:
            close(rows)

    def places(self, keys: Sequence[bytes]) -> list[bytes]:
        return [*keys, recency.COUNT_KEY]

    def without_touching(self) -> ReadableEntries:
        return _WithoutTouching(self)

    def put(self, key: bytes, cell: bytes, expires: int) -> None:
        self._touch(key, cell, None if key in self._before else self._bytes.get(key))

    def put_many(self, keys: Sequence[bytes], cells: Sequence[bytes], expires: int) -> None:
        before = self._missing(keys)
        for key, cell in zip(keys, cells, strict=True):
            self._touch(key, cell, before.get(key))

    def remove(self, key: bytes) -> bytes | None:
        cell = self._now(key)
        if cell is None:
            return None
        if key in self._touched:
            self._drop(key)
        else:
            self._take(key, cell)
        return cell if self._shows(cell) else None

    def begin_version(self) -> int:
        removed = 0
        for row, key, cell in self._expired(AT_MOST):
            if cell is not None and expires_of(cell) == time_at(row, 1):
                self._take(key, cell)
                removed += 1
            else:
                self._bytes.delete(row)
        return removed

    def end_of_version(self) -> Ended:
        """Evicts entries beyond `max_entries`, and writes what the version changed."""
        if not self._touched and not self._removed:
            return Ended()
        evicted = self._dropped + self._evict()
        seq = self._last_seq()
        self._bytes.hold(-self._held[0], -self._held[1])  # written entries are counted from here on
        for key in self._removed:
            self._delete_rows(key)
            self._bytes.delete(key)
        for key, cell in self._touched.items():
            self._delete_rows(key)
            seq += 1
            self._bytes.put(key, _with_seq(cell, seq))
            self._bytes.put(recency.index_key(seq, key), EMPTY)
            if (expires := expires_of(cell)) != NEVER:
                self._bytes.put(index_key(expires, key), EMPTY)
        self._begin()
        return Ended(evicted)

    def _delete_rows(self, key: bytes) -> None:
        """Deletes the former rows of an entry from both indexes."""
        before = self._before[key]
        if before is not None:
            self._bytes.delete(recency.index_key(_seq_of(before), key))
            if (expires := expires_of(before)) != NEVER:
                self._bytes.delete(index_key(expires, key))

    def _evict(self) -> int:
        """Removes entries of earlier versions until there is room. Entries touched in this version stay."""
        counted = recency.counted(self._bytes.get(recency.COUNT_KEY))
        entries = counted - len(self._removed) + sum(self._before[key] is None for key in self._touched)
        excess = max(entries - self._most, 0)
        if excess:
            expired = self._expired(excess)
            gone = dict.fromkeys(key for _, key, cell in expired if cell is not None and not self._shows(cell))
            gone.update(dict.fromkeys(self._oldest(excess - len(gone), without=gone)))
            self._before.update(zip(gone, self._bytes.get_many(list(gone)), strict=True))
            self._removed.update(gone)
            excess = len(gone)
        if entries - excess != counted:
            self._bytes.put(recency.COUNT_KEY, recency.count_cell(entries - excess))
        return excess

    def _expired(self, number: int) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        """Expired entries that were neither touched nor removed: the row of the index, the key and its cell."""
        rows = self._bytes.scan(EXPIRY_AREA, EXPIRY_AREA + time_bytes(self._wall + 1))
        found = list(islice((row for row, _ in rows if row[PREFIX_BYTES:] not in self._before), number))
        keys = [row[PREFIX_BYTES:] for row in found]
        return zip(found, keys, self._bytes.get_many(keys), strict=True)

    def _oldest(self, number: int, *, without: dict[bytes, None]) -> Iterator[bytes]:
        """The entries that were touched longest ago and not in this version."""
        rows = self._bytes.scan(RECENCY_AREA, NOTE_AREA)
        keys = (row[PREFIX_BYTES:] for row, _ in rows)
        return islice((key for key in keys if key not in self._before and key not in without), number)

    def _last_seq(self) -> int:
        for row, _ in self._bytes.scan(RECENCY_AREA, NOTE_AREA, reverse=True):
            return int.from_bytes(row[1:PREFIX_BYTES], "big")
        return 0

    def _peek(self, key: bytes) -> bytes | None:
        cell = self._now(key)
        return cell if cell is not None and self._shows(cell) else None

    def _peek_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        before = self._missing(keys)
        found = (before[key] if key in before else self._touched.get(key) for key in keys)
        return [cell if cell is not None and self._shows(cell) else None for cell in found]

    def _missing(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """The cells of the keys that this version hasn't changed."""
        missing = [key for key in keys if key not in self._before]
        return dict(zip(missing, self._bytes.get_many(missing), strict=True))

    def _now(self, key: bytes) -> bytes | None:
        return self._touched.get(key) if key in self._before else self._bytes.get(key)

    def begin_record(self) -> None:
        if self._touches is None:
            self._touches = TouchJournal(self._touched)
        self._touches.begin()
        self._at_begin = self._dropped, self._held

    def of_record(self, changes: Mapping[bytes, bytes | None]) -> Mapping[bytes, bytes | None]:
        assert self._touches is not None
        return {key: self._touched.get(key) for key in self._touches.noted}  # they are written when the version ends

    def undo_record(self) -> None:
        assert self._touches is not None
        self._touched = self._touches.undone(self._touched, self._removed, self._before)
        self._dropped, self._held = self._at_begin

    def _note(self, key: bytes) -> None:
        """Notes how an entry was before it is changed, if the record may be undone."""
        if self._touches is not None:
            self._touches.note(key, self._touched, self._removed, self._before)

    def _touch(self, key: bytes, cell: bytes, before: bytes | None) -> None:
        """Puts an entry at the end of the touched ones. `before`: its cell before, unless that is known."""
        if self._touches is not None:
            self._note(key)
            self._touches.touched(key)
        old = self._touched.get(key)
        if old is not None:
            self._touched.move_to_end(key)
            self._hold(0, len(cell) - len(old))
        elif key in self._removed:
            del self._removed[key]
            self._hold(1, len(cell))
        else:
            self._before[key] = before
            self._hold(2, len(key) + len(before or b"") + len(cell))
        self._touched[key] = cell
        if len(self._touched) > self._most:
            self._drop(next(iter(self._touched)))
            self._dropped += 1

    def _drop(self, key: bytes) -> None:
        """Drops a touched entry; one that was new in this version leaves no trace."""
        self._note(key)
        cell = self._touched.pop(key)
        if self._before[key] is None:
            del self._before[key]
            self._hold(-2, -len(key) - len(cell))
        else:
            self._removed[key] = None
            self._hold(-1, -len(cell))

    def _take(self, key: bytes, cell: bytes) -> None:
        """Removes an entry that this version hasn't changed."""
        self._note(key)
        self._before[key] = cell
        self._removed[key] = None
        self._hold(1, len(key) + len(cell))

    def _hold(self, entries: int, size: int) -> None:
        self._held = (self._held[0] + entries, self._held[1] + size)
        self._bytes.hold(entries, size)


class _WithoutTouching:
    """The entries of a bounded store for a reader that refreshes nothing."""

    def __init__(self, entries: BoundedEntries) -> None:
        self.find = entries._peek
        self.find_many = entries._peek_many
        self.scan = entries.scan
        self.count = entries.count

    def without_touching(self) -> ReadableEntries:
        return self


def _seq_of(cell: bytes) -> int:
    return recency.split_seq(payload_of(cell)[0])[0]


def _with_seq(cell: bytes, seq: int) -> bytes:
    """The cell with the number of its touch, for which it has room."""
    at = payload_start(cell)
    return cell[:at] + recency.with_seq(seq, cell[at + SEQ_BYTES :])
