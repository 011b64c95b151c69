"""The background pass over a table: rows of older layouts in the newest one, as whole columns.

The step is that of `rewrite`, with the same note of where it has come to. It writes what it has read at `v-1`, so it
comes before what the batch writes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadValue, DamagedObject
from holdfast.stores.access import Now
from holdfast.stores.codecs.base import UnreadableValue
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import FIRST_SCHEMA, NEVER, pack_many, unpack_many
from holdfast.stores.layouts.recency import split_seqs, with_seqs
from holdfast.stores.schema.rewrite import NOTE, RewriteProgress, Rewriter, areas, begun, note_of, progress_in
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec

_PAGE = 100_000
"""How many rows are columns at a time."""

ReadKeys = Callable[[pa.Array], pa.Array]
ScanKeys = Callable[[bytes, bytes, int], pa.Array]


@dataclass(frozen=True)
class RewriteStep:
    """What one step writes, keys and cells with the note at their end, and how many of them are rows."""

    keys: pa.BinaryArray
    cells: pa.BinaryArray
    rewritten: int
    progress: RewriteProgress


@dataclass(frozen=True)
class RowRewriter:
    """The pass over one table's store, at the time of one version."""

    spec: StoreSpec
    now: Now

    def step(self, read: ReadKeys, scan: ScanKeys, count: Callable[[], int], limit: int) -> RewriteStep | None:
        """Looks at up to `limit` rows and rewrites the old ones; None once there is nothing left to do.

        `read` gives the cells of keys, `scan` the first keys of a range, `count` about how many entries there are.
        """
        if self.spec.schema == FIRST_SCHEMA:
            return None  # the columns have never changed: there is no other layout
        note = read(pa.array([NOTE], pa.binary()))[0].as_py()
        before = begun(progress_in(note), self.spec.schema, count)
        if before.finished or before.schema > self.spec.schema:
            return None
        keys: list[pa.Array] = []
        cells: list[pa.Array] = []
        seen, unreadable, last = 0, 0, None
        for page in self._pages(scan, before.next, limit):
            old, new, bad = self.rewritten(page, read(page))
            keys.append(old)
            cells.append(new)
            seen, unreadable, last = seen + len(page), unreadable + bad, page[-1].as_py()
        done = sum(map(len, keys))
        after = before.after(seen, last=last, rewritten=done, unreadable=unreadable, finished=seen < limit)
        return RewriteStep(
            pa.concat_arrays([*keys, pa.array([NOTE], pa.binary())]),
            pa.concat_arrays([*cells, pa.array([note_of(after)], pa.binary())]),
            done,
            after,
        )

    def _pages(self, scan: ScanKeys, start: bytes, limit: int) -> Iterator[pa.BinaryArray]:
        """The keys of up to `limit` entries from `start` on, some at a time."""
        for at, stop in areas(self.spec, self.now, start):
            while wanted := min(limit, _PAGE):
                page = scan(at, stop, wanted)
                if len(page):
                    yield page
                    at, limit = page[-1].as_py() + b"\x00", limit - len(page)
                if len(page) < wanted:
                    break

    def rewritten(self, keys: pa.BinaryArray, cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray, int]:
        """Those that have to be written anew, as they are to be, and how many could not be read."""
        try:
            return (*self._columns(keys, cells), 0)
        except (DamagedObject, UnreadableValue, BadValue):
            return self._one_by_one(keys, cells)

    def _columns(self, keys: pa.BinaryArray, cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        found = unpack_many(cells)
        shown = pc.or_(pc.equal(found.expires, NEVER), pc.greater(found.expires, self.now.wall))
        old = pc.and_(shown, pc.less(found.schemas, pa.scalar(self.spec.schema, pa.uint16())))
        keys, rows = keys.filter(old), found.payloads.filter(old)
        seqs = None
        if self.spec.max_entries:
            seqs, rows = split_seqs(rows)
        rows = newest_rows(self.spec, rows, found.schemas.filter(old))
        payloads = rows if seqs is None else with_seqs(seqs, rows)
        times, expires = found.timestamps.filter(old), found.expires.filter(old)
        return keys, pack_many(payloads, times, expires, schema=self.spec.schema)

    def _one_by_one(self, keys: pa.BinaryArray, cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray, int]:
        """The same where a row can't be read: it stays as it is, and the others go on."""
        rewriter = Rewriter(self.spec, codec_of(self.spec), self.now)
        new: dict[bytes, bytes] = {}
        unreadable = 0
        for key, cell in zip(keys.to_pylist(), cells.to_pylist(), strict=True):
            try:
                changed = rewriter.rewritten(cell)
            except (DamagedObject, UnreadableValue, BadValue):
                unreadable += 1
                continue
            if changed is not None:
                new[key] = changed
        return pa.array(list(new), pa.binary()), pa.array(list(new.values()), pa.binary()), unreadable
