"""The versions of a replica that can be read now: the newest one, and the last few before it.

The replica publishes versions here; a reader takes a read view and keeps it for as long as it reads. A read view is an
overlay over a pinned view, both immutable, so a reader never sees half a version however the replica moves meanwhile.

Bulk reads of the newest version go to the live engines for the keys that the overlay doesn't know, which is faster than
a pinned view. That is right while the engines hold nothing beyond the version of the read view, so it is checked again
after the read; when the engines have moved on, the pinned view answers instead.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.column_scans import scan_columns
from holdfast.instance.held_versions import HeldVersions, Hold, HoldTerms
from holdfast.instance.overlay import READABLE, Overlay
from holdfast.instance.range_reads import read_ranges
from holdfast.instance.replica_disk import VersionStamp
from holdfast.instance.run import first_wins
from holdfast.instance.task_engines import PinnedView
from holdfast.stores.access import ColumnBlock, Now
from holdfast.stores.formats.key_order import read_in_key_order
from holdfast.stores.ranges import Ranges
from holdfast.words import NOTHING, TaskId, Version

Entry = tuple[bytes, bytes]
BEFORE_TIME = Now(wall=0)
"""The clocks of a version without a commit."""
_WITHOUT_COMMIT = VersionStamp("", BEFORE_TIME, app=0)
_MANY_DELETED = 256
"""So many deleted keys make a scan go on in columns, which cost as much to begin as some hundred keys one by one."""
_SAMPLE = 256
"""How many keys of a run are looked up to estimate how many are new."""


class VersionNotAvailable(HoldfastError):
    """A replica was asked for a version it doesn't have; another replica, or this one in a moment, may.

    `asked` is None for the newest version, and `held` while the replica has none.
    """

    category = ErrorCategory.RETRY

    def __init__(self, message: str, asked: int | None = None, held: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.asked = asked
        self.held = held

    @classmethod
    def of(cls, task: TaskId, asked: Version | None, range_: tuple[Version, Version] | None, why: str) -> Self:
        holds = "nothing yet" if range_ is None else f"versions {range_[0]} to {range_[1]}"
        version = "any version" if asked is None else f"version {asked}"
        return cls(f"task {task} was asked for {version} and holds {holds}: {why}.", asked, range_)

    @property
    def gone(self) -> bool:
        """Whether the replica has moved past the version, so that waiting doesn't help."""
        return self.asked is not None and self.held is not None and self.asked < self.held[1]


