"""Cleaning: deleting objects that are no longer needed. Only the driver that leads does it.

The floor is the oldest version from which everything can still be rebuilt and delivered: the minimum of every task's
second newest snapshot (without two snapshots, the version that the task begins after), every sink's position, the
newest version that is older than the retention, and the newest commit's predecessor. Which tasks there are is in the
app file that the newest commit names; a snapshot that lacks one of a task's stores doesn't count. Commits, segments and
positions below the floor are deleted, and so are snapshots that are neither among a task's two newest nor within the
retention, and those of tasks that have no stores any more. Above the floor only orphans are deleted: segments of a
version whose commit exists and doesn't name them. Objects above the newest commit are never deleted, since a slow
driver may still commit them. Segments of stores that aren't durable are deleted ten minutes after their version, once
every sink has passed it.

The order is manifests, commits oldest first, segments, then files and positions. So a reader that sees a manifest finds
its files, one that sees a commit finds its segments, and a search for the newest commit notices a concurrent cleaning.
A file that no manifest names may belong to a snapshot that is being written, so it is deleted only once the task has a
newer snapshot than when the file was first seen without one. That depends on no clock, which an app that is restarted
often would start over with each start. If a snapshot reuses the file just then, its manifest is withdrawn: the task has
older snapshots, and the next one writes the file.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from holdfast import faults
from holdfast.clock import WallClock
from holdfast.log import names
from holdfast.log.commits import Commit
from holdfast.log.leadership import KEPT as KEPT_LEADERS
from holdfast.log.log import Log
from holdfast.log.snapshots import Manifest
from holdfast.words import NOTHING, TaskId, Version

_logger = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 2
_COMMITS_READ_AT_ONCE = 512
"""How many commits one cleaning reads to find orphans; after a restart it takes a few cleanings to read them all."""
VOLATILE_FOR = timedelta(minutes=10)
"""How long segments of stores that aren't durable are kept, for replicas that restart or lag behind."""
_STRAGGLERS = 64
"""A task's attempt may outlive its commit for a while, so the search for orphans goes back this many versions."""


@dataclass(frozen=True, kw_only=True)
class LogContents:
    """What a cleaning decides on. Lists hold names as the storage lists them."""

    newest: Version
    """The newest commit."""
    expired: Version
    """The newest version older than the retention."""
    snapshots: Mapping[TaskId, tuple[Version, ...]]
    """By task, for every task that has state."""
    unfit: Mapping[TaskId, frozenset[Version]] = field(default_factory=dict)
    """Damaged snapshots, and those of instances with earlier code, which lack a store. No replica starts there."""
    begins: Mapping[TaskId, Version] = field(default_factory=dict)
    """The version that a task begins after, if it wasn't there from the start."""
    sinks: Mapping[str, Version | None]
    """The position of every sink of the app, as the newest commit has it. None: the sink is new."""
    former: tuple[str, ...] = ()
    """Snapshots and volatile segments of tasks that have no stores any more."""
    commits: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    referenced: Mapping[Version, frozenset[str]] = field(default_factory=dict)
    """The segments each commit names, for the commits that were read."""
    unreferenced: tuple[str, ...] = ()
    """Snapshot files that no manifest names, and that no snapshot being written needs."""
    volatile: tuple[str, ...] = ()
    """Segments of stores that aren't durable."""
    volatile_expired: Version = NOTHING
    """The newest version whose segments of this type have been kept long enough."""
    leaders: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    """App files below that of the oldest kept commit: numbers grow with versions, so no kept commit names one."""

    def usable(self, task: TaskId) -> tuple[Version, ...]:
        """The snapshots that a replica of the task can start at."""
        unfit = self.unfit.get(task, frozenset())
        return tuple(version for version in self.snapshots[task] if version not in unfit)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The names to delete, in this order."""

    floor: Version
    manifests: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    leaders: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        others = [*self.files, *self.positions, *self.volatile, *self.leaders, *self.apps]
        return [*self.manifests, *self.commits, *self.segments, *others]


def floor_of(contents: LogContents) -> Version:
    """The oldest version that must be kept.

    >>> floor_of(LogContents(newest=Version(9), expired=Version(8), sinks={"files": Version(7)},
    ...                  snapshots={TaskId(0, 0): (Version(2), Version(5), Version(6))}))
    5
    """
    bounds = [Version(max(NOTHING, contents.newest - 1)), contents.expired]
    bounds += [
        versions[-KEPT_SNAPSHOTS]
        if len(versions := contents.usable(task)) >= KEPT_SNAPSHOTS
        else contents.begins.get(task, NOTHING)
        for task in contents.snapshots
    ]
    bounds += [position if position is not None else NOTHING for position in contents.sinks.values()]
    return min(bounds)


def plan_cleaning(contents: LogContents) -> Plan:
    """What may be deleted, by the rules above."""
    floor = floor_of(contents)
    return Plan(
        floor=floor,
        manifests=(
            *(name for name in contents.former if names.is_manifest(name)),
            *(
                names.manifest(task, version)
                for task, versions in contents.snapshots.items()
                for version in versions
                if version < contents.expired and version not in contents.usable(task)[-KEPT_SNAPSHOTS:]
            ),
        ),
        commits=tuple(sorted(_below(contents.commits, floor))),
        segments=tuple(name for name in contents.segments if _is_deletable(name, floor, contents)),
        files=(*contents.unreferenced, *(name for name in contents.former if not names.is_manifest(name))),
        positions=tuple(_below(contents.positions, floor)),
        volatile=tuple(_below(contents.volatile, Version(_volatile_expired(contents) + 1))),
        leaders=tuple(sorted(contents.leaders)[:-KEPT_LEADERS]),
        apps=contents.apps,
    )


def _volatile_expired(contents: LogContents) -> Version:
    """The newest version whose segments of stores that aren't durable may be deleted."""
    return min(
        [contents.volatile_expired, contents.newest, *(position or NOTHING for position in contents.sinks.values())]
    )


