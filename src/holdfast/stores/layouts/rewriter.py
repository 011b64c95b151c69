"""The background rewrite: brings old entries of a store to the newest schema, a limited number per version.

Every write uses the newest schema, so entries in use need no rewrite. It is for the others. In each version a task
makes one step over a partition: it reads a limited number of entries from where the last step ended, and writes those
of an older schema again. The progress is a note in the store, written together with the entries. So a version that is
lost loses the whole step, and a version that is computed again makes the same step.

It works with any layout: the layout says where entries are and what is stored before their values. Rows of an aggregate
are rewritten as whole columns (1.5 ms per 1,000, against 23 one by one), typed values one by one. A step writes a state
part of its own, with the note at its end. Sinks recognise it by the note: no value has changed.

    0x05 | "rewrite"  →  cell of: a map of schema, next, seen, rewritten, unreadable, total, finished
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import RESTORE_AGAIN, BadValue, DamagedObject
from holdfast.stores.access import ENTRY_SCHEMA, Now, ReadableBytes, StoreColumns
from holdfast.stores.codecs.base import UnreadableValue
from holdfast.stores.codecs.values import StoreCodec, UpcastFailed, codec_of
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import FIRST_SCHEMA, NEVER, Cell, Cells, pack, pack_many, unpack, unpack_many
from holdfast.stores.layouts.areas import ENTRY_AREA
from holdfast.stores.layouts.base import REWRITE_NOTE, note_part, part, read_note
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import RowValues, StoreSpec

STEP: Final = 1_000
"""How many entries a step reads by default: some milliseconds per version."""

_PAGE = 100_000
"""How many entries are read as columns at a time."""

_UNREADABLE = (DamagedObject, UnreadableValue, UpcastFailed, BadValue)


class RewriteProgress(msgspec.Struct, frozen=True):
    """The progress of the rewrite of one partition."""

    schema: int
    """The schema it rewrites to."""
    next: bytes = ENTRY_AREA
    """The first key that it hasn't read."""
    seen: int = 0
    rewritten: int = 0
    unreadable: int = 0
    """Entries that were left as they are because they could not be read or upcast."""
    total: int = 0
    """About how many entries there were when the rewrite started."""
    finished: bool = False

    @property
    def share(self) -> float:
        """From 0 to 1.

        >>> RewriteProgress(schema=2, seen=30, total=120).share
        0.25
        """
        if self.finished:
            return 1.0
        return min(self.seen / self.total, 0.99) if self.total else 0.0

    def after(
        self, seen: int, *, last: bytes | None, rewritten: int, unreadable: int, finished: bool
    ) -> "RewriteProgress":
        """The progress after a step; `last` is the last key that it read."""
        return msgspec.structs.replace(
            self,
            next=self.next if last is None else last + b"\x00",
            seen=self.seen + seen,
            rewritten=self.rewritten + rewritten,
            unreadable=self.unreadable + unreadable,
            finished=finished,
        )


def note_of(progress: RewriteProgress) -> bytes:
    """The progress as it is stored."""
    return pack(Cell(msgspec.msgpack.encode(progress)))


def progress_of(bytes_: ReadableBytes) -> RewriteProgress | None:
    """The progress of the last rewrite of a partition; None if there never was one."""
    return progress_in(bytes_.get(REWRITE_NOTE))


def progress_in(note: bytes | None) -> RewriteProgress | None:
    """The progress in a note."""
    if note is None:
        return None
    try:
        return msgspec.msgpack.decode(unpack(note).payload, type=RewriteProgress)
    except msgspec.MsgspecError as error:
        raise DamagedObject(f"the note of the rewrite can't be read: {error}. {RESTORE_AGAIN}") from error


@dataclass(frozen=True)
class RewriteStep:
    """The state part that one step writes, with the note at its end, and how many of its rows are entries."""

    part: pa.Table
    rewritten: int
    progress: RewriteProgress


class _Rewritten(NamedTuple):
    """The new keys and cells of a page, and how many of its entries could not be read."""

    keys: pa.BinaryArray
    cells: pa.BinaryArray
    unreadable: int


