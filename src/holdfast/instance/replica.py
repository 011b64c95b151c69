"""A replica: one task's stores on one machine, brought forward by applying the versions of the log.

It consists of engines at version `a` and an overlay of the versions after `a`. Catching up puts a version into the
overlay, which costs little; flushing the overlay, in the background, writes several versions to the engines in one go.
A version that is too large for the overlay, and the many versions of a restore, go straight to the engines, while
readers keep the view that was pinned before.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.events import Events
from holdfast.instance.next_step import ApplySegment, LoadSnapshot, Unreachable, Wait, next_step
from holdfast.instance.overlay import Overlay
from holdfast.instance.read_views import ReadView, StoreBytes, VersionNotAvailable
from holdfast.instance.replica_disk import VersionStamp
from holdfast.instance.replica_snapshots import ReplicaSnapshots
from holdfast.instance.replica_state import ReplicaSettings
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.run import Run, index_together, runs_of
from holdfast.instance.state_dir import GarbledStateFile
from holdfast.instance.task_log_reader import ForeignState, VolatileChangesGone
from holdfast.log.commits import Commit, Point
from holdfast.log.objects import ObjectMissing
from holdfast.log.segments import Part, SegmentRef
from holdfast.stores.engines.base import Changes, DamagedState
from holdfast.stores.layouts.due import Due, may_be_due, next_due
from holdfast.words import Version

__all__ = ["Replica", "ReplicaSettings", "VersionUnreachable"]

_LOG = logging.getLogger(__name__)
_ROOM = 16 << 20
_LOOK = 0.05
TIDY = 8
"""A replica tidies itself every time it has applied this many versions, even if no loop does."""
_WIPES = 3
"""A replica that has to start over more often than this while it catches up has a cause that wiping doesn't fix."""


class VersionUnreachable(HoldfastError):
    """The log no longer has what leads to a version."""

    category = ErrorCategory.DATA


