"""The part of a replica that is on disk: the engines, their marks, when they were flushed, and the dropped slices.

Every version is applied with its commit and its clocks; both go into the mark. Slices that the clocks of that version
hide are dropped right after it, by the app's file that its commit names: a TTL may have grown since this process
started, and a retention may be shorter in the file that later versions are committed with. Every reader of that version
or a later one hides them too, and readers of earlier versions use views that were pinned before, so the moment of the
drop changes no answer.

A store with windows that wait to be sent drops what the mark before hides: those that its clocks closed were sent by
the version after it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast import faults, metrics
from holdfast.clock import Clock
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.task_engines import TaskEngines
from holdfast.log.commits import Commit
from holdfast.stores.access import Now
from holdfast.stores.engines.base import Changes, Mark
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.waiting import drops_later
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

_drops = metrics.counter("holdfast_slices_dropped", "How often a replica dropped slices of a store.", ["store"])


@dataclass(frozen=True)
class VersionStamp:
    """The part of a version's commit that a mark remembers."""

    commit: str
    now: Now
    app: int
    """The number of the app file that the version was committed with; 0 if only the mark is known."""

    @classmethod
    def of(cls, commit: Commit) -> "VersionStamp":
        return cls(commit.id, Now(commit.clocks.wall, commit.clocks.event), commit.app)


class ReplicaDisk:
    """The engines of one replica and how far they are. All but `know` needs the replica's writing lock.

    `specs` gives the replica's stores by the number of the app's file; none if that file can't be read.
    """

    def __init__(
        self,
        engines: TaskEngines,
        home: TaskDirectory,
        stores: Sequence[str],
        specs: Callable[[int], Iterable[StoreSpec]],
        log: str,
        clock: Clock,
    ) -> None:
        self.engines = engines
        self._home = home
        self._stores = list(stores)
        self._specs = specs
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._stamps: dict[Version, tuple[VersionStamp, int]] = {}
        self._dropped: dict[str, bytes] = {}
        self.flushed = NOTHING
        self.applied_bytes = 0
        """The bytes of the segments that led to the version of the engines."""
        self._flushed_at = clock.monotonic()

    def know(self, version: Version, stamp: VersionStamp, applied_bytes: int) -> None:
        """Remembers the commit of a version that may be applied later, and the bytes of the segments that led to it."""
        with self._lock:
            self._stamps[version] = stamp, applied_bytes

    def apply(self, changes: Iterable[tuple[str, Changes]], version: Version) -> None:
        """Brings the engines to a version that is known, and drops the slices that its clocks hide."""
        (stamp, applied_bytes), former = self._stamps[version], self.engines.mark()
        before = None if former is None or former.version == NOTHING else Now(former.wall, former.event)
        mark = Mark(version, stamp.commit, self._log, wall=stamp.now.wall, event=stamp.now.event)
        self.engines.apply(changes, mark)
        self.applied_bytes = applied_bytes
        with self._lock:
            self._stamps = {known: each for known, each in self._stamps.items() if known >= version}
        for store, start, stop in self._hidden(stamp, before):
            faults.point("drop.before")
            self.engines.drop(store, start, stop)
            self._dropped[store] = stop
            _drops.labels(store).inc()
            faults.point("drop.after")

    def _hidden(self, stamp: VersionStamp, before: Now | None) -> Iterator[tuple[str, bytes, bytes]]:
        """The ranges that are hidden now and were not when slices were last dropped; at first all hidden ones."""
        for spec in self._specs(stamp.app):
            now = before if drops_later(spec) else stamp.now
            if now is not None and (hidden := layout_of(spec).hidden(now)):
                start, stop = self._dropped.get(spec.name, hidden[0]), hidden[1]
                if start < stop:
                    yield spec.name, start, stop

    def late(self, seconds: float) -> bool:
        """Whether the last flush is at least this many seconds ago."""
        return self._clock.monotonic() - self._flushed_at >= seconds

    def flush(self) -> None:
        mark = self.engines.mark()
        self.engines.flush()
        if mark is not None and mark.version > NOTHING:
            self._home.write_checkpoint(mark.log, mark.commit, mark.version, self._stores, self.applied_bytes)
            self.flushed = mark.version
        self._flushed_at = self._clock.monotonic()