class Rewriter:
    """The rewrite of one store, at the time of one version. The store of an aggregate needs no codec."""

    def __init__(self, spec: StoreSpec, now: Now, codec: StoreCodec[Any] | None = None) -> None:
        self._spec = spec
        self._now = now
        self._codec: StoreCodec[Any] = codec_of(spec) if codec is None else codec
        self._layout = layout_of(spec)
        rows = isinstance(spec.value, RowValues)
        self._page: Callable[[pa.Table], _Rewritten] = self._columns if rows else self._one_by_one

    def step(self, state: StoreColumns, limit: int = STEP) -> RewriteStep | None:
        """Reads up to `limit` entries and rewrites the old ones; None once the rewrite is finished."""
        newest = self._codec.schema
        if newest == FIRST_SCHEMA:
            return None  # the values have never had another schema
        before = progress_in(read_note(state, REWRITE_NOTE))
        if before is None or before.schema < newest:
            before = RewriteProgress(newest, total=state.approximate_count())
        if before.finished or before.schema > newest:
            return None  # a rewrite that newer code has started is not undone
        parts, seen, unreadable, last = [ENTRY_SCHEMA.empty_table()], 0, 0, None
        for page in self._pages(state, before.next, limit):
            keys, cells, bad = self._page(page)
            parts.append(part(keys, cells))
            seen, unreadable, last = seen + page.num_rows, unreadable + bad, page["key"][-1].as_py()
        done = sum(each.num_rows for each in parts)
        after = before.after(seen, last=last, rewritten=done, unreadable=unreadable, finished=seen < limit)
        return RewriteStep(pa.concat_tables([*parts, note_part(REWRITE_NOTE, note_of(after))]), done, after)

    def _pages(self, state: StoreColumns, start: bytes, limit: int) -> Iterator[pa.Table]:
        """Up to `limit` entries from `start` on, in pages."""
        for first, stop in self._layout.areas(self._now):
            at = max(start, first)
            while at < stop and (wanted := min(limit, _PAGE)):
                page = state.scan(at, stop, limit=wanted)
                if page.num_rows:
                    yield page
                    at, limit = page["key"][-1].as_py() + b"\x00", limit - page.num_rows
                if page.num_rows < wanted:
                    break

    def _columns(self, page: pa.Table) -> _Rewritten:
        """The rows of an aggregate. If one can't be read, it stays as it is, and the page goes one by one."""
        try:
            found = unpack_many(whole(page["value"]))
            shown = pc.or_(pc.equal(found.expires, NEVER), pc.greater(found.expires, self._now.wall))
            old = pc.and_(shown, pc.less(found.schemas, pa.scalar(self._spec.schema, pa.uint16())))
            leads, values = self._layout.split(Cells(*(column.filter(old) for column in found)))
            rows = newest_rows(self._spec, values.payloads, values.schemas)
        except _UNREADABLE:
            return self._one_by_one(page)
        payloads = self._layout.joined(leads, rows)
        cells = pack_many(payloads, values.timestamps, values.expires, schema=self._spec.schema)
        return _Rewritten(whole(page["key"]).filter(old), cells, 0)

    def _one_by_one(self, page: pa.Table) -> _Rewritten:
        new: dict[bytes, bytes] = {}
        unreadable = 0
        for key, cell in zip(page["key"].to_pylist(), page["value"].to_pylist(), strict=True):
            try:
                changed = self._cell(cell)
            except _UNREADABLE:
                unreadable += 1
                continue
            if changed is not None:
                new[key] = changed
        return _Rewritten(pa.array(list(new), pa.binary()), pa.array(list(new.values()), pa.binary()), unreadable)

    def _cell(self, data: bytes) -> bytes | None:
        """An entry in the newest schema, with its former times; None if there is nothing to do."""
        cell, lead, codec = unpack(data), self._layout.lead, self._codec
        expired = cell.expires != NEVER and cell.expires <= self._now.wall
        value = cell.payload[lead:]
        # Only a mark has an empty value, such as a delete in a history.
        if expired or not value or cell.schema >= codec.schema:
            return None
        payload = cell.payload[:lead] + codec.encode(codec.decode(value, cell.schema))
        return pack(Cell(payload, cell.timestamp, cell.expires, codec.schema))
