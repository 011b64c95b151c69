"""The part of a replica that is on disk: the engines, their marks, when they were flushed, and the dropped slices.

Every version is applied with its commit and its clocks; both go into the mark. Slices that the clocks of that version
hide are dropped right after it, by the app's file that its commit names: a TTL may have grown since this process
started, and a retention may be shorter in a file that later versions are made under. Every reader of that version or a
later one hides them too, and readers of earlier versions use views that were pinned before, so the moment of the drop
changes no answer.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast import faults, metrics
from holdfast.clock import Clock
from holdfast.instance.read_views import BEFORE_TIME
from holdfast.instance.state_dir import TaskDirectory
from holdfast.instance.task_engines import TaskEngines
from holdfast.log.commits import Commit
from holdfast.stores.access import Now
from holdfast.stores.engines.base import Changes, Mark
from holdfast.stores.layouts.slices import slices_to_drop
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

_drops = metrics.counter("holdfast_slices_dropped", "How often a replica dropped slices of a store.", ["store"])


@dataclass(frozen=True)
class VersionStamp:
    """The commit of a version, as much of it as a mark remembers."""

    commit: str
    now: Now
    app: int
    """The number of the app's file it was made under; 0 where only the mark is left to tell."""

    @classmethod
    def of(cls, commit: Commit) -> "VersionStamp":
        return cls(commit.id, Now(commit.clocks.wall, commit.clocks.event), commit.app)


def clocks_of(mark: Mark | None, commit: Callable[[Version], Commit | None]) -> Now:
    """The clocks of what is on disk: as its mark has them, or else as the log's commit of that version does."""
    if mark is None or mark.version == NOTHING:
        return BEFORE_TIME
    if mark.wall is not None:
        return Now(mark.wall, mark.event)
    found = commit(mark.version)
    return BEFORE_TIME if found is None else VersionStamp.of(found).now


class ReplicaDisk:
    """The base of one replica and how far it is. All but `know` is for whoever holds the replica's writing lock.

    `specs` gives the replica's stores as the app's file of a number has them; none where it can't be read.
    """

    def __init__(
        self,
        base: TaskEngines,
        home: TaskDirectory,
        stores: Sequence[str],
        specs: Callable[[int], Iterable[StoreSpec]],
        log: str,
        clock: Clock,
    ) -> None:
        self.base = base
        self._home = home
        self._stores = list(stores)
        self._specs = specs
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._stamps: dict[Version, VersionStamp] = {}
        self._dropped: dict[str, bytes] = {}
        self.flushed = NOTHING
        self._flushed_at = clock.monotonic()

    def know(self, version: Version, stamp: VersionStamp) -> None:
        """Tells which commit a version is that may be applied some time."""
        with self._lock:
            self._stamps[version] = stamp

    def apply(self, changes: Iterable[tuple[str, Changes]], version: Version) -> None:
        """Moves the engines to a version that is known, and drops what its clocks hide."""
        stamp = self._stamps[version]
        mark = Mark(version, stamp.commit, self._log, wall=stamp.now.wall, event=stamp.now.event)
        self.base.apply(changes, mark)
        with self._lock:
            self._stamps = {known: each for known, each in self._stamps.items() if known >= version}
        for store, start, stop in self._hidden(stamp):
            faults.point("drop.before")
            self.base.drop(store, start, stop)
            self._dropped[store] = stop
            _drops.labels(store).inc()
            faults.point("drop.after")

    def _hidden(self, stamp: VersionStamp) -> Iterator[tuple[str, bytes, bytes]]:
        """The ranges that are hidden now and weren't when slices were last dropped; at first all that are."""
        for spec in self._specs(stamp.app):
            if (hidden := slices_to_drop(spec, stamp.now.wall, stamp.now.event)) is None:
                continue
            start, stop = hidden
            # Under a file that doesn't say what retention goes by, an app's first event time may lie before the wall
            # clock it had until then: hiding begins anew from there.
            if (last := self._dropped.get(spec.name)) is not None and last <= stop:
                start = last
            if start < stop:
                yield spec.name, start, stop

    def late(self, seconds: float) -> bool:
        """Whether the last flush is so long ago."""
        return self._clock.monotonic() - self._flushed_at >= seconds

    def flush(self) -> None:
        mark = self.base.mark()
        self.base.flush()
        if mark is not None and mark.version > NOTHING:
            self._home.write_checkpoint(mark.log, mark.commit, mark.version, self._stores)
            self.flushed = mark.version
        self._flushed_at = self._clock.monotonic()
