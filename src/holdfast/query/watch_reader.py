"""The shared reader of one store for all watchers of an instance: each version is read and decoded once.

Watchers have no queues of their own. Each goes on from its own place, through versions that are kept here for all of
them: the newest ones, up to a number of bytes. So a watcher costs little more than its connection, and a slow one holds
nothing up. When a version is dropped that a watcher hasn't reached yet although it had caught up before, the watcher is
too slow: it is cut off. Older versions, for watchers that catch up, are kept apart, so they never push out the newest.

When the last watcher leaves, nothing is kept. All of this is used on one event loop; only the log is read on threads.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from sortedcontainers import SortedDict

from holdfast import metrics
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.log_reader import LogReader
from holdfast.log import names
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing
from holdfast.query.store_specs import StoreSpecs
from holdfast.query.watch_changes import EntryJson, StatePart, WatchedChanges, changes_in, pieces, state_parts
from holdfast.query.watch_places import EventPlace, event_ids
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

T = TypeVar("T")

KEPT_BYTES: Final = 16 << 20
"""How many bytes of the newest versions are kept per store while it is watched. Older ones get a quarter of it."""
PIECE_BYTES: Final = 4 << 20
"""About how much of a version is read and decoded at once."""
_VERSION_BYTES: Final = 1_000
"""About what a version takes beside its changes."""

_Key = tuple[Version, int]
_PARTS: Final = -1
"""In a key: the list of a version's parts, and not one of its pieces."""

_versions_read = metrics.counter(
    "holdfast_watch_versions_read", "Versions that were read for the watchers of a store.", ["store"]
)


class WatchedVersionGone(HoldfastError):
    """The log has cleaned a version. `oldest` is the oldest one after it that can still be read."""

    category = ErrorCategory.INVALID

    def __init__(self, store: str, version: Version, oldest: Version) -> None:
        super().__init__(
            f"The changes of version {version} to store {store!r} are no longer in the log, which has version {oldest} "
            "and later ones."
        )
        self.oldest = oldest


class NewestFirst(Generic[T]):
    """Values by version, bounded by their bytes. The smallest versions are dropped first.

    `dropped` is the newest version that was dropped. Values of versions up to it are kept as long as they are used.
    """

    def __init__(self, most_bytes: int) -> None:
        self.dropped = NOTHING
        self._most = most_bytes
        self._newest: SortedDict[_Key, tuple[T, int]] = SortedDict()
        self._older: OrderedDict[_Key, tuple[T, int]] = OrderedDict()
        self._newest_bytes = self._older_bytes = 0

    @property
    def bytes(self) -> int:
        return self._newest_bytes + self._older_bytes

    def find(self, key: _Key) -> T | None:
        if (found := self._newest.get(key)) is None and (found := self._older.get(key)) is not None:
            self._older.move_to_end(key)
        return None if found is None else found[0]

    def keep(self, key: _Key, value: T, size: int) -> None:
        if key[0] <= self.dropped:
            self._older[key] = value, size
            self._older_bytes += size
            while self._older_bytes > self._most // 4 and len(self._older) > 1:
                self._older_bytes -= self._older.popitem(last=False)[1][1]
            return
        self._newest[key] = value, size
        self._newest_bytes += size
        newest = self._newest.keys()[-1][0]
        while self._newest_bytes > self._most and len(self._newest) > 1:
            (version, _), (_, freed) = self._newest.popitem(0)
            self._newest_bytes -= freed
            if version < newest:  # parts of the newest one, if it is large, are read again
                self.dropped = max(self.dropped, version)


@dataclass(frozen=True)
class WatchedVersion:
    """The parts of one version that have changes of the store, in pieces that are read at once."""

    commit: Commit
    ids: str
    entries: EntryJson
    pieces: Sequence[tuple[StatePart, ...]]

    @property
    def size(self) -> int:
        return _VERSION_BYTES + sum(each.ref.length for piece in self.pieces for each in piece if each.ref.inline)


