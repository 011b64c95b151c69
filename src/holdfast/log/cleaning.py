"""Cleaning: taking away what nobody needs any more. Only the driver does it.

One floor decides: the oldest version from which everything can still be rebuilt and delivered. It is the smallest of
the older of the two newest snapshots of every task, of every sink's position, and of the newest version that is older
than the retention. Commits, segments and positions below the floor go, and so do snapshots that are neither among a
task's two newest nor within the retention. Above the floor only orphans go: a segment of version `w` is one once commit
`w` exists and doesn't name it. Above the newest commit nothing is ever touched: a slow driver may still commit it.
Segments of stores that aren't durable go ten minutes after their version, once every sink has passed it.

The order is manifests, commits oldest first, segments, then files and positions. So whoever sees a manifest finds its
files, whoever sees a commit finds its segments, and a search for the newest commit that a cleaning overtakes can tell.
A file that no manifest names may belong to a snapshot that is being written: it goes once it was nameless for long.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast import faults
from holdfast.clock import Clock
from holdfast.log import names
from holdfast.log.log import Log
from holdfast.words import NOTHING, TaskId, Version

KEPT_SNAPSHOTS = 2
_COMMITS_READ_AT_ONCE = 512
"""How many commits one cleaning reads to find orphans; after a restart it takes a few rounds to have seen them all."""
_NAMELESS_FOR = timedelta(minutes=10)
"""How long a snapshot's file stays without a manifest at least, however short the retention."""
VOLATILE_FOR = timedelta(minutes=10)
"""How long segments of stores that aren't durable are kept: for a replica that restarts, or falls behind."""
_STRAGGLERS = 64
"""An attempt of a task may outlive its commit by a while; orphans are looked for this many versions back again."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What a cleaning looks at. Lists hold names as the storage lists them."""

    newest: Version
    """The newest commit."""
    expired: Version
    """The newest version older than the retention."""
    snapshots: Mapping[TaskId, tuple[Version, ...]]
    """Of every task of the app, also of those without any."""
    sinks: Mapping[str, Version | None]
    """The position of every sink of the app."""
    commits: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    named: Mapping[Version, frozenset[str]] = field(default_factory=dict)
    """The segments each commit names, for the commits that were read."""
    nameless: tuple[str, ...] = ()
    """Snapshot files that no manifest has named for long."""
    volatile: tuple[str, ...] = ()
    """Segments of stores that aren't durable."""
    forgotten: Version = NOTHING
    """The newest version whose such segments have been kept for long enough."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to take away, in the order it goes."""

    floor: Version
    manifests: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [*self.manifests, *self.commits, *self.segments, *self.files, *self.positions, *self.volatile]


def floor_of(picture: Picture) -> Version:
    """The oldest version that must stay.

    >>> floor_of(Picture(newest=Version(9), expired=Version(8), sinks={"files": Version(7)},
    ...                  snapshots={TaskId(0, 0): (Version(2), Version(5), Version(6))}))
    5
    """
    bounds = [picture.newest, picture.expired]
    bounds += [
        versions[-KEPT_SNAPSHOTS] if len(versions) >= KEPT_SNAPSHOTS else NOTHING
        for versions in picture.snapshots.values()
    ]
    bounds += [position if position is not None else NOTHING for position in picture.sinks.values()]
    return min(bounds)


def plan_cleaning(picture: Picture) -> Plan:
    """What may go, by the rules above."""
    floor = floor_of(picture)
    return Plan(
        floor=floor,
        manifests=tuple(
            names.manifest(task, version)
            for task, versions in picture.snapshots.items()
            for version in versions[:-KEPT_SNAPSHOTS]
            if version < picture.expired
        ),
        commits=tuple(sorted(_below(picture.commits, floor))),
        segments=tuple(name for name in picture.segments if _may_go(name, floor, picture)),
        files=picture.nameless,
        positions=tuple(_below(picture.positions, floor)),
        volatile=tuple(_below(picture.volatile, Version(_forgotten(picture) + 1))),
    )


def _forgotten(picture: Picture) -> Version:
    """The newest version of which nobody needs what isn't durable."""
    return min([picture.forgotten, picture.newest, *(position or NOTHING for position in picture.sinks.values())])


def _below(listed: Iterable[str], floor: Version) -> Iterable[str]:
    return (name for name in listed if (version := names.version_of(name)) is not None and version < floor)


def _may_go(segment: str, floor: Version, picture: Picture) -> bool:
    version = names.version_of(segment)
    if version is None or version > picture.newest:
        return False
    return version < floor or (version in picture.named and segment not in picture.named[version])


