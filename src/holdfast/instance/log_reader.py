"""Reading the log for replicas: the versions there are, and which of them are one timeline.

All replicas of an instance share the commits, since each commit names the segments of every task: the last few are
kept, and a commit that several replicas want at the same time is read once. What a version changed in the stores of a
task is read by `task_log_reader`.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError
from holdfast.instance.looks import Looks
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import BEGINNING, Commit, Point
from holdfast.log.log import Log, LogMissing
from holdfast.log.snapshot_files import FileFetcher
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version

_LOG = logging.getLogger(__name__)
_KEPT_COMMITS = 36
"""Those of two turns of the tasks that restore (`updater.TURN`), and the ones that are looked up ahead."""

_Read = Future[Commit | None]


class LogReader:
    """Versions as the log has them. `fetcher`: how the files of snapshots are fetched.

    The commits that are known here are one timeline: each names the one before it. A log that is set back to a backup
    loses its newest versions, and goes on with others of the same numbers. A commit that doesn't follow the one known
    here, or a point that someone else has of a version, has this reader look whether its newest commit is still in the
    log. If it isn't, all that is known is forgotten, and `timeline` counts one more: whoever has read something here
    before looks whether the log has that still.
    """

    def __init__(self, log: Log, fetcher: FileFetcher | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.log = log
        self.fetcher = fetcher or FileFetcher()
        self.looks = Looks(clock)
        self.on_newest: Callable[[], None] = lambda: None
        """Called on any thread when there is a newer version, and when the log was set back."""
        self.on_set_back: Callable[[], None] = lambda: None
        """Called on any thread when the log was set back."""
        self.timeline = 0
        """How often the log was found to be set back."""
        self._commits: OrderedDict[Version, Commit] = OrderedDict()
        self._reads: dict[Version, _Read] = {}
        """Reads under way."""
        self._believed: set[Version] = set()
        """Which of the kept commits are a part of the history."""
        self._lock = threading.Lock()
        self._newest = BEGINNING
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
        if (found := self.app_at(number)) is not None:
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
        """The app's file of a number, read once per timeline; None where it can't be read now."""
        with self._lock:
            timeline = self.timeline
            if (known := self._apps.get(number)) is not None:
                return known
        try:
            found = self.log.apps.read(number)
        except HoldfastError as error:
            _LOG.warning("the app's file of number %d can't be read: %s", number, error)
            return None
        with self._lock:
            if timeline == self.timeline:
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
        return self._newest.version

    def commit(self, version: Version) -> Commit | None:
        """The commit of a version; None if it doesn't exist, was cleaned, or is not a part of the history."""
        return self._commit(version, reported=False)

    def id_at(self, version: Version) -> str | None:
        """The id of a version's commit, also if only the next one is left; None if the log has neither."""
        if (commit := self.commit(version)) is not None:
            return commit.id
        following = self.commit(Version(version + 1))
        return None if following is None else following.previous

    def has(self, point: Point) -> bool:
        """Whether the history has a point that someone else takes for a part of it. Where they differ, the log decides.

        A point whose commit was cleaned is not a part of it any more.
        """
        if point == BEGINNING:
            return True
        is_kept = point.version in self._believed
        if self._has(point):
            if not is_kept and point.version < self._newest.version:
                self.was_set_back()  # the newest version may not follow it
            return True
        return self.was_set_back() and self._has(point)

    def _has(self, point: Point) -> bool:
        found = self._commit(point.version, reported=True)
        return (self.id_at(point.version) if found is None else found.id) == point.commit

    def _commit(self, version: Version, *, reported: bool) -> Commit | None:
        while True:
            timeline = self.timeline
            commit = self._read(version)
            if commit is None or version in self._believed:
                return commit
            believed = reported or self._is_believed(commit)
            if believed and self._follows_known(commit):
                if self._learned(commit, timeline):
                    return commit
            elif timeline == self.timeline and not (believed and self.was_set_back()):
                return None  # its driver had slept, or had begun on another timeline

    def _is_believed(self, commit: Commit) -> bool:
        """Whether a commit is a part of the history: the next one follows it, or it is the newest and follows another.

        A driver that slept may create a commit under a number that was cleaned meanwhile. It withdraws the commit
        unless it is killed.
        """
        version = Version(commit.version)
        known = self._newest.version  # before the look, after which another thread may learn of the next version
        following = self._read(Version(version + 1))
        if following is not None:
            return following.previous == commit.id
        return known <= version and self.log.chain.follows(commit)

    def _follows_known(self, commit: Commit) -> bool:
        """Whether a commit and those known here are one timeline, as far as they show it.

        Beyond the version after the newest one they don't: then the log is asked whether it still has that one.
        """
        with self._lock:
            version, newest = Version(commit.version), self._newest
            before, after = Version(version - 1), Version(version + 1)
            if version == newest.version:
                return commit.id == newest.commit
            if before == newest.version:
                return newest == BEGINNING or commit.previous == newest.commit
            if before in self._believed and self._commits[before].id != commit.previous:
                return False
            if after in self._believed and self._commits[after].previous != commit.id:
                return False
        return version < newest.version or newest == BEGINNING or not self.was_set_back()

    def was_set_back(self) -> bool:
        """Looks whether the log still has the newest version known here. If it doesn't, what is known is forgotten.

        A version that is gone while the log has later ones was cleaned.
        """
        with self._lock:
            newest, timeline = self._newest, self.timeline
        if newest == BEGINNING:
            return False
        here = self.log.commit(newest.version)
        if here is None:
            last = self.log.newest()
            if last is not None and last.version > newest.version:
                return False
            self._check_log()
        elif here.id == newest.commit:
            return False
        self._forget(newest, timeline)
        return True

    def _check_log(self) -> None:
        """Raises if there is no log any more: a volume that isn't mounted looks like a log without versions."""
        storage = self.log.storage
        if (found := Log.identify(storage)) != self.log.id:
            fact = f"{storage.place} has the log {found}, and this instance serves {self.log.id}."
            raise LogMissing(f"{fact} Restart it, or restore that log.")

    def _forget(self, newest: Point, timeline: int) -> None:
        with self._lock:
            if self.timeline != timeline:
                return
            self.timeline += 1
            self._newest = BEGINNING
            self._reads = {}
            for kept in (self._commits, self._believed, self._spans, self._apps):
                kept.clear()
            self.looks.forget()
        _LOG.warning(
            "the log at %s was set back: it no longer has commit %s of version %d. Versions that it doesn't have are "
            "abandoned: replicas keep what the log still has, and restore the rest.",
            self.log.storage.place,
            newest.commit,
            newest.version,
        )
        self.on_set_back()
        self.on_newest()

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
                reads = self._reads
                read = reads[version] = Future()
        if under_way is not None:
            return under_way.result(), True
        try:
            commit = self.log.commit(version)
        except BaseException as error:
            self._end_read(version, reads, None)
            read.set_exception(error)
            raise
        self._end_read(version, reads, commit)
        read.set_result(commit)
        return commit, False

    def _end_read(self, version: Version, reads: dict[Version, _Read], commit: Commit | None) -> None:
        with self._lock:
            del reads[version]
            if commit is not None and reads is self._reads:  # otherwise it began before the log was found set back
                self._commits[version] = commit
                while len(self._commits) > _KEPT_COMMITS:
                    self._believed.discard(self._commits.popitem(last=False)[0])

    def learn(self, version: Version, commit: str | None = None) -> Version:
        """The newest version, once the driver reports this one: one request to the log, or none if it is known.

        A driver that reports an older one than the newest known here may have started on a log that was set back.
        """
        began = self.looks.now()
        if version < self._newest.version:
            return self.newest()
        if commit is not None and not self.has(Point(version, commit)):
            return self._newest.version
        if version > self._newest.version:
            self._commit(version, reported=True)
        if version == self._newest.version:
            self.looks.looked(began)
        return self._newest.version

    def reaching(self, version: Version) -> Version:
        """The newest known version if that is far enough, else the newest there is."""
        return self._newest.version if self._newest.version >= version else self.newest()

    def newest(self) -> Version:
        """The newest committed version there is."""
        while True:
            began, timeline = self.looks.now(), self.timeline
            found = self.log.newest(at_least=self._newest.version)
            if found is None or found.version < self._newest.version:
                known = self._newest
                if self.was_set_back():
                    continue
                self.looks.looked(began)
                return known.version
            if not self._follows_known(found) and not self.was_set_back():
                continue  # another thread has learned of a newer one meanwhile
            if self._learned(found, timeline):
                self.looks.looked(began)
                return Version(found.version)

    def _learned(self, commit: Commit, timeline: int) -> bool:
        """Takes note of a commit of the history; False if the log was set back since this timeline."""
        with self._lock:
            read_app = commit.app > self._app.number or self._app.number not in self._apps
        app = self.app_at(commit.app) if read_app else None
        version = Version(commit.version)
        with self._lock:
            if timeline != self.timeline:
                return False
            if app is not None:
                self._app = app
            if version in self._commits:
                self._believed.add(version)
            first, last = self._spans.get(commit.app, (version, version))
            self._spans[commit.app] = min(first, version), max(last, version)
            if is_newer := version > self._newest.version:
                self._newest = commit.point
                self.looks.learned(version)
        if is_newer:
            self.on_newest()
        return True

    def follow(self) -> Version:
        """The newest version, searched from the newest known one: one request to the log if there is nothing new."""
        began = self.looks.now()
        while self.commit(Version(self._newest.version + 1)) is not None:
            pass
        self.looks.looked(began)
        return self._newest.version