def _below(listed: Iterable[str], floor: Version) -> Iterable[str]:
    return (name for name in listed if (version := names.version_of(name)) is not None and version < floor)


def _is_deletable(segment: str, floor: Version, contents: LogContents) -> bool:
    version = names.version_of(segment)
    if version is None or version > contents.newest:
        return False
    return version < floor or (version in contents.referenced and segment not in contents.referenced[version])


def _position(commit: Commit, sink: str) -> Version | None:
    at = commit.sinks.get(sink)
    return None if at is None else Version(at)


class Cleaner:
    """Cleans one log repeatedly. `sinks` returns the current names of the app's sinks.

    The clock says what has passed its retention. It raises when the system's jumps ahead, and then nothing is cleaned.
    """

    def __init__(
        self,
        log: Log,
        *,
        retention: timedelta,
        sinks: Callable[[], Iterable[str]],
        clock: WallClock,
        check_leads: Callable[[], None],
    ) -> None:
        self._log = log
        self._check_leads = check_leads
        self._retention = retention
        self._sinks = sinks
        self._clock = clock
        self._newest = NOTHING
        self._floor = NOTHING
        self._orphans_through = NOTHING
        self._walls: dict[Version, int] = {}
        self._referenced: dict[Version, frozenset[str]] = {}
        self._app = log.app
        self._manifests: dict[str, Manifest | None] = {}
        self._swept: int | None = None
        """The app file by which snapshots of former tasks were looked for: only a new file has any."""
        self._unreferenced_since: dict[str, Version] = {}
        """Snapshot files that no manifest names: the newest snapshot of their task when they were first seen."""

    def clean(self) -> Plan:
        """Cleans once and returns what was deleted."""
        faults.point("clean.before")
        self._check_leads()
        newest = self._log.newest(self._newest)
        if newest is None:
            return Plan(floor=NOTHING)
        self._newest = Version(newest.version)
        plan = plan_cleaning(self._contents(newest))
        self._check_leads()
        self._delete(plan)
        faults.point("clean.after")
        return plan

    def _delete(self, plan: Plan) -> None:
        storage = self._log.storage
        storage.delete(plan.manifests)
        for commit in plan.commits:
            # One by one: a driver that slept recognises a cleaned history by its predecessor being gone.
            storage.delete([commit])
        faults.point("clean.middle")
        storage.delete(plan.segments)
        storage.delete(plan.files)
        self._withdraw_snapshots_with(frozenset(plan.files))
        storage.delete(plan.positions)
        storage.delete(plan.volatile)
        storage.delete(plan.leaders)
        storage.delete(plan.apps)
        self._floor, self._swept = plan.floor, self._app.number
        self._walls = {version: wall for version, wall in self._walls.items() if version >= plan.floor}
        self._referenced = {
            version: segments for version, segments in self._referenced.items() if version >= plan.floor
        }

    def _contents(self, commit: Commit) -> LogContents:
        log, newest = self._log, Version(commit.version)
        app = self._app = log.app_at(commit.app)
        listed = self._listed_snapshots()
        snapshots = {task: _versions(found) for task, found in listed.items()}
        contents = LogContents(
            newest=newest,
            expired=self._older_than(self._retention, newest),
            snapshots=snapshots,
            unfit={task: self._unfit(task, versions) for task, versions in snapshots.items()},
            former=self._former(newest),
            begins={task: Version(min(store.after for store in app.stores_of(task))) for task in snapshots},
            sinks={sink: _position(commit, sink) for sink in self._sinks()},
        )
        floor = floor_of(contents)
        rises = floor > self._floor
        segments = self._segments(newest, rises=rises)
        referenced = self._read_references(segments, floor, newest)
        volatile = self._volatile(snapshots)
        return replace(
            contents,
            commits=tuple(log.storage.list(names.COMMITS)) if rises else (),
            segments=segments,
            positions=tuple(log.storage.list(names.SINKS)) if rises else (),
            referenced=referenced,
            unreferenced=self._unreferenced(listed),
            volatile=volatile,
            volatile_expired=self._older_than(VOLATILE_FOR, newest) if volatile else NOTHING,
            leaders=tuple(log.storage.list_flat(names.LEADERS)),
            apps=self._unneeded_apps(floor) if rises else (),
        )

    def _unneeded_apps(self, floor: Version) -> tuple[str, ...]:
        if (oldest := self._log.commit(floor)) is None:
            return ()
        listed = self._log.storage.list_flat(names.APPS)
        return tuple(name for name in listed if (number := names.number_of(name)) is not None and number < oldest.app)

    def _listed_snapshots(self) -> Mapping[TaskId, Sequence[str]]:
        """Manifests and files by task, with one listing for all tasks. Manifests are read after it."""
        found: dict[TaskId, list[str]] = {task: [] for task in self._app.tasks()}
        for name in self._log.storage.list(names.SNAPSHOTS):
            if (task := names.task_of(name)) in found:
                found[task].append(name)
        return found

    def _unfit(self, task: TaskId, versions: Iterable[Version]) -> frozenset[Version]:
        stores = self._app.stores_of(task)
        found = {version: self._manifest(task, version) for version in versions}
        return frozenset(version for version, each in found.items() if each is None or not each.fits(stores))

    def _former(self, newest: Version) -> tuple[str, ...]:
        """What tasks left that have no stores any more. The start that dropped the stores has named them."""
        if self._swept == self._app.number:
            return ()
        tasks, storage = set(self._app.tasks()), self._log.storage
        # Those after the newest commit may be of one whose app file has more stores.
        volatile = [name for name in storage.list(names.VOLATILE) if (names.version_of(name) or 0) <= newest]
        listed = [*storage.list(names.SNAPSHOTS), *volatile]
        owners = {name: task for name in listed if (task := names.task_of(name)) is not None and task not in tasks}
        for task in sorted(set(owners.values())):
            _logger.info("the snapshots of task %s are deleted: it has no stores any more", task)
        durable = all(store.durable for store in self._app.stores)
        shared = (name for name in listed if durable and name.startswith(names.volatile_segments(None)))
        return (*owners, *shared)

    def _volatile(self, tasks: Iterable[TaskId]) -> tuple[str, ...]:
        app, storage = self._app, self._log.storage
        volatile = [task for task in tasks if not all(store.durable for store in app.stores_of(task))]
        folders = [names.volatile_segments(task) for task in (*volatile, None)] if volatile else []
        return tuple(name for folder in folders for name in storage.list(folder))

    def _older_than(self, age: timedelta, newest: Version) -> Version:
        """The newest version whose wall clock is that far in the past. It never goes back: a binary search."""
        until = self._clock.now() - age // timedelta(milliseconds=1)
        low, high = min(self._floor, newest), newest
        while low < high:
            middle = Version((low + high + 1) // 2)
            wall = self._wall(middle)
            if wall is None or wall <= until:  # already cleaned, so older than every commit in the log
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

    def _segments(self, newest: Version, *, rises: bool) -> tuple[str, ...]:
        """All segments if the floor rises, also those of former sub-topologies; otherwise those that may be orphans."""
        storage, app = self._log.storage, self._app
        if rises:
            return tuple(storage.list(names.SEGMENTS))
        if newest == self._orphans_through:
            return ()  # nothing new; stragglers are found after the next version
        start = Version(max(NOTHING, self._orphans_through - _STRAGGLERS))
        tasks = (TaskId(each.number, n) for each in app.subtopologies for n in range(app.partitions))
        folders = map(names.segments, (*tasks, None))
        return tuple(name for each in folders for name in storage.list(each, after=f"{each}{names.padded(start)}"))

    def _read_references(
        self, segments: Iterable[str], floor: Version, newest: Version
    ) -> Mapping[Version, frozenset[str]]:
        """The segments that commits name. The commits are read after the segments were listed, so they decide."""
        versions = sorted(
            {v for name in segments if (v := names.version_of(name)) is not None and floor <= v <= newest}
        )
        unread = [version for version in versions if version not in self._referenced]
        for version in unread[:_COMMITS_READ_AT_ONCE]:
            if (commit := self._log.commit(version)) is not None:
                self._referenced[version] = commit.segment_names()
        rest = unread[_COMMITS_READ_AT_ONCE:]
        self._orphans_through = Version(rest[0] - 1) if rest else newest
        return {version: self._referenced[version] for version in versions if version in self._referenced}

    def _unreferenced(self, listed: Mapping[TaskId, Sequence[str]]) -> tuple[str, ...]:
        since: dict[str, Version] = {}
        manifests: dict[str, Manifest | None] = {}
        deletable: list[str] = []
        for task, found in listed.items():
            # A file that a manifest names which appeared after the listing: see `_withdraw_snapshots_with`.
            files = {name for name in found if not names.is_manifest(name)}
            versions = _versions(found)
            for version in versions:
                name = names.manifest(task, version)
                manifests[name] = self._manifest(task, version)
                files -= _files_of(task, manifests[name])
            newest = max(versions, default=NOTHING)
            since |= {name: self._unreferenced_since.get(name, newest) for name in files}
            deletable += [name for name in files if newest > since[name]]
        self._manifests, self._unreferenced_since = manifests, since
        return tuple(sorted(deletable))

    def _withdraw_snapshots_with(self, deleted: frozenset[str]) -> None:
        """Deletes the manifests that appeared since the look and name a file that was deleted."""
        tasks = [
            task for task in self._app.tasks() if any(name.startswith(names.snapshot_files(task)) for name in deleted)
        ]
        for task in tasks:
            for version in self._log.snapshots.versions(task):
                name = names.manifest(task, version)
                if name in self._manifests:
                    continue
                if _files_of(task, self._log.snapshots.readable(task, version)) & deleted:
                    self._log.storage.delete([name])
                    _logger.warning("%s is withdrawn: it reused a file that was being deleted", name)

    def _manifest(self, task: TaskId, version: Version) -> Manifest | None:
        name = names.manifest(task, version)
        if name not in self._manifests:
            self._manifests[name] = self._log.snapshots.readable(task, version)
        return self._manifests[name]


def _versions(listed: Iterable[str]) -> tuple[Version, ...]:
    """The versions of the manifests among a task's objects, oldest first."""
    found = (names.version_of(name) for name in listed if names.is_manifest(name))
    return tuple(version for version in found if version is not None)


def _files_of(task: TaskId, manifest: Manifest | None) -> frozenset[str]:
    return frozenset(names.snapshot_file(task, file.hash) for file in manifest.files) if manifest else frozenset()
