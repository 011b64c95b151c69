"""The changes that one version made to one store, from the segments of its commit.

They are what sinks get: the entries that the store's layout finds in a state part. So an index, a note or a rewrite is
not a change; of a versioned store the latest values are changes, and its history is not; and an entry that expires is a
delete where the log has one.

Keys and values become JSON when a watcher first wants them, and then stay, as the bytes that are sent: a thousand
watchers of a change cost one decoding of it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.log.commits import Commit
from holdfast.log.segments import STATE, Part, SegmentRef
from holdfast.query.keytext import parse_key, render_key
from holdfast.query.render import renderer
from holdfast.query.showing import shown
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.cells import Cell
from holdfast.stores.formats.keys import decode_key, encode_key, prefix_range
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.layouts.base import Changed
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.windowed import WindowedLayout
from holdfast.stores.spec import SESSION, StoreSpec
from holdfast.words import TaskId, Version

_JSON = 3
_ROW_BYTES = 200
"""A change takes about this many times its bytes once it is rendered, and this many bytes more."""


class StatePart(NamedTuple):
    """One part of a version that has changes of the store. `number` counts them in the order of the version."""

    number: int
    task: TaskId
    ref: SegmentRef
    part: Part


def state_parts(commit: Commit, spec: StoreSpec) -> list[StatePart]:
    """The parts of a version with changes of this store, in their order. A former store of its name is another one."""
    if commit.version <= spec.after:
        return []
    tasks = sorted(map(TaskId.parse, commit.segments.keys() | commit.volatile.keys()))
    refs = ((task, ref) for task in tasks for ref in (*commit.of_task(task), *commit.volatile_of(task)))
    found = (
        (task, ref, part)
        for task, ref in refs
        for part in ref.parts
        if part.type == STATE and part.name == spec.name and part.rows
    )
    return [StatePart(number, *each) for number, each in enumerate(found)]


def pieces(parts: Sequence[StatePart], most_bytes: int) -> list[tuple[StatePart, ...]]:
    """The parts in pieces that are read at once, of about `most_bytes` in memory each."""
    found: list[list[StatePart]] = []
    size = 0
    for each in parts:
        if not found or size + each.part.bytes > most_bytes:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.part.bytes
    return [tuple(piece) for piece in found]


@dataclass(frozen=True)
class Interest:
    """What a watcher wants: all changes of a store, or those of a range of own keys, perhaps of one partition only."""

    start: bytes = FIRST_KEY
    stop: bytes | None = None
    partition: int | None = None

    @property
    def everything(self) -> bool:
        return self.start == FIRST_KEY and self.stop is None

    def wants(self, task: TaskId) -> bool:
        return self.partition is None or self.partition == task.partition


def interest_in_key(spec: StoreSpec, text: str, partitions: int) -> Interest:
    """One key, written as in a URL: in a window or session store, all of its windows or sessions.

    A processor may write a key in any partition.
    """
    values = parse_key(spec.key, text)
    own = EntryKeys(spec)
    if own.times:
        start, stop = prefix_range(own.schema, values, partial=False)
    else:
        start = encode_key(spec.key, values)
        stop = start + b"\x00"  # no key is between a key and the same key with a zero byte
    return Interest(start, stop, None if spec.value.by_processor else partition_of(spec.key, values, partitions))


def interest_in_prefix(spec: StoreSpec, text: str) -> Interest:
    """Keys that begin with a text or with bytes; for a key of several components, with the first components."""
    values = parse_key(spec.key, text, whole=False)
    return Interest(*prefix_range(EntryKeys(spec).schema, values, partial=len(values) == len(spec.key.fields)))


class EntryKeys:
    """The own keys of a store's entries as JSON: the key and, in window and session stores, the times."""

    def __init__(self, spec: StoreSpec) -> None:
        self._key = spec.key
        self._window_ms: int = spec.option("window_ms") or 0
        if spec.kind == SESSION:
            self.times: tuple[str, ...] = ("end", "start")
        elif self._window_ms and isinstance(layout_of(spec), WindowedLayout):
            self.times = ("start", "put") if spec.option("duplicates") else ("start",)
        else:
            self.times = ()
        self.schema = Schema((*spec.key.fields, *(Field(f"${time}", "bigint") for time in self.times)))

    def members(self, own: bytes) -> dict[str, object]:
        """The members of an answer that say which entry it is.

        >>> spec = StoreSpec(name="plays", kind="window", key=Schema.of(k="string"), codec="msgpack/1", slice_ms=1_000,
        ...                  retention_ms=8_000, fixed=(("window_ms", 10),))
        >>> EntryKeys(spec).members(encode_key(EntryKeys(spec).schema, ["ann", 5]))
        {'key': 'ann', 'start': 5, 'end': 15}
        """
        values = decode_key(self.schema, own)
        fields = len(self._key.fields)
        members: dict[str, object] = {"key": render_key(self._key, values[:fields])}
        times = dict(zip(self.times, values[fields:], strict=True))
        if isinstance(start := times.get("start"), int):
            members |= {"start": start, "end": times.get("end", start + self._window_ms)}
        return members


