"""A replica: one task's stores on one machine, brought forward by applying what the log says.

It consists of engines at version `a` and an overlay of the versions after `a`. Catching up puts a version into the
overlay, which costs little; flushing the overlay, in the background, writes several versions to the engines in one go.
A version that is too large for the overlay, and the many versions of a restore, go straight to the engines, while
readers keep the view that was pinned before.

Two locks, always taken in this order: `_advancing` by whoever moves the replica to another version, `_writing` by
whoever writes to the engine. A flush takes only the second, so the replica advances while it flushes. All that needs
them is in this one class, hence its length; the rest is beside it: `held`, `ondisk`, `loading`, `steps`, `source`.
"""

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Closed, DamagedObject, ErrorCategory, HoldfastError
from holdfast.instance import snapshot_loading
from holdfast.instance.events import Events, ProblemEvent
from holdfast.instance.log_reader import ForeignState, LogReader, TaskLogReader
from holdfast.instance.next_step import ApplySegment, LoadSnapshot, Unreachable, Wait, next_step
from holdfast.instance.overlay import Overlay
from holdfast.instance.read_views import PublishedVersions, ReadView, VersionNotAvailable
from holdfast.instance.replica_disk import ReplicaDisk, VersionStamp, clocks_of
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.state_dir import GarbledStateFile, TaskDirectory, remove, usable
from holdfast.instance.task_engines import TaskEngines, engine_names
from holdfast.log.commits import Commit
from holdfast.log.objects import ObjectMissing
from holdfast.log.snapshots import Manifest
from holdfast.stores.engines.base import Changes, DamagedState, Mark, Resources
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
_ROOM = 16 << 20
_LOOK = 0.05
_TIDY = 8
"""After so many versions a replica that nobody tidies does so itself."""
_OLDER_SECONDS = 30.0
"""How long versions before the last flush stay readable at most."""
_WIPES = 3
"""A replica that has to begin anew more often than this within one catching up has a cause that wiping doesn't cure."""


class VersionUnreachable(HoldfastError):
    """The log no longer has what leads to a version."""

    category = ErrorCategory.DATA


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """How much a replica keeps in memory, and how often it writes to disk."""

    overlay_bytes: int = 32 << 20
    batch_bytes: int = 16 << 20
    flush_seconds: float = 30.0
    flush_versions: int = 64


