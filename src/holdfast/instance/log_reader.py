"""Reading the log for replicas: the versions there are, and the changes that one version made to one task's stores.

All replicas of an instance share the commits, since each commit names the segments of every task: the last few are
kept, and a commit that several replicas want at the same time is read once. Segments are read part by part; the
checksum of every part is checked where it is read.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.instance.looks import Looks
from holdfast.instance.next_step import Unusable, Usable, check_state
from holdfast.instance.run import Run, merged
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing
from holdfast.log.segments import STATE, Part, SegmentRef
from holdfast.log.snapshot_files import FileFetcher
from holdfast.stores.engines.base import Changes, Mark
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
_KEPT_COMMITS = 36
"""Those of two turns of the tasks that restore (`updater.TURN`), and the ones that are looked up ahead."""
_ROW_OVERHEAD = 32

_emptied = metrics.counter(
    "holdfast_volatile_stores_emptied", "How often a store that isn't durable started over empty.", ["store"]
)


class ForeignState(HoldfastError):
    """The state here was built on another commit than the log has."""

    category = ErrorCategory.DATA


class VolatileChangesGone(HoldfastError):
    """Changes of stores that aren't durable are no longer in the log, so those stores start over empty."""

    category = ErrorCategory.DATA


class StoreNotKnown(HoldfastError):
    """The log has a store that this instance was started without."""

    category = ErrorCategory.INVALID