class Cleaner:
    """Cleans one log, again and again. `sinks` tells the names of the app's sinks as they are now."""

    def __init__(self, log: Log, *, retention: timedelta, sinks: Callable[[], Iterable[str]], clock: Clock) -> None:
        self._log = log
        self._retention = retention
        self._sinks = sinks
        self._clock = clock
        self._newest = NOTHING
        self._floor = NOTHING
        self._orphans_through = NOTHING
        self._walls: dict[Version, int] = {}
        self._named: dict[Version, frozenset[str]] = {}
        self._files: dict[str, frozenset[str]] = {}
        self._nameless_since: dict[str, float] = {}

    def clean(self) -> Plan:
        """One cleaning; returns what it took away."""
        faults.point("clean.before")
        newest = self._log.newest(self._newest)
        if newest is None:
            return Plan(floor=NOTHING)
        self._newest = Version(newest.version)
        plan = plan_cleaning(self._look(self._newest))
        self._carry_out(plan)
        faults.point("clean.after")
        return plan

    def _carry_out(self, plan: Plan) -> None:
        storage = self._log.storage
        storage.delete(plan.manifests)
        for commit in plan.commits:
            # One by one: a driver that slept recognises a cleaned history by its predecessor being gone.
            storage.delete([commit])
        faults.point("clean.middle")
        storage.delete(plan.segments)
        storage.delete(plan.files)
        storage.delete(plan.positions)
        storage.delete(plan.volatile)
        self._floor = plan.floor
        self._walls = {version: wall for version, wall in self._walls.items() if version >= plan.floor}
        self._named = {version: segments for version, segments in self._named.items() if version >= plan.floor}

    def _look(self, newest: Version) -> Picture:
        log = self._log
        tasks = log.app.tasks()
        snapshots = {task: tuple(log.snapshots.versions(task)) for task in tasks}
        picture = Picture(
            newest=newest,
            expired=self._older_than(self._retention, newest),
            snapshots=snapshots,
            sinks={sink: log.sinks.newest(sink) for sink in self._sinks()},
        )
        floor = floor_of(picture)
        rises = floor > self._floor
        segments = self._segments(tasks, from_the_start=rises)
        named = self._read_named(segments, floor, newest)
        volatile = self._volatile(tasks)
        return Picture(
            newest=newest,
            expired=picture.expired,
            snapshots=snapshots,
            sinks=picture.sinks,
            commits=tuple(log.storage.list(names.COMMITS)) if rises else (),
            segments=segments,
            positions=tuple(name for sink in picture.sinks for name in log.storage.list(names.sink_positions(sink)))
            if rises
            else (),
            named=named,
            nameless=self._nameless(snapshots),
            volatile=volatile,
            forgotten=self._older_than(VOLATILE_FOR, newest) if volatile else NOTHING,
        )

    def _volatile(self, tasks: Iterable[TaskId]) -> tuple[str, ...]:
        app, storage = self._log.app, self._log.storage
        losing = [task for task in tasks if not all(store.durable for store in app.stores_of(task))]
        return tuple(name for task in losing for name in storage.list(names.volatile_segments(task)))

    def _older_than(self, age: timedelta, newest: Version) -> Version:
        """The newest version whose wall clock lies that far back. Walls never go back, so halving finds it."""
        until = self._clock.now() - age // timedelta(milliseconds=1)
        low, high = min(self._floor, newest), newest
        while low < high:
            middle = Version((low + high + 1) // 2)
            wall = self._wall(middle)
            if wall is None or wall <= until:  # cleaned before: older than anything that is there
                low = middle
            else:
                high = Version(middle - 1)
        return low

    def _wall(self, version: Version) -> int | None:
        if version not in self._walls:
            commit = self._log.commit(version)
            if commit is None:
                return None
            self._walls[version] = commit.clocks.wall
        return self._walls[version]

    def _segments(self, tasks: Iterable[TaskId], *, from_the_start: bool) -> tuple[str, ...]:
        start = NOTHING if from_the_start else Version(max(NOTHING, self._orphans_through - _STRAGGLERS))
        found: list[str] = []
        for task in tasks:
            folder = names.segments(task)
            found += self._log.storage.list(folder, after=f"{folder}{names.padded(start)}")
        return tuple(found)

    def _read_named(self, segments: Iterable[str], floor: Version, newest: Version) -> Mapping[Version, frozenset[str]]:
        """What the commits name that listed segments are of. Listed first, so that a commit read now decides."""
        versions = sorted(
            {v for name in segments if (v := names.version_of(name)) is not None and floor <= v <= newest}
        )
        unread = [version for version in versions if version not in self._named]
        for version in unread[:_COMMITS_READ_AT_ONCE]:
            if (commit := self._log.commit(version)) is not None:
                self._named[version] = commit.segment_names()
        rest = unread[_COMMITS_READ_AT_ONCE:]
        self._orphans_through = Version(rest[0] - 1) if rest else newest
        return {version: self._named[version] for version in versions if version in self._named}

    def _nameless(self, snapshots: Mapping[TaskId, tuple[Version, ...]]) -> tuple[str, ...]:
        now = self._clock.monotonic()
        nameless: set[str] = set()
        manifests: dict[str, frozenset[str]] = {}
        for task, versions in snapshots.items():
            # Files are listed before the manifests are read: one that a manifest names by then stays.
            files = set(self._log.storage.list(names.snapshot_files(task)))
            for version in versions:
                name = names.manifest(task, version)
                manifests[name] = self._files[name] if name in self._files else self._files_of(task, version)
                files -= manifests[name]
            nameless |= files
        self._files = manifests
        self._nameless_since = {name: self._nameless_since.get(name, now) for name in nameless}
        long = max(self._retention, _NAMELESS_FOR).total_seconds()
        return tuple(sorted(name for name, since in self._nameless_since.items() if now - since >= long))

    def _files_of(self, task: TaskId, version: Version) -> frozenset[str]:
        manifest = self._log.snapshots.manifest(task, version)
        return frozenset(names.snapshot_file(task, file.hash) for file in manifest.files) if manifest else frozenset()