@dataclass(frozen=True)
class ReadView:
    """A task's stores at one version. Close it when done; several readers may have the same one."""

    version: Version
    overlay: Overlay
    pinned: PinnedView
    stamp: VersionStamp

    @property
    def commit(self) -> str:
        """The id of the version's commit."""
        return self.stamp.commit

    def is_of(self, commit: str) -> bool:
        """Whether it is what a commit has. Where stores begin they are empty, whatever the commit was."""
        return self.commit in ("", commit)

    @property
    def now(self) -> Now:
        """The clocks of the version's commit, which decide what a store hides."""
        return self.stamp.now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.pinned.release()

    def get(self, store: str, key: bytes) -> bytes | None:
        value, known = self.overlay.get(store, key)
        return value if known else self.pinned.get(store, key)

    def get_many(self, store: str, keys: pa.Array) -> pa.Array:
        """The values of a binary column of keys, null where there is none."""
        values, known = self.overlay.lookup(store, keys)
        missing = pc.invert(known)
        wanted = keys.filter(missing)
        if len(wanted) == 0:
            return values
        found = read_in_key_order(wanted, partial(self._from_engines, store))
        return found if len(wanted) == len(keys) else pc.replace_with_mask(values, missing, found)

    def scan(
        self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Entries with start <= key < stop in the order of the keys, or backwards.

        After many deleted keys the rest is read as columns: an index whose entries have been used starts with those of
        a whole version, which cost a microsecond or more each when they are passed one by one.
        """
        above = self.overlay.scan(store, start, stop, reverse=reverse)
        below = self.pinned.scan(store, start, stop, reverse=reverse)
        deleted = 0
        try:
            for key, value in first_wins([above, below], reverse=reverse):
                if value is not None:
                    yield key, value
                elif (deleted := deleted + 1) == _MANY_DELETED and not reverse:
                    break
            else:
                return
        finally:
            below.close()
        with closing(self.columns(store, key + b"\x00", stop)) as blocks:
            for block in blocks:
                yield from zip(block.keys.to_pylist(), block.values.to_pylist(), strict=True)

    def scan_many(self, store: str, ranges: Ranges) -> Iterator[pa.RecordBatch]:
        """The entries of many ranges, by the positions of the ranges and then by key: batches of `IN_RANGES`."""
        family = self.overlay.families[store]
        return read_ranges(family.runs, ranges, family.below.may_have_in(ranges), partial(self.pinned.entries, store))

    def columns(self, store: str, start: bytes, stop: bytes | None) -> Generator[ColumnBlock, None, None]:
        """The entries with start <= key < stop in the order of the keys, as columns in blocks of bounded size."""
        family = self.overlay.families[store]
        below = bool(family.below.may_have_in(Ranges.of([(start, stop)]))[0])
        engine = self.pinned.blocks(store, start, stop) if below else None
        try:
            yield from scan_columns(family.runs, engine, start, stop)
        finally:
            if engine is not None:
                engine.close()

    def approximate_count(self, store: str) -> int:
        """About how many keys are stored: those of the engine, and unflushed ones as far as a sample of them is new."""
        below = self.pinned.engines.approximate_count(store)
        count = below
        for run in self.overlay.unflushed_runs(store):
            put = run.keys.filter(run.values.is_valid())
            count -= len(run) - len(put)
            if below and len(put):
                sample = put.take(pa.array(range(0, len(put), -(-len(put) // _SAMPLE))))
                found = self._from_engines(store, sample)
                count += len(put) * found.null_count // len(sample)
            else:
                count += len(put)
        return max(0, count)

    def _from_engines(self, store: str, keys: pa.Array) -> pa.Array:
        engines = self.pinned.engines
        if engines.target <= self.version:
            values = engines.get_many(store, keys)
            if engines.target <= self.version:
                return values
        return self.pinned.get_many(store, keys)


class StoreBytes:
    """One store of a read view, as the `ReadableBytes` that typed stores read. The caller closes the read view."""

    def __init__(self, view: ReadView, store: str) -> None:
        self._view = view
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(self._store, key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._view.get_many(self._store, pa.array(keys, pa.binary())).to_pylist()
        return found

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[Entry]:
        return self._view.scan(self._store, start, stop, reverse=reverse)

    def columns(self, start: bytes, stop: bytes | None) -> Generator[ColumnBlock, None, None]:
        return self._view.columns(self._store, start, stop)

    def approximate_count(self) -> int:
        return self._view.approximate_count(self._store)


class PublishedVersions:
    """The versions that a replica has published, each as a read view."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._newest: ReadView | None = None
        self._furthest = NOTHING
        self._older: tuple[ReadView, ...] = ()
        self._stamps: dict[Version, VersionStamp] = {}
        self.held = HeldVersions(task)

    @property
    def version(self) -> Version | None:
        newest = self._newest
        return None if newest is None else newest.version

    @property
    def commit(self) -> str:
        """The commit of the newest version."""
        newest = self._newest
        return "" if newest is None else newest.commit

    @property
    def newest(self) -> ReadView | None:
        """The newest version for a glance without a pin: its overlay may be read, its engines may not.

        None while there is none, or it is older than one that was read before.
        """
        newest = self._newest
        return None if newest is None or newest.version < self._furthest else newest

    @property
    def wall(self) -> int:
        """The wall clock of the newest version."""
        newest = self._newest
        return BEFORE_TIME.wall if newest is None else newest.now.wall

    @property
    def overlay(self) -> Overlay | None:
        newest = self._newest
        return None if newest is None else newest.overlay

    @property
    def range(self) -> tuple[Version, Version] | None:
        """The newest version, and the oldest one from which on all versions up to it can be read.

        Versions that were written to the engines at once, as in a catch-up, leave a gap: only the last of them was
        published, and what is before the gap is not counted.
        """
        with self._lock:
            return self._range()

    def _range(self) -> tuple[Version, Version] | None:
        if self._newest is None:
            return None
        oldest, older = self._first_of(self._newest), {view.version for view in self._older}
        while oldest - 1 in older:
            oldest = Version(oldest - 1)
        return oldest, self._newest.version

    def advance(self, overlay: Overlay, stamp: VersionStamp | None = None) -> None:
        """Publishes a version on the same pinned view. `stamp` is needed if it wasn't published before."""
        with self._lock:
            assert self._newest is not None
            self._newest = ReadView(overlay.version, overlay, self._newest.pinned, self._stamp(overlay.version, stamp))
            self._furthest = max(self._furthest, overlay.version)
            self._prune()
            self._changed.notify_all()

    def move(self, overlay: Overlay, pinned: PinnedView, stamp: VersionStamp | None = None) -> None:
        """Publishes a version on another pinned view, and owns that view. Earlier versions keep the one they had."""
        with self._lock:
            before = self._newest
            if before is not None:
                last = min(before.version, Version(pinned.version - 1))
                self._older += tuple(
                    ReadView(version, before.overlay.at(version), before.pinned.hold(), self._stamp(version))
                    for version in map(Version, range(self._first_of(before), last + 1))
                )
                before.pinned.release()
            self._newest = ReadView(overlay.version, overlay, pinned, self._stamp(overlay.version, stamp))
            self._furthest = max(self._furthest, overlay.version)
            self._prune()
            self._changed.notify_all()

    def forget_older(self) -> None:
        """Gives up all versions but the held ones and those on the newest pinned view; they keep files on disk."""
        with self._lock:
            gone, self._older = self._older, ()
        for view in gone:
            view.close()

    def clear(self) -> None:
        """Publishes nothing any more."""
        with self._lock:
            gone = [*self._older, *([self._newest] if self._newest else [])]
            self._newest, self._older, self._stamps = None, (), {}
            self._changed.notify_all()
        for view in gone:
            view.close()
        self.held.end_all()

    def look_back(self) -> None:
        """The log was set back: what was read of versions that it doesn't have doesn't count."""
        with self._lock:
            self._furthest = NOTHING

    def hold(self, view: ReadView, terms: HoldTerms) -> Hold:
        """Keeps the version of an open view readable for so long, or until the hold is released."""
        view.pinned.hold()
        return self.held.add(view, terms)

    def has(self, version: Version) -> bool:
        """Whether a version can be read."""
        with self._lock:
            newest = self._newest
            if newest is not None and self._first_of(newest) <= version <= newest.version:
                return True
            if any(view.version == version for view in self._older):
                return True
        return self.held.has(version)

    def read_view(self, version: Version | None = None) -> ReadView:
        """The newest version, or the given one. The newest is never older than one that was read before."""
        with self._lock:
            newest = self._newest
            if newest is not None and version is None and newest.version < self._furthest:
                newest = None  # it started over, and is still older than a version that was read
            if newest is not None and (version is None or version == newest.version):
                newest.pinned.hold()
                return newest
            if newest is not None and version is not None and self._first_of(newest) <= version < newest.version:
                return ReadView(version, newest.overlay.at(version), newest.pinned.hold(), self._stamp(version))
            for view in self._older:
                if view.version == version:
                    view.pinned.hold()
                    return view
            held_range = self._range()
        if version is not None and (held := self.held.find(version)) is not None:
            return held
        why = "it is being restored" if newest is None else "only the last few committed versions can be read"
        raise VersionNotAvailable.of(self._task, version, held_range, why)

    def wait_for(self, version: Version, timeout: float) -> bool:
        """Waits until the replica is at `version` or beyond."""
        with self._lock:
            return self._changed.wait_for(lambda: self._is_at(version), timeout=max(0.0, timeout))

    def _is_at(self, version: Version) -> bool:
        at = self.version
        return at is not None and at >= version

    def _stamp(self, version: Version, stamp: VersionStamp | None = None) -> VersionStamp:
        if stamp is not None:
            self._stamps[version] = stamp
        return self._stamps.get(version, _WITHOUT_COMMIT)

    def _first_of(self, newest: ReadView) -> Version:
        return max(newest.overlay.floor, newest.pinned.version)

    def _prune(self) -> None:
        assert self._newest is not None
        oldest = self._newest.version - READABLE + 1
        self.held.end_old()
        if len(self._stamps) > 4 * READABLE:
            self._stamps = {version: stamp for version, stamp in self._stamps.items() if version >= oldest}
        if not self._older:
            return
        gone = [view for view in self._older if view.version < oldest]
        self._older = tuple(view for view in self._older if view.version >= oldest)
        for view in gone:
            view.close()