class Replica(ReplicaSnapshots):
    """One task's stores. Any thread may read; threads that catch up, flush or save a snapshot wait for each other."""

    # Opening and closing

    def open(self, *, again: bool = False) -> None:
        """Opens the state on disk, or empties the folder if that state can't be used: the log has everything.

        A replica that is open stays as it is, unless `again`: a reader may have opened it a moment ago, and reads it.
        """
        with self._advancing, self._writing:
            if self._disk is not None and not again:
                return
            self.check_open()
            self._shut()
            try:
                checkpoint = self._home.read_checkpoint()
                self._use(self._open_engines(), applied_bytes=checkpoint.applied_bytes if checkpoint else 0)
            except (DamagedState, GarbledStateFile, ForeignState) as error:
                self._start_over(error)

    def close(self) -> None:
        """Stops work under way, then writes the changes that the engines still lack and closes them."""
        self._stopping.set()
        with self._advancing, self._writing:
            try:
                self.flush_overlay()
            except HoldfastError as error:
                _LOG.warning("task %s stops without its last flush: %s Nothing is lost.", self.task, error)
            self._shut()
            self._home.close()

    def rebuild(self, cause: HoldfastError) -> None:
        """Starts over because the state here is damaged; the updater then restores it."""
        with self._advancing:
            self.check_open()
            self._start_over(cause)

    def recover(self, opening: int) -> bool:
        """After a failed write: opens the engines again once there is room, since RocksDB refuses all later writes.

        `opening` is the value of `openings` before the write; if the replica was opened since, nothing is to be done.
        Until there is room, readers keep the published versions. Returns whether it was opened again; the updater then
        catches it up.
        """
        with self._advancing, self._writing:
            if opening != self.openings:
                return False
            overlay = self.published.overlay
            needed = _ROOM + 2 * (0 if overlay is None else overlay.dirty_bytes)
            if not self.has_lost_folder and shutil.disk_usage(self._home.path).free < needed:
                return False
            self.open(again=True)
            return True

    def stop_moving(self) -> None:
        """Makes a catch-up that is under way end soon, with Closed."""
        self._stopping.set()

    # Advancing

    def catch_up(self, to: Version, report: RestoreReporter | None = None, *, pause_at: Version | None = None) -> None:
        """Brings the replica to `to`, which the log must have. Returns at once if it is there already.

        With `pause_at` it returns on the way there, at that version or where a snapshot beyond it leads. It returns
        also where it finds that the log was set back: `to` may be a version that the log no longer has.
        """
        if self._at >= to and self.published.version is not None and not self.must_look_back:
            return
        report = report or self.report or RestoreReporter(Events(keep=1), self.task, self.stores)
        with self._advancing:
            self._try_again_later()
            next_there = True
            wipes = 0
            pause_at = to if pause_at is None else min(to, pause_at)
            while True:
                self.check_open()
                if self._look_back():
                    return
                if self._disk is None:
                    self.open()
                looking = self._at <= self.begin or not next_there
                snapshots = self._snapshots() if looking else ()
                step = next_step(self._at, to, snapshots, begin=self.begin, next_there=next_there)
                try:
                    match step:
                        case Wait():
                            return
                        case Unreachable(at, committed):
                            raise VersionUnreachable(
                                f"task {self.task} is at version {at} and should come to {committed}, but version "
                                f"{at + 1} isn't in the log any more and no snapshot leads past it. Restore the log "
                                "from a backup."
                            )
                        case LoadSnapshot(version):
                            if not report.under_way:  # a reader came before the updater
                                report.started(self._at, to)
                            self._load(version, report)
                            next_there = True
                        case ApplySegment():
                            next_there = self._apply(to, pause_at, report)
                except (DamagedState, ForeignState) as error:
                    if isinstance(error, ForeignState) and self._log_reader.was_set_back():
                        continue
                    wipes += 1
                    if wipes > _WIPES:
                        raise
                    self._start_over(error)
                    next_there = True
                if next_there and self._at >= pause_at:
                    return

    def _look_back(self) -> bool:
        """After the log was set back: keeps what the log has. Returns whether it was set back since the last look.

        A version that the log doesn't have is given up, with all that was published. What is on disk may be older, and
        then it is used; what isn't is in the log.
        """
        timeline = self._log_reader.timeline
        if self._timeline == timeline:
            return False
        self._source.look_back()
        if self._disk is not None:
            ahead = self._disk.engines.target > self._at
            kept = not self._commit or self._log_reader.id_at(self._at) == self._commit
            self.published.look_back()
            if ahead or not kept:
                self.open(again=True)
        self._timeline = timeline
        return True

    def _apply(self, to: Version, pause_at: Version, report: RestoreReporter) -> bool:
        """Applies the next version, or several up to `pause_at`; False when the log no longer has it."""
        commit = self._log_reader.commit(Version(self._at + 1))
        if commit is None:
            return False
        if self._commit and commit.previous != self._commit:
            raise ForeignState(
                f"version {self._at} of task {self.task} is commit {self._commit}, and the log's version "
                f"{commit.version} follows {commit.previous}."
            )
        self._home.drop_leftovers()
        try:
            overlay = self.published.overlay
            few = to - self._at <= self.settings.flush_versions
            small = self._source.estimated_bytes(commit) <= self.settings.overlay_bytes // 2
            # A direct write that failed half way leaves later values in the engines; only another one fixes that.
            ahead = self._engines is not None and self._engines.target > self._at
            to_overlay = overlay is not None and few and small and not (ahead and overlay.base == overlay.version)
            most = 0 if to_overlay else self.settings.batch_bytes
            commits = self._source.gather(commit, pause_at, most)
            if report.under_way:
                size = sum(each.state_bytes(self.task) for each in commits)
                self._log_reader.fetcher.bandwidth.take(size, self.check_open)
            if to_overlay:
                self._apply_to_overlay(commit, report)
            else:
                self._apply_to_engines(commits, to, report)
        except VolatileChangesGone as error:
            self._empty_volatile(error)
        except ObjectMissing:
            return False
        return True

    def _apply_to_overlay(self, commit: Commit, report: RestoreReporter) -> None:
        """Puts a version into the overlay, which is flushed first when it is full."""
        runs = self.changes_of(commit)
        index_together(list(runs.values()))
        if (overlay := self.published.overlay) is not None and not self._has_room(overlay, 0):
            self.flush_overlay()
        self._publish(commit, runs, VersionStamp.of(commit))
        if self._at % TIDY == 0:
            self.tidy()
        if report.under_way:
            report.batch(self._at, {store: len(run) for store, run in runs.items()})

    def changes_of(self, commit: Commit) -> dict[str, Run]:
        """What a version changes in the task's stores."""
        return runs_of(Version(commit.version), self._source.changes(commit))

    def parts_of(self, commit: Commit) -> list[tuple[SegmentRef, Part]]:
        """The parts of segments that `changes_of` reads."""
        return self._source.parts(commit)

    def _publish(self, commit: Commit, runs: Mapping[str, Run], stamp: VersionStamp) -> None:
        version = Version(commit.version)
        applied = self.applied_bytes + (commit.state_bytes(self.task) if runs else 0)
        with self._publishing:
            overlay = self.published.overlay
            assert overlay is not None
            assert self._disk is not None
            self._disk.know(version, stamp, applied)
            self.published.advance(overlay.with_version(version, runs), stamp)
            self._at, self._commit, self.applied_bytes = version, commit.id, applied

    def can_follow(self, commit: Commit) -> bool:
        """Whether the commit is the next version of a replica that is up to date, and fits into its overlay."""
        overlay = self.published.overlay
        if overlay is None or not self._is_next(commit):
            return False
        small = self._source.estimated_bytes(commit) <= self.settings.overlay_bytes // 2
        return small and self._has_room(overlay, 0)

    def follow(self, commit: Commit, runs: Mapping[str, Run], stamp: VersionStamp) -> None:
        """Publishes the next version, with its changes. A replica that has moved on meanwhile stays as it is.

        `stamp` is that of the commit, made once for all replicas.
        """
        if self._advancing.acquire(blocking=False):
            try:
                if self._is_next(commit):
                    self._publish(commit, runs, stamp)
            finally:
                self._advancing.release()

    def _is_next(self, commit: Commit) -> bool:
        engines, at = self._engines, self._at
        follows = commit.version == at + 1 and commit.previous == self._commit
        return follows and engines is not None and engines.target <= at and self.published.version == at

    def _apply_to_engines(self, commits: list[Commit], to: Version, report: RestoreReporter) -> None:
        """Writes versions straight to the engines; readers see the last of them when it is complete.

        Each pinned view keeps the write buffers it was taken with in memory. Nobody asks for the versions passed on
        the way to `to`, so those are given up.
        """
        counts: dict[str, int] = dict.fromkeys(self.stores, 0)
        last = commits[-1]
        version = Version(last.version)
        with self._writing:
            overlay = self.published.overlay
            if overlay is not None and overlay.version > overlay.base:
                self.flush_overlay()
            disk = self._disk
            assert disk is not None
            applied = self.applied_bytes + sum(commit.state_bytes(self.task) for commit in commits)
            stamp = VersionStamp.of(last)
            disk.know(version, stamp, applied)
            disk.apply(self._counted(self._source.stream(commits), counts), version)
            self._at, self._commit, self.applied_bytes = version, last.id, applied
            mark = disk.engines.mark()
            if mark is not None and mark.applying is None:
                pinned = disk.engines.pin(version)
                empty = Overlay.starting(version, {store: pinned.keys(store) for store in self.stores})
                with self._publishing:
                    self.published.move(empty, pinned, stamp)
                    if version < to:
                        self.published.forget_older()
                        self.published.held.end_all()
            if disk.late(self.settings.flush_seconds) or version - disk.flushed >= self.settings.flush_versions:
                disk.flush()
        if report.under_way:
            report.batch(version, counts)

    def _counted(self, changes: Iterable[tuple[str, Changes]], counts: dict[str, int]) -> Iterator[tuple[str, Changes]]:
        for store, part in changes:
            self.check_open()
            counts[store] += len(part)
            yield store, part

    # Reading

    def read_view(self, version: Version | None = None, wait: float = 0.0, commit: str | None = None) -> ReadView:
        """The newest version, or exactly the given one. If the log has that version, the replica is caught up first.

        With `commit`, only the version of that commit: one that the log has, whatever this replica has built on.
        """
        if version is None:
            return self.published.read_view()
        if commit is not None:
            if (found := self._published_of(version, commit)) is not None:
                return found
            if not self._log_reader.has(Point(version, commit)):
                self._refuse_other(version, commit, self._log_reader.id_at(version))
        while True:
            try:
                self._wait_for(version, wait)
                view = self.published.read_view(version)
            except VersionNotAvailable as error:
                if commit and error.gone and self._log_reader.was_set_back():
                    continue  # it was further on, on a timeline that is abandoned
                raise
            if commit is None or view.is_of(commit):
                return view
            view.close()
            if not self._log_reader.was_set_back():
                self._refuse_other(version, commit, view.commit)

    def _published_of(self, version: Version, commit: str) -> ReadView | None:
        """A published view of a commit: no look at the log is needed, which may not answer."""
        with contextlib.suppress(VersionNotAvailable):
            view = self.published.read_view(version)
            if view.is_of(commit):
                return view
            view.close()
        return None

    def _refuse_other(self, version: Version, commit: str, other: str | None) -> NoReturn:
        why = f"commit {commit} of it was asked for, and the log has {other}: it was set back. Restart the app"
        raise VersionNotAvailable.of(self.task, version, self.published.range, why)

    def due(self, version: Version, wait: float = 0.0, commit: str | None = None) -> dict[str, Due]:
        """By store, what is due next at exactly this version. No task changes a store that was removed."""
        specs = [spec for spec in self._specs if spec.removed is None and may_be_due(spec)]
        if not specs:
            return {}
        with self.read_view(version, wait, commit) as view:
            return {spec.name: next_due(spec, StoreBytes(view, spec.name), view.now) for spec in specs}

    def probe(self) -> None:
        """Reads each store once, so that a store that can't be read is found before anyone needs it.

        The replica is restored then: what a load of a snapshot has left is removed.
        """
        with self._advancing:
            self._home.drop_leftovers()
        with self.published.read_view() as view:
            for store in self.stores:
                next(iter(view.scan(store, b"", None)), None)

    def _wait_for(self, version: Version, wait: float) -> None:
        deadline = self._clock.monotonic() + wait
        if not self._is_at(version):
            self._check_committed(version)
        while not self._is_at(version):
            # A thread that moves the replica may take long; this reader waits no longer than `wait`.
            if self._advancing.acquire(blocking=False):
                try:
                    self._look_back()
                    self._check_committed(version)
                    timeline = self._timeline
                    self.catch_up(version)
                finally:
                    self._advancing.release()
                if timeline == self._timeline == self._log_reader.timeline:
                    self._refuse_behind(version, "it is being restored")
                continue
            left = deadline - self._clock.monotonic()
            if self.must_look_back:  # the versions that are published don't count
                self._stopping.wait(max(0.0, min(_LOOK, left)))
            else:
                self.published.wait_for(version, min(_LOOK, left))
            if left <= 0 and not self._is_at(version):
                self._refuse_behind(version, "it is still catching up")

    def _check_committed(self, version: Version) -> None:
        if self._log_reader.newest_known < version and self._log_reader.commit(version) is None:
            self._refuse_behind(version, "the log has no such version")

    def _is_at(self, version: Version) -> bool:
        """Whether it has come to a version that can be read."""
        published = self.published.version
        return published is not None and published >= version and not self.must_look_back

    def _refuse_behind(self, version: Version, why: str) -> None:
        """Refuses a version, unless the replica has come to it meanwhile: another thread may move it at any time."""
        held = self.published.range
        if held is None or held[1] < version:
            raise VersionNotAvailable.of(self.task, version, held, why)