class SharedReader:
    """The versions of one store as its watchers get them."""

    def __init__(
        self, source: LogReader, specs: StoreSpecs, store: str, threads: Executor, most_bytes: int = KEPT_BYTES
    ) -> None:
        self._source, self._specs, self._store, self._threads = source, specs, store, threads
        self._most_bytes = most_bytes
        self._timeline = source.timeline
        self._watchers = 0
        self._kept: NewestFirst[WatchedVersion | tuple[WatchedChanges, ...]] = NewestFirst(most_bytes)
        self._under_way: dict[_Key, asyncio.Future[WatchedVersion | tuple[WatchedChanges, ...]]] = {}
        self._entries: EntryJson | None = None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """One watcher more, for the length of a block."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._kept = NewestFirst(self._most_bytes)

    @property
    def kept_bytes(self) -> int:
        """How many bytes of versions are kept."""
        return self._kept.bytes

    def has_dropped(self, version: Version) -> bool:
        """Whether a watcher that gets to this version only now is too slow."""
        return version <= self._kept.dropped

    async def has(self, place: EventPlace) -> bool:
        """Whether the log still has what was sent before a place."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._has, place)

    async def version(self, version: Version) -> WatchedVersion:
        """A version up to the newest known one. Raises WatchedVersionGone if the log no longer has it."""
        found = await self._once((version, _PARTS), partial(self._read_version, version))
        assert isinstance(found, WatchedVersion)
        return found

    async def changes(self, version: WatchedVersion, piece: int) -> tuple[WatchedChanges, ...]:
        """The changes in one piece of a version."""
        number = Version(version.commit.version)
        found = await self._once((number, piece), partial(self._read_piece, version, version.pieces[piece]))
        assert isinstance(found, tuple)
        return found

    async def _once(
        self, key: _Key, read: Callable[[], WatchedVersion | tuple[WatchedChanges, ...]]
    ) -> WatchedVersion | tuple[WatchedChanges, ...]:
        """What was read already, or is being read for another watcher, or is read now."""
        if self._timeline != self._source.timeline:  # the log was set back
            self._timeline, self._kept, self._under_way = self._source.timeline, NewestFirst(self._most_bytes), {}
        if (found := self._kept.find(key)) is not None:
            return found
        reading = self._under_way.get(key)
        if reading is None:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, read)
            self._under_way[key] = reading
            reading.add_done_callback(partial(self._end_read, key))
        return await asyncio.shield(reading)  # a watcher that leaves doesn't end the read for the others

    def _end_read(self, key: _Key, reading: "asyncio.Future[WatchedVersion | tuple[WatchedChanges, ...]]") -> None:
        if self._under_way.get(key) is not reading:
            return
        del self._under_way[key]
        if not reading.cancelled() and reading.exception() is None:
            read = reading.result()
            self._kept.keep(key, read, read.size if isinstance(read, WatchedVersion) else sum(x.size for x in read))

    # On a thread

    def _has(self, place: EventPlace) -> bool:
        if not place.commit:
            return True
        if place.seen > self._source.newest_known:
            self._source.newest()  # an instance that is behind doesn't know it yet
        found = self._source.id_at(place.seen)
        return place.seen <= self._source.newest_known if found is None else found.startswith(place.commit)

    def _read_version(self, version: Version) -> WatchedVersion:
        commit = self._source.commit(version)
        spec = self._specs[self._store]
        if commit is None:
            raise self._gone(version, spec)
        if self._entries is None or self._entries.spec is not spec:
            self._entries = EntryJson(spec)
        _versions_read.labels(self._store).inc()
        found = pieces(state_parts(commit, spec), PIECE_BYTES)
        return WatchedVersion(commit, event_ids(self._source.log.id, version, commit.id), self._entries, found)

    def _read_piece(self, version: WatchedVersion, piece: Sequence[StatePart]) -> tuple[WatchedChanges, ...]:
        try:
            read = self._source.log.read_state([(each.ref, each.part) for each in piece])
        except ObjectMissing as error:
            raise self._gone(Version(version.commit.version), version.entries.spec) from error
        return tuple(changes_in(list(zip(piece, read, strict=True)), version.commit, version.ids, version.entries))

    def _gone(self, version: Version, spec: StoreSpec) -> WatchedVersionGone:
        """The error that names the oldest version from which a watcher can go on."""
        log = self._source.log
        if spec.durable:
            kept = log.chain.kept()
        else:  # its changes are deleted before their commits, the oldest first
            kept = sorted({names.version_of(name) or NOTHING for name in log.storage.list(names.VOLATILE)})
        later = (each for each in kept if each > version and self._source.commit(each) is not None)
        return WatchedVersionGone(self._store, version, next(later, Version(self._source.newest_known + 1)))
