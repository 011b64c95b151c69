"""The background pass: a store's old entries in the newest shape, some in each version.

A write always writes the newest shape, so what is used is rewritten by itself. The pass is for the rest. It is a step a
task makes in a version, over one partition's bytes: so many entries from where the last step ended, those of an older
schema read and put again. Where it has come to is a note in the store, written with the entries it tells of. So a
version that is lost takes the whole step with it, and one that is made again makes the same step. A table's rows are
rewritten as columns: `rowrewrite` has its step.

What a step writes is a state part of its own, with the note at its end. That is how who hears of changes tells it from
them: the entries say what they said.

    0x05 | "rewrite"  →  cell of: a map of schema, next, seen, rewritten, unreadable, total, finished
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import RESTORE_AGAIN, BadValue, DamagedObject
from holdfast.stores.access import Now, OrderedBytes, ReadableBytes
from holdfast.stores.codecs.base import UnreadableValue
from holdfast.stores.codecs.values import StoreCodec, UpcastFailed
from holdfast.stores.formats.cells import NEVER, Cell, pack, unpack
from holdfast.stores.layouts.recency import SEQ_BYTES
from holdfast.stores.layouts.slices import slices_to_drop
from holdfast.stores.spec import StoreSpec

NOTE: Final = b"\x05rewrite"
STEP: Final = 1_000
"""How many entries a step looks at unless told otherwise: some milliseconds of a version."""

_ENTRIES = b"\x01"
_SLICES = b"\x02"
_AFTER_ENTRIES = b"\x03"


class RewriteProgress(msgspec.Struct, frozen=True):
    """How far the pass of one partition is."""

    schema: int
    """The schema it rewrites to."""
    next: bytes = _ENTRIES
    """The first key that it hasn't seen."""
    seen: int = 0
    rewritten: int = 0
    unreadable: int = 0
    """Entries that were left as they are, since they could not be read or lifted."""
    total: int = 0
    """About how many entries there were when the pass began."""
    finished: bool = False

    @property
    def share(self) -> float:
        """From 0 to 1, for who watches.

        >>> RewriteProgress(schema=2, seen=30, total=120).share
        0.25
        """
        if self.finished:
            return 1.0
        return min(self.seen / self.total, 0.99) if self.total else 0.0

    def after(
        self, seen: int, *, last: bytes | None, rewritten: int, unreadable: int, finished: bool
    ) -> "RewriteProgress":
        """One step further; `last` is the last key it saw."""
        return msgspec.structs.replace(
            self,
            next=self.next if last is None else last + b"\x00",
            seen=self.seen + seen,
            rewritten=self.rewritten + rewritten,
            unreadable=self.unreadable + unreadable,
            finished=finished,
        )


def begun(before: RewriteProgress | None, schema: int, count: Callable[[], int]) -> RewriteProgress:
    """The pass to go on with: the one that is under way, or a new one where the values have a later schema now."""
    return RewriteProgress(schema, total=count()) if before is None or before.schema < schema else before


def note_of(progress: RewriteProgress) -> bytes:
    """How far a pass is, as it stands in the store under `NOTE`."""
    return pack(Cell(msgspec.msgpack.encode(progress)))


def progress_of(bytes_: ReadableBytes) -> RewriteProgress | None:
    """How far the last pass of a partition is; None if there never was one."""
    return progress_in(bytes_.get(NOTE))


def progress_in(note: bytes | None) -> RewriteProgress | None:
    """The same from what stands under `NOTE`."""
    if note is None:
        return None
    try:
        return msgspec.msgpack.decode(unpack(note).payload, type=RewriteProgress)
    except msgspec.MsgspecError as error:
        raise DamagedObject(f"the note of the rewriting pass can't be read: {error}. {RESTORE_AGAIN}") from error


def is_step(keys: pa.Array) -> bool:
    """Whether the keys of a state part are those of a step of the pass.

    >>> is_step(pa.array([b"\\x01ann", NOTE])), is_step(pa.array([b"\\x01ann"]))
    (True, False)
    """
    return len(keys) > 0 and keys[-1].as_py() == NOTE


@dataclass(frozen=True)
class Rewriter:
    """The pass over one store, at the time of one version."""

    spec: StoreSpec
    codec: StoreCodec[Any]
    now: Now

    def step(self, bytes_: OrderedBytes, limit: int = STEP) -> RewriteProgress:
        """Looks at up to `limit` entries and rewrites the old ones. Once finished it writes nothing any more."""
        before = begun(progress_of(bytes_), self.codec.schema, bytes_.approximate_count)
        if before.finished or before.schema > self.codec.schema:
            return before  # newer code has begun a pass: nothing is rewritten back
        entries = list(itertools.islice(self._entries(bytes_, before.next), limit))
        rewritten = unreadable = 0
        for key, data in entries:
            try:
                changed = self.rewritten(data)
            except (DamagedObject, UnreadableValue, UpcastFailed, BadValue):
                unreadable += 1
                continue
            if changed is not None:
                bytes_.put(key, changed)
                rewritten += 1
        after = before.after(
            len(entries),
            last=entries[-1][0] if entries else None,
            rewritten=rewritten,
            unreadable=unreadable,
            finished=len(entries) < limit,
        )
        bytes_.put(NOTE, note_of(after))
        return after

    def rewritten(self, data: bytes) -> bytes | None:
        """An entry in the newest schema, with its times as they were; None if there is nothing to do."""
        cell = unpack(data)
        over = cell.expires != NEVER and cell.expires <= self.now.wall
        lead = SEQ_BYTES if self.spec.max_entries else 0  # the store's own, before the value
        own, value = cell.payload[:lead], cell.payload[lead:]
        # Nothing but a mark, such as a delete in a history, has an empty value.
        if over or not value or cell.schema >= self.codec.schema:
            return None
        payload = own + self.codec.encode(self.codec.decode(value, cell.schema))
        return pack(Cell(payload, cell.timestamp, cell.expires, self.codec.schema))

    def _entries(self, bytes_: OrderedBytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for first, stop in areas(self.spec, self.now, start):
            yield from bytes_.scan(first, stop)


def areas(spec: StoreSpec, now: Now, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Where entries are, from `start` on: plain ones, then those of slices that still show.

    What goes into a slice that was dropped would never go again.

    >>> from holdfast.stores.formats.types import Schema
    >>> spec = StoreSpec(name="scores", key=Schema.of(player="string"), codec="rows/1")
    >>> list(areas(spec, Now(wall=0), b"\\x01bob"))
    [(b'\\x01bob', b'\\x02'), (b'\\x02', b'\\x03')]
    """
    first_slice = _SLICES
    if (hidden := slices_to_drop(spec, now.wall, now.event)) is not None:
        first_slice = hidden[1]
    for first, stop in ((_ENTRIES, _SLICES), (first_slice, _AFTER_ENTRIES)):
        if max(start, first) < stop:
            yield max(start, first), stop