class EntryJson:
    """The entries of one store as JSON, by one spec of it."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self._keys = EntryKeys(spec)
        self._render = renderer(spec)

    def members(self, own: bytes, cell: Cell | None) -> dict[str, object]:
        """A changed entry; without a cell it was deleted. One that can't be read has an `error`, like in a range."""
        try:
            members = self._keys.members(own)
        except (HoldfastError, ValueError, OverflowError) as error:
            return {"key": None, "value": None, "error": f"key {own.hex()} can't be read: {error}"}
        if cell is None:
            return {**members, "deleted": True}
        try:
            return {**members, **shown(self._render, cell)}
        except HoldfastError as error:
            return {**members, "value": None, "error": f"the value can't be read: {error}"}


class WatchedChanges:
    """The changes of one part. `ids` is what the ids of the version's events begin with."""

    def __init__(self, at: StatePart, commit: Commit, ids: str, entries: EntryJson, changed: Changed) -> None:
        self.part, self.task, self.version = at.number, at.task, Version(commit.version)
        self._about = {"version": commit.version, "committed": commit.clocks.wall, "task": str(at.task)}
        self._ids, self._entries, self._changed = ids, entries, changed
        self._keys: list[bytes] = changed.keys.to_pylist()
        self._frames: list[bytes | None] = [None] * len(self._keys)
        self._order: pa.UInt64Array = pc.array_sort_indices(changed.keys)
        """The rows in the order of their keys. Made here, on the thread that reads, and outside of Python: sorting
        70,000 keys takes 20 ms, and takes the event loop no time."""
        self.size = _JSON * at.part.bytes + _ROW_BYTES * len(self._keys)
        """About how many bytes of memory they take."""

    def __len__(self) -> int:
        return len(self._keys)

    def rows(self, interest: Interest, first: int = 0) -> Sequence[int]:
        """The rows of changes that a watcher wants, from row `first` on."""
        if interest.everything:
            return range(first, len(self))
        if not interest.wants(self.task):
            return ()
        begin = self._before(interest.start)
        end = len(self) if interest.stop is None else self._before(interest.stop)
        found: list[int] = self._order.slice(begin, max(0, end - begin)).to_pylist()
        return sorted(row for row in found if row >= first)

    def _before(self, key: bytes) -> int:
        """How many keys are before this one."""
        return bisect_left(range(len(self)), key, key=lambda place: self._keys[self._order[place].as_py()])

    def frame(self, row: int) -> bytes:
        """One change as the bytes of an event."""
        known = self._frames[row]
        if known is None:
            members = self._entries.members(self._keys[row], self._cell(row))
            data = msgspec.json.encode({**members, **self._about})
            known = self._frames[row] = b"id: %b.%d.%d\ndata: %b\n\n" % (self._ids.encode(), self.part, row, data)
        return known

    def _cell(self, row: int) -> Cell | None:
        payload, timestamp, expires, schema = (column[row].as_py() for column in self._changed.cells)
        return None if payload is None else Cell(payload, timestamp, expires, schema)


def changes_in(
    parts: Sequence[tuple[StatePart, tuple[pa.Array, pa.Array]]], commit: Commit, ids: str, entries: EntryJson
) -> Iterator[WatchedChanges]:
    """The changes in the keys and values of some parts."""
    layout = layout_of(entries.spec)
    for at, (keys, values) in parts:
        changed = layout.changed(pa.table({"key": keys, "value": values}))
        if len(changed.keys):
            yield WatchedChanges(at, commit, ids, entries, changed)
