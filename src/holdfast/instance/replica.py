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
from types import MappingProxyType

from holdfast.errors import Closed, DamagedObject, ErrorCategory, HoldfastError
from holdfast.instance import snapshot_loading
from holdfast.instance.events import Events
from holdfast.instance.log_reader import ForeignState, VolatileChangesGone
from holdfast.instance.next_step import ApplySegment, LoadSnapshot, Unreachable, Wait, next_step
from holdfast.instance.overlay import Overlay
from holdfast.instance.read_views import ReadView, StoreBytes, VersionNotAvailable
from holdfast.instance.replica_disk import VersionStamp
from holdfast.instance.replica_state import ReplicaSettings, ReplicaState
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.run import Run, index_together, runs_of
from holdfast.instance.state_dir import GarbledStateFile, TaskDirectory, remove, usable
from holdfast.instance.task_engines import PinnedView
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing
from holdfast.log.segments import Part, SegmentRef
from holdfast.stores.engines.base import Changes, DamagedState, Mark
from holdfast.stores.layouts.due import Due, may_be_due, next_due
from holdfast.words import NOTHING, Version

__all__ = ["Replica", "ReplicaSettings", "VersionUnreachable"]

_LOG = logging.getLogger(__name__)
_ROOM = 16 << 20
_LOOK = 0.05
TIDY = 8
"""A replica tidies itself every time it has applied this many versions, even if no loop does."""
_ASIDE_SECONDS = 60.0
"""A snapshot that could not be used is tried again by a catch-up that starts this much later: it may be back."""
_WIPES = 3
"""A replica that has to start over more often than this while it catches up has a cause that wiping doesn't fix."""


class VersionUnreachable(HoldfastError):
    """The log no longer has what leads to a version."""

    category = ErrorCategory.DATA


class Replica(ReplicaState):
    """One task's stores. Any thread may read; threads that catch up, flush or save a snapshot wait for each other."""

    _set_aside: Mapping[Version, float] = MappingProxyType({})
    """Snapshots that could not be used, and when."""

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

        With `pause_at` it returns on the way there, at that version or where a snapshot beyond it leads.
        """
        if self._at >= to and self.published.version is not None:
            return
        report = report or self.report or RestoreReporter(Events(keep=1), self.task, self.stores)
        with self._advancing:
            recently = self._clock.monotonic() - _ASIDE_SECONDS
            self._set_aside = {version: at for version, at in self._set_aside.items() if at > recently}
            next_there = True
            wipes = 0
            pause_at = to if pause_at is None else min(to, pause_at)
            while True:
                self.check_open()
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
                    wipes += 1
                    if wipes > _WIPES:
                        raise
                    self._start_over(error)
                    next_there = True
                if next_there and self._at >= pause_at:
                    return

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
            self.published.advance(overlay.with_version(version, runs), stamp.now)
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
                    self.published.move(empty, pinned, stamp.now)
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

    # Snapshots

    @contextlib.contextmanager
    def saved(self) -> Iterator[tuple[Mark, int, TaskDirectory, PinnedView]]:
        """A checkpoint of the engines between two versions, in `home.saving`, for the length of the block.

        With the bytes of the segments that led to it, and a view of the same version.
        """
        with self._writing:
            self.flush_overlay()
            disk = self._disk
            mark = None if disk is None else disk.engines.mark()
            if disk is None or mark is None or mark.applying is not None or mark.version == NOTHING:
                raise Closed(f"task {self.task} has nothing complete to save yet. Try again when it is restored.")
            with usable(self._home.path):
                remove(self._home.saving)
                disk.engines.checkpoint(self._home.saving)
            applied_bytes, pinned = disk.applied_bytes, disk.engines.pin(mark.version)
        try:
            yield mark, applied_bytes, self._home, pinned
        finally:
            pinned.release()
            remove(self._home.saving)

    def _snapshots(self) -> list[Version]:
        found = self._log_reader.log.snapshots.versions(self.task)
        return [version for version in found if version not in self._set_aside]

    def _load(self, version: Version, report: RestoreReporter) -> None:
        """Replaces the state here by a snapshot. One that turns out damaged or incomplete is set aside for a while."""
        log = self._log_reader.log
        try:
            manifest = log.snapshots.manifest(self.task, version)
            if manifest is None or not manifest.fits(self._specs):
                self._put_aside(version)
                return
            load = snapshot_loading.download(self._log_reader, manifest, self._home, report, self.check_open)
            with self._writing:
                self._shut()
                engines = snapshot_loading.adopt(log.id, manifest, load, self._home, self._specs, self._resources)
                self._use(engines, applied_bytes=manifest.applied_bytes, fresh=True)
        except (DamagedObject, DamagedState, ObjectMissing) as error:
            self._put_aside(version)
            self._warn(error, f"the snapshot of version {version} is not used")
            if self._disk is None:
                self._start_over(None)
            return
        if report.under_way:
            with self.published.read_view(version) as view:
                report.batch(version, {store: snapshot_loading.entries_in(view, store) for store in self.stores})

    def _put_aside(self, version: Version) -> None:
        self._set_aside = {**self._set_aside, version: self._clock.monotonic()}

    # Reading

    def read_view(self, version: Version | None = None, wait: float = 0.0) -> ReadView:
        """The newest version, or exactly the given one. If the log has that version, the replica is caught up first."""
        if version is not None:
            self._wait_for(version, wait)
        return self.published.read_view(version)

    def due(self, version: Version, wait: float = 0.0) -> dict[str, Due]:
        """By store, what is due next at exactly this version. No task changes a store that was removed."""
        specs = [spec for spec in self._specs if spec.removed is None and may_be_due(spec)]
        if not specs:
            return {}
        with self.read_view(version, wait) as view:
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
        if self.published.version is not None and self.published.version >= version:
            return
        if self._log_reader.newest_known < version and self._log_reader.commit(version) is None:
            self._refuse_behind(version, "the log has no such version")
        while not self.published.wait_for(version, 0):
            # A thread that moves the replica may take long; this reader waits no longer than `wait`.
            if self._advancing.acquire(blocking=False):
                try:
                    self.catch_up(version)
                finally:
                    self._advancing.release()
                self._refuse_behind(version, "it is being restored")
                continue
            left = deadline - self._clock.monotonic()
            if not self.published.wait_for(version, min(_LOOK, left)) and left <= 0:
                self._refuse_behind(version, "it is still catching up")

    def _refuse_behind(self, version: Version, why: str) -> None:
        """Refuses a version, unless the replica has come to it meanwhile: another thread may move it at any time."""
        held = self.published.range
        if held is None or held[1] < version:
            raise VersionNotAvailable.of(self.task, version, held, why)