class LogReader:
    """Versions as the log has them. `fetcher`: how the files of snapshots are fetched."""

    def __init__(self, log: Log, fetcher: FileFetcher | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.log = log
        self.fetcher = fetcher or FileFetcher()
        self.looks = Looks(clock)
        self.on_newest: Callable[[], None] = lambda: None
        """Called on any thread when there is a newer version."""
        self._commits: OrderedDict[Version, Commit] = OrderedDict()
        self._reads: dict[Version, Future[Commit | None]] = {}
        """Reads under way."""
        self._believed: set[Version] = set()
        """Which of the kept commits are a part of the history."""
        self._lock = threading.Lock()
        self._newest = NOTHING
        self._app = log.app
        self._apps = {log.app.number: log.app}
        self._spans: dict[int, tuple[Version, Version]] = {}
        """The first and the last version known to be committed with each app file, by its number."""

    @property
    def app(self) -> AppSpec:
        """The app file in use: the one this log was opened with, or the one of a newer version that is known."""
        return self._app

    def stores_of(self, task: TaskId) -> tuple[StoreSpec, ...]:
        """The stores of a task; none if the app doesn't have it, also by the app file of the newest version."""
        if task not in self._app.tasks():
            self.look_at_app()
        return self._app.stores_of(task) if task in self._app.tasks() else ()

    def use_app(self, number: int) -> None:
        """Uses the app file of this number from now on: a driver may use one that no commit names yet."""
        if number != self._app.number and (found := self.app_at(number)) is not None:
            with self._lock:
                self._app = found

    def look_at_app(self) -> None:
        """Reads the app file of the newest version. If it can't be read now, the next version tries again."""
        try:
            self.newest()
        except HoldfastError as error:
            _LOG.warning(
                "the newest version can't be read, so values are shown by app file %d: %s", self._app.number, error
            )

    def app_at(self, number: int) -> AppSpec | None:
        """The app's file of a number, read once; None where it can't be read now."""
        with self._lock:
            if (known := self._apps.get(number)) is not None:
                return known
        try:
            found = self.log.app_at(number)
        except HoldfastError as error:
            _LOG.warning("the app's file of number %d can't be read: %s", number, error)
            return None
        with self._lock:
            self._apps[number] = found
        return found

    def app_of(self, version: Version) -> AppSpec:
        """The app file a version was committed with; the newest known one if its commit is gone or can't be read."""
        number = self._number_of(version)
        if number is None:
            try:
                commit = self.commit(version)
            except HoldfastError as error:
                text = "the commit of version %d can't be read, so its app's file isn't known: %s"
                _LOG.warning(text, version, error)
                return self._app
            number = None if commit is None else commit.app
        return self._app if number is None else self.app_at(number) or self._app

    def _number_of(self, version: Version) -> int | None:
        with self._lock:
            return next((app for app, (first, last) in self._spans.items() if first <= version <= last), None)

    @property
    def newest_known(self) -> Version:
        """The newest version that was read or reported."""
        return self._newest

    def commit(self, version: Version) -> Commit | None:
        """The commit of a version; None if it doesn't exist, was cleaned, or is not a part of the history."""
        return self._commit(version, reported=False)

    def _commit(self, version: Version, *, reported: bool) -> Commit | None:
        commit = self._read(version)
        if commit is None or version in self._believed:
            return commit
        if not (reported or self._is_believed(commit)):
            return None
        with self._lock:
            if version in self._commits:
                self._believed.add(version)
        self._learned(commit)
        return commit

    def _is_believed(self, commit: Commit) -> bool:
        """Whether a commit is a part of the history: the next one follows it, or it is the newest and follows another.

        A driver that slept may create a commit under a number that was cleaned meanwhile. It withdraws the commit
        unless it is killed.
        """
        version = Version(commit.version)
        known = self._newest  # before the look, after which another thread may learn of the next version
        following = self._read(Version(version + 1))
        if following is not None:
            return following.previous == commit.id
        return known <= version and self.log.chain.follows(version)

    def _read(self, version: Version) -> Commit | None:
        """A commit of the log, believed or not. If another thread is reading it, this one waits for the answer.

        That read may have begun before the commit was there, so a commit that it has not found is looked for again.
        """
        found, began_before = self._read_once(version)
        return self._read_once(version)[0] if found is None and began_before else found

    def _read_once(self, version: Version) -> tuple[Commit | None, bool]:
        """The answer of one read, and whether it had begun before this call."""
        with self._lock:
            if (found := self._commits.get(version)) is not None:
                return found, False
            under_way = self._reads.get(version)
            if under_way is None:
                read = self._reads[version] = Future()
        if under_way is not None:
            return under_way.result(), True
        try:
            commit = self.log.commit(version)
        except BaseException as error:
            self._end_read(version, None)
            read.set_exception(error)
            raise
        self._end_read(version, commit)
        read.set_result(commit)
        return commit, False

    def _end_read(self, version: Version, commit: Commit | None) -> None:
        with self._lock:
            del self._reads[version]
            if commit is not None:
                self._commits[version] = commit
                while len(self._commits) > _KEPT_COMMITS:
                    self._believed.discard(self._commits.popitem(last=False)[0])

    def learn(self, version: Version) -> Version:
        """The newest version, once the driver reports this one: one request to the log, or none if it is known."""
        began = self.looks.now()
        if version > self._newest and self._commit(version, reported=True) is not None:
            self.looks.looked(began)
        return self._newest

    def reaching(self, version: Version) -> Version:
        """The newest known version if that is far enough, else the newest there is."""
        return self._newest if self._newest >= version else self.newest()

    def newest(self) -> Version:
        """The newest committed version there is."""
        began = self.looks.now()
        found = self.log.newest(at_least=self._newest)
        self.looks.looked(began)
        if found is None:
            return NOTHING
        self._learned(found)
        return Version(found.version)

    def _learned(self, commit: Commit) -> None:
        if commit.app > self._app.number and (found := self.app_at(commit.app)) is not None:
            with self._lock:
                self._app = max(self._app, found, key=lambda app: app.number)
        version = Version(commit.version)
        with self._lock:
            first, last = self._spans.get(commit.app, (version, version))
            self._spans[commit.app] = min(first, version), max(last, version)
            if is_newer := version > self._newest:
                self._newest = version
                self.looks.learned(version)
        if is_newer:
            self.on_newest()

    def follow(self) -> Version:
        """The newest version, searched from the newest known one: one request to the log if there is nothing new."""
        began = self.looks.now()
        while self.commit(Version(self._newest + 1)) is not None:
            pass
        self.looks.looked(began)
        return self._newest


class TaskLogReader:
    """The log as one task sees it."""

    def __init__(self, source: LogReader, task: TaskId, specs: Sequence[StoreSpec]) -> None:
        self._source = source
        self._log = source.log
        self._task = task
        self._stores = [spec.name for spec in specs]
        self._after = {spec.name: spec.after for spec in specs}
        self._begin = Version(min(self._after.values(), default=NOTHING))
        self._app_file = source.app.number
        self.volatile_after = NOTHING
        """Changes of stores that aren't durable are applied from versions after this one."""

    def begin_without(self, volatile: Sequence[str]) -> None:
        """The replica starts over: these stores, which aren't durable, get only the changes of later versions."""
        if volatile and (newest := self._source.newest()) > self.volatile_after:
            self.volatile_after = newest
            for store in volatile:
                _emptied.labels(store).inc()
            text = "task %s starts at version %s with an empty %s, which isn't durable"
            _LOG.info(text, self._task, newest, ", ".join(volatile))

    def specs(self, app: int) -> list[StoreSpec]:
        """The replica's stores by the number of the app's file; none if that isn't known."""
        found = self._source.app_at(app) if app else None
        return [] if found is None else [spec for spec in found.stores_of(self._task) if spec.name in self._stores]

    def estimated_bytes(self, commit: Commit) -> int:
        """About how much memory the changes of a version need."""
        size = 0
        for ref in self._refs(commit):
            for part in ref.parts:
                if part.type == STATE:
                    size += part.bytes + _ROW_OVERHEAD * part.rows
        return size

    def parts(self, commit: Commit) -> list[tuple[SegmentRef, Part]]:
        """The parts that `changes` reads."""
        return [
            (ref, part)
            for ref in self._refs(commit)
            for part in ref.parts
            if part.type == STATE and part.rows and self._has(part.name, commit)
        ]

    def changes(self, commit: Commit) -> Iterator[tuple[str, Changes]]:
        """The changes that a version made to the task's stores, in the order they were written."""
        for ref in commit.of_task(self._task):
            for store, table in self._log.state_parts(ref):
                if table.num_rows and self._has(store, commit):
                    yield store, as_changes(table)
        for ref in self._volatile(commit):
            for store, table in self._if_there(commit, ref):
                if table.num_rows and self._has(store, commit):
                    yield store, as_changes(table)

    def _has(self, store: str, commit: Commit) -> bool:
        """Whether a store is this replica's and has begun. A former store of its name is another one."""
        after = self._after.get(store)
        if after is None and commit.app > self._app_file:
            raise StoreNotKnown(
                f"version {commit.version} changes the store {store!r}, which was added after this instance opened "
                "the task. It opens the task again when it finds the generation of the app's driver."
            )
        return after is not None and commit.version > after

    def _refs(self, commit: Commit) -> tuple[SegmentRef, ...]:
        durable = commit.of_task(self._task)
        return durable + self._volatile(commit) if commit.volatile else durable

    def _volatile(self, commit: Commit) -> tuple[SegmentRef, ...]:
        return commit.volatile_of(self._task) if commit.version > self.volatile_after else ()

    def _if_there(self, commit: Commit, ref: SegmentRef) -> list[tuple[str, pa.Table]]:
        """The changes of stores that aren't durable. Without them, what the replica has would be wrong from here on."""
        try:
            return list(self._log.state_parts(ref))
        except (ObjectMissing, DamagedObject) as error:
            stores = sorted({part.name for part in ref.of_type(STATE)})
            raise VolatileChangesGone(
                f"the changes of version {commit.version} to {', '.join(stores)} can't be read: {error}"
            ) from error

    def gather(self, first: Commit, to: Version, most_bytes: int) -> list[Commit]:
        """Commits to apply together, starting with `first`: as many as fit, and at least one."""
        commits, size = [first], self.estimated_bytes(first)
        while commits[-1].version < to:
            following = self._source.commit(Version(commits[-1].version + 1))
            if following is None or following.previous != commits[-1].id:
                break
            size += self.estimated_bytes(following)
            if size > most_bytes:
                break
            commits.append(following)
        return commits

    def stream(self, commits: Sequence[Commit]) -> Iterable[tuple[str, Changes]]:
        """The changes of some versions combined. A single version, which may be large, is read part by part."""
        if len(commits) == 1:
            return self.changes(commits[0])
        return as_one([(Version(each.version), list(self.changes(each))) for each in commits], self._stores)

    def examine(self, mark: Mark | None, path: Path) -> Usable:
        """Checks that the state at `path` is a part of this log's history; raises ForeignState if it isn't."""
        at = NOTHING if mark is None else mark.version
        newest = NOTHING if mark is None else self._source.reaching(max(at, mark.applying or NOTHING))
        here = self._source.commit(at) if at else None
        after = self._source.commit(Version(at + 1)) if at and here is None else None
        verdict = check_state(
            mark,
            log=self._log.id,
            newest=newest,
            commit=None if here is None else here.id,
            next_previous=None if after is None else after.previous,
            begin=self._begin,
        )
        if isinstance(verdict, Unusable):
            raise ForeignState(f"the state in {path} can't be used: {verdict.reason}.")
        return verdict


def as_changes(table: pa.Table) -> Changes:
    """The columns of a state part as changes."""
    return Changes(whole(table.column("key")), whole(table.column("value")))


def as_one(
    parts: Sequence[tuple[Version, list[tuple[str, Changes]]]], stores: Sequence[str]
) -> Iterator[tuple[str, Changes]]:
    """Several versions combined: the newest value per key, in key order."""
    runs: dict[str, list[Run]] = {store: [] for store in stores}
    for version, changes in parts:
        for store, part in changes:
            runs[store].append(Run(part.keys, part.values, version))
    for store, newest_last in runs.items():
        if newest_last:
            yield from ((store, part) for part in merged(newest_last[::-1]).changes())