class Replica:
    """One task's stores. Any thread may read; threads that catch up, flush or save a snapshot wait for each other."""

    def __init__(
        self,
        home: TaskDirectory,
        source: LogReader,
        specs: Sequence[StoreSpec],
        resources: Resources,
        events: Events,
        settings: ReplicaSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.task: TaskId = home.task
        self.stores = [spec.name for spec in specs]
        self.engine = "+".join(engine_names([spec for spec in specs if spec.durable]))
        self.published = PublishedVersions(home.task)
        self.settings = settings or ReplicaSettings()
        self._home = home
        self._source = TaskLogReader(source, home.task, self.stores)
        self._specs = list(specs)
        self._resources = resources
        self._events = events
        self._clock = clock
        self._advancing = threading.RLock()
        self._writing = threading.RLock()
        self._publishing = threading.Lock()
        self._stopping = threading.Event()
        self._disk: ReplicaDisk | None = None
        self._moved_at = self._clock.monotonic()
        self._at = NOTHING
        self._commit = ""
        self._spoilt: set[Version] = set()
        self.openings = 0
        self.opened_at: Version | None = None
        self.applied_bytes = 0
        """Bytes of segments applied since it was first opened, at version `opened_at`."""

    @property
    def _base(self) -> TaskEngines | None:
        disk = self._disk
        return None if disk is None else disk.base

    # Coming and going

    @property
    def version(self) -> Version:
        """How far the replica is; `held.version` says what of it may be read."""
        return self._at

    @property
    def is_open(self) -> bool:
        return self._disk is not None

    def open(self, *, anew: bool = False) -> None:
        """Opens what is on disk, or empties the folder where that is of no use. Never an end: the log has it all.

        One that is open stays as it is, unless `anew`: a reader may have opened it a moment ago, and stands on it.
        """
        with self._advancing, self._writing:
            if self._disk is not None and not anew:
                return
            self._check_stopping()
            self._shut()
            try:
                self._home.read_checkpoint()
                self._settle(self._open_base())
            except (DamagedState, GarbledStateFile, ForeignState) as error:
                self._begin_anew(error)

    def close(self) -> None:
        """Stops what is under way, then writes what the engine still lacks and closes it."""
        self._stopping.set()
        with self._advancing, self._writing:
            try:
                self.flush_overlay()
            except HoldfastError as error:
                _LOG.warning("task %s stops without its last flush: %s Nothing is lost.", self.task, error)
            self._shut()
            self._home.close()

    def rebuild(self, cause: HoldfastError) -> None:
        """Begins anew because what is here was found damaged; whoever moves the replica then restores it."""
        with self._advancing:
            self._check_stopping()
            self._begin_anew(cause)

    def recover(self, opening: int) -> bool:
        """After a failed write: opens the engine anew once there is room, since RocksDB refuses all later writes.

        `opening` is what `openings` was before the write; if it was opened anew since, nothing is to be done. Until
        there is room readers keep what is held. Says whether it did; whoever moves the replica then catches it up.
        """
        with self._advancing, self._writing:
            if opening != self.openings:
                return False
            overlay = self.published.overlay
            needed = _ROOM + 2 * (0 if overlay is None else overlay.dirty_bytes)
            if shutil.disk_usage(self._home.path).free < needed:
                return False
            self.open(anew=True)
            return True

    def check_open(self) -> None:
        """Raises Closed once the replica is being stopped."""
        self._check_stopping()

    def stop_moving(self) -> None:
        """Makes a catching up that is under way end soon, with Closed."""
        self._stopping.set()

    # Moving

    def catch_up(self, to: Version, report: RestoreReporter | None = None) -> None:
        """Brings the replica to `to`, which the log must have. Returns at once if it is there already."""
        if self._at >= to and self.published.version is not None:
            return
        report = report or RestoreReporter(Events(keep=1), self.task, self.stores)
        with self._advancing:
            next_there = True
            wipes = 0
            while True:
                self._check_stopping()
                if self._disk is None:
                    self.open()
                looking = self._at == NOTHING or not next_there
                step = next_step(self._at, to, self._snapshots() if looking else (), next_there=next_there)
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
                            self._load(version, report)
                            next_there = True
                        case ApplySegment():
                            next_there = self._apply(to, report)
                except (DamagedState, ForeignState) as error:
                    wipes += 1
                    if wipes > _WIPES:
                        raise
                    self._begin_anew(error)
                    next_there = True

    def flush_overlay(self) -> None:
        """Writes what the overlay holds to the engine, several versions in one go, and flushes."""
        with self._writing:
            overlay, disk = self.published.overlay, self._disk
            if disk is None:
                return
            if overlay is not None and overlay.version > overlay.base:
                through = overlay.version
                unflushed = overlay.unflushed()
                parts = ((store, part) for store, run in unflushed.items() for part in run.changes())
                disk.apply(parts, through)
                pinned = disk.base.pin(through)
                with self._publishing:
                    newest = self.published.overlay
                    assert newest is not None
                    lighter = newest.flushed(unflushed, through).tidied().within(self.settings.overlay_bytes)
                    self.published.move(lighter, pinned)
                    self._moved_at = self._clock.monotonic()
            disk.flush()

    def tidy(self) -> None:
        """Merges what has piled up in the overlay and keeps it within its bounds; readers notice nothing.

        Where no new version comes for long, those before the last flush are let go of, with the files they keep.
        """
        with self._publishing:
            if self._clock.monotonic() - self._moved_at >= _OLDER_SECONDS:
                self.published.forget_older()
            overlay = self.published.overlay
            if overlay is not None and (overlay.untidy or overlay.nbytes > self.settings.overlay_bytes):
                overlay = overlay.tidied()
                if not self._has_room_beside(overlay, overlay.newest_bytes):
                    overlay = overlay.compacted()
                self.published.advance(overlay.within(self.settings.overlay_bytes))

    def flush_due(self) -> bool:
        """Whether the engine is too far behind: by versions, by time, or by what the overlay has to carry."""
        overlay, disk = self.published.overlay, self._disk
        if overlay is None or disk is None:
            return False
        behind = self._at - disk.flushed
        late = behind > 0 and disk.late(self.settings.flush_seconds)
        return (
            late or behind >= self.settings.flush_versions or not self._has_room_beside(overlay, overlay.newest_bytes)
        )

    def _has_room_beside(self, overlay: Overlay, more: int) -> bool:
        """Whether the overlay could take `more` bytes without giving up what the engine lacks.

        Flushing rarely is cheap: of a key that many versions changed only the newest value is written. So it is
        done in time for another version like the last, and not before (decision 0005).
        """
        return overlay.dirty_bytes + more <= self.settings.overlay_bytes

    @contextlib.contextmanager
    def saved(self) -> Iterator[tuple[Mark, "TaskDirectory"]]:
        """A checkpoint of the engine between two versions, in `home.saving`, for the length of the block."""
        with self._writing:
            self.flush_overlay()
            base = self._base
            mark = None if base is None else base.mark()
            if base is None or mark is None or mark.applying is not None or mark.version == NOTHING:
                raise Closed(f"task {self.task} has nothing whole to save yet. Try again when it is restored.")
            with usable(self._home.path):
                remove(self._home.saving)
                base.checkpoint(self._home.saving)
        try:
            yield mark, self._home
        finally:
            remove(self._home.saving)

    # Reading

    def read_view(self, version: Version | None = None, wait: float = 0.0) -> ReadView:
        """The newest version, or just the one asked for, caught up with first if the log has it."""
        if version is not None:
            self._reach(version, wait)
        return self.published.read_view(version)

    def probe(self) -> None:
        """Reads each store once, so that a store that can't be read is found before anyone needs it."""
        with self.published.read_view() as view:
            for store in self.stores:
                next(iter(view.scan(store, b"", None)), None)

    def memory_bytes(self) -> int:
        overlay = self.published.overlay
        return 0 if overlay is None else overlay.nbytes

    def approximate_count(self, store: str) -> int:
        base = self._base
        return 0 if base is None else base.approximate_count(store)

    def disk_bytes(self) -> int:
        base = self._base
        return 0 if base is None else base.disk_bytes()

    def _reach(self, version: Version, wait: float) -> None:
        deadline = self._clock.monotonic() + wait
        if (self.published.version or NOTHING) >= version and self.published.version is not None:
            return
        if self._source.newest_known < version and self._source.commit(version) is None:
            raise VersionNotAvailable(self.task, version, self.published.range, "the log has no such version")
        while not self.published.wait_for(version, 0):
            # Whoever is moving the replica may be at it for long; this reader waits no longer than it was told to.
            if self._advancing.acquire(blocking=False):
                try:
                    self.catch_up(version)
                finally:
                    self._advancing.release()
                if self.published.version is None or self.published.version < version:
                    raise VersionNotAvailable(self.task, version, self.published.range, "it is being restored")
                continue
            left = deadline - self._clock.monotonic()
            if not self.published.wait_for(version, min(_LOOK, left)) and left <= 0:
                raise VersionNotAvailable(self.task, version, self.published.range, "it is still catching up")

    # The steps

    def _apply(self, to: Version, report: RestoreReporter) -> bool:
        """Applies the next version, or several; False when the log no longer has it."""
        commit = self._source.commit(Version(self._at + 1))
        if commit is None:
            return False
        if self._commit and commit.previous != self._commit:
            raise ForeignState(
                f"version {self._at} of task {self.task} is commit {self._commit}, and the log's version "
                f"{commit.version} follows {commit.previous}."
            )
        try:
            overlay = self.published.overlay
            few = to - self._at <= self.settings.flush_versions
            small = self._source.estimated_bytes(commit) <= self.settings.overlay_bytes // 2
            # A write-through that failed half way leaves later values in the engine; only going on cures that.
            ahead = self._base is not None and self._base.target > self._at
            if overlay is not None and few and small and not (ahead and overlay.base == overlay.version):
                self._stage(commit, report)
            else:
                self._write_through(self._source.gather(commit, to, self.settings.batch_bytes), to, report)
        except ObjectMissing:
            return False
        return True

    def _stage(self, commit: Commit, report: RestoreReporter) -> None:
        """Puts a version into the overlay; when that is full, flushes it first."""
        changes: dict[str, list[Changes]] = {}
        for store, part in self._source.changes(commit):
            changes.setdefault(store, []).append(part)
        if (overlay := self.published.overlay) is not None and not self._has_room_beside(overlay, 0):
            self.flush_overlay()
        version = Version(commit.version)
        with self._publishing:
            overlay = self.published.overlay
            assert overlay is not None
            assert self._disk is not None
            stamp = VersionStamp.of(commit)
            self._disk.know(version, stamp)
            self.published.advance(overlay.with_version(version, changes), stamp.now)
            self._at, self._commit = version, commit.id
        self.applied_bytes += self._source.state_bytes(commit)
        if version % _TIDY == 0:
            self.tidy()
        if report.under_way:
            report.batch(version, {store: sum(len(part) for part in parts) for store, parts in changes.items()})

    def _write_through(self, commits: Sequence[Commit], to: Version, report: RestoreReporter) -> None:
        """Writes versions straight to the engine; readers stay where they are until the last is whole.

        Each pinned keeps the write buffers it was taken with in memory. On the way to `to` nobody asks for the
        versions passed, so those are let go of.
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
            stamp = VersionStamp.of(last)
            disk.know(version, stamp)
            disk.apply(self._stoppable(self._source.stream(commits), counts), version)
            self._at, self._commit = version, last.id
            mark = disk.base.mark()
            if mark is not None and mark.applying is None:
                with self._publishing:
                    self.published.move(Overlay.starting(version, self.stores), disk.base.pin(version), stamp.now)
                    if version < to:
                        self.published.forget_older()
            if disk.late(self.settings.flush_seconds) or version - disk.flushed >= self.settings.flush_versions:
                disk.flush()
        self.applied_bytes += sum(self._source.state_bytes(commit) for commit in commits)
        if report.under_way:
            report.batch(version, counts)

    def _stoppable(
        self, changes: Iterable[tuple[str, Changes]], counts: dict[str, int]
    ) -> Iterator[tuple[str, Changes]]:
        for store, part in changes:
            self._check_stopping()
            counts[store] += len(part)
            yield store, part

    def _load(self, version: Version, report: RestoreReporter) -> None:
        """Loads a snapshot in place of what is here. One that turns out bad is left aside from then on."""
        try:
            manifest = self._source.manifest(version)
            if manifest is None:
                self._spoilt.add(version)
                return
            snapshot_loading.download(self._source, manifest, self._home, self._on_bytes(manifest, report))
            with self._writing:
                self._shut()
                self._settle(
                    snapshot_loading.adopt(self._source, manifest, self._home, self._specs, self._resources), fresh=True
                )
        except (DamagedObject, DamagedState, ObjectMissing) as error:
            self._spoilt.add(version)
            self._warn(error, f"the snapshot of version {version} is left aside")
            self._begin_anew(None)
            return
        if report.under_way:
            with self.published.read_view(version) as view:
                report.batch(version, {store: snapshot_loading.entries_in(view, store) for store in self.stores})

    def _on_bytes(self, manifest: Manifest, report: RestoreReporter) -> Callable[[int], None]:
        done = 0

        def on_bytes(count: int) -> None:
            nonlocal done
            self._check_stopping()
            done += count
            if report.under_way:
                report.loading(Version(manifest.version), done, manifest.bytes)

        return on_bytes

    # Small parts

    def _open_base(self) -> TaskEngines:
        return TaskEngines.open(self._home.data, self._home.volatile, self._specs, self._resources)

    def _settle(self, base: TaskEngines, *, fresh: bool = False) -> None:
        """Takes over an opened base, if it is a part of this log's history. `fresh`: it didn't come from this disk."""
        try:
            mark = base.mark()
            verdict = self._source.examine(mark, self._home.path)
            now = clocks_of(mark, self._source.commit)
            if fresh or mark is None:
                self._source.begin_without([spec.name for spec in self._specs if not spec.durable])
            if verdict.at == verdict.whole_from:
                overlay = Overlay.starting(verdict.at, self.stores, complete=mark is None)
                with self._publishing:
                    self.published.move(overlay, base.pin(verdict.at), now)
        except BaseException:
            self.published.clear()
            base.close()
            raise
        disk = self._disk = ReplicaDisk(
            base, self._home, self.stores, self._source.specs, self._source.log_id, self._clock
        )
        disk.flushed = self._at = verdict.at
        disk.know(self._at, VersionStamp("" if mark is None else mark.commit, now, app=0))
        self.openings += 1
        if self.opened_at is None:
            self.opened_at = verdict.at
        self._commit = "" if mark is None else mark.commit

    def _begin_anew(self, cause: HoldfastError | None) -> None:
        """Empties the folder and opens it again. What was in it comes from the log."""
        with self._writing:
            if cause is not None:
                self._warn(cause, "the folder is emptied and restored from the log")
            self._shut()
            self._home.wipe()
            self._settle(self._open_base())

    def _shut(self) -> None:
        with self._publishing:
            self.published.clear()
        disk, self._disk = self._disk, None
        self._at, self._commit = NOTHING, ""
        if disk is not None:
            disk.base.close()

    def _snapshots(self) -> list[Version]:
        return [version for version in self._source.snapshots() if version not in self._spoilt]

    def _warn(self, error: HoldfastError, what: str) -> None:
        message = f"task {self.task}: {error} ({what})"
        _LOG.warning(message)
        name, category = type(error).__name__, error.category.value
        self._events.append(ProblemEvent("warning", str(self.task), name, category, message))

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Closed(f"task {self.task} is being stopped. Ask another instance.")
