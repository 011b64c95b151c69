"""The state of a replica: its engines on disk, the overlay over them, and the versions that it publishes to readers.

Three locks, always taken in this order: `_advancing` to move the replica to another version, `_writing` to write to the
engines, `_publishing` to exchange what readers see. Flushing the overlay takes only the last two, so the replica
advances meanwhile.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Closed, HoldfastError
from holdfast.instance.events import Events, ProblemEvent
from holdfast.instance.log_reader import LogReader
from holdfast.instance.overlay import Overlay
from holdfast.instance.read_views import BEFORE_TIME, PublishedVersions
from holdfast.instance.replica_disk import ReplicaDisk, VersionStamp
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.state_dir import TaskDirectory, remove
from holdfast.instance.task_engines import TaskEngines
from holdfast.instance.task_log_reader import TaskLogReader
from holdfast.log.commits import Commit
from holdfast.stores.access import Now
from holdfast.stores.engines.base import Resources
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
_OLDER_SECONDS = 30.0
"""How long versions before the last flush stay readable at most."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """How much a replica keeps in memory, and how often it writes to disk."""

    overlay_bytes: int = 32 << 20
    batch_bytes: int = 16 << 20
    flush_seconds: float = 30.0
    flush_versions: int = 64


class ReplicaState:
    """What a replica has and how that is opened, published, flushed and closed."""

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
        self.durable_stores = {spec.name: spec.after for spec in specs if spec.durable}
        """The stores that snapshots have, each with the version after which it began."""
        self.begin = Version(min((spec.after for spec in specs), default=NOTHING))
        """The version at which all its stores are empty; the first one it can be at."""
        self.published = PublishedVersions(home.task)
        self.settings = settings or ReplicaSettings()
        self._home = home
        self._log_reader = source
        self._source = TaskLogReader(source, home.task, specs)
        self._specs = list(specs)
        self._resources = resources
        self._events = events
        self._clock = clock
        self._advancing = threading.RLock()
        self._writing = threading.RLock()
        self._publishing = threading.Lock()
        self._stopping = threading.Event()
        self._disk: ReplicaDisk | None = None
        self._flushed_at = self._clock.monotonic()
        self._at = NOTHING
        self._commit = ""
        self._timeline = source.timeline
        """The timeline of the reader in which the log had the commit."""
        self.report: RestoreReporter | None = None
        """Where restores are reported, also those that a reader has to wait for."""
        self.openings = 0
        """How often it was opened."""
        self.applied_bytes = 0
        """The bytes of the segments that led to its version, those that earlier processes applied included."""

    @property
    def version(self) -> Version:
        """How far the replica is; `published.version` says how far it can be read."""
        return self._at

    @property
    def timeline(self) -> int:
        """The timeline of the reader in which it has looked for its version."""
        return self._timeline

    @property
    def must_look_back(self) -> bool:
        """Whether the log was set back since this replica has looked whether the log has its version.

        Nothing is read until `catch_up` has.
        """
        return self._timeline != self._log_reader.timeline

    @property
    def is_open(self) -> bool:
        return self._disk is not None

    @property
    def standing(self) -> tuple[Version, str]:
        """Its version, and the commit that it takes for that version's."""
        with self._publishing:
            return self._at, self._commit

    def check_open(self) -> None:
        """Raises Closed once the replica is being stopped."""
        if self._stopping.is_set():
            raise Closed(f"task {self.task} is being stopped. Ask another instance.")

    def commit_of(self, version: Version) -> Commit | None:
        """A commit of the log, which all replicas of the instance share."""
        return self._log_reader.commit(version)

    def memory_bytes(self) -> int:
        overlay = self.published.overlay
        return 0 if overlay is None else overlay.nbytes

    @property
    def specs(self) -> Sequence[StoreSpec]:
        """The stores that it was opened with."""
        return self._specs

    def disk_bytes(self) -> int:
        engines = self._engines
        return 0 if engines is None else engines.disk_bytes()

    @property
    def has_lost_folder(self) -> bool:
        """Whether someone has deleted its folder, or one of an engine, while it is open."""
        engines = self._engines
        return engines is not None and not (self._home.is_there and engines.folders_are_there)

    @property
    def folder(self) -> Path:
        return self._home.path

    @property
    def _engines(self) -> TaskEngines | None:
        disk = self._disk
        return None if disk is None else disk.engines

    # Flushing

    def flush_overlay(self) -> None:
        """Writes the overlay's changes to the engines, several versions in one go, and flushes the engines."""
        with self._writing:
            overlay, disk = self.published.overlay, self._disk
            if disk is None:
                return
            if overlay is not None and overlay.version > overlay.base:
                through = overlay.version
                unflushed = overlay.unflushed()
                parts = ((store, part) for store, run in unflushed.items() for part in run.changes())
                disk.apply(parts, through)
                pinned = disk.engines.pin(through)
                with self._publishing:
                    newest = self.published.overlay
                    assert newest is not None
                    lighter = newest.flushed(unflushed, through).tidied().within(self.settings.overlay_bytes)
                    self.published.move(lighter, pinned)
                    self._flushed_at = self._clock.monotonic()
            disk.flush()

    def tidy(self) -> None:
        """Merges runs that have piled up in the overlay and keeps it within its bounds; readers see no difference.

        Where no new version comes for long, versions before the last flush are given up, with the files they keep.
        """
        with self._publishing:
            if self._clock.monotonic() - self._flushed_at >= _OLDER_SECONDS:
                self.published.forget_older()
            overlay = self.published.overlay
            if overlay is not None and (overlay.untidy or overlay.nbytes > self.settings.overlay_bytes):
                overlay = overlay.tidied()
                if not self._has_room(overlay, overlay.newest_bytes):
                    overlay = overlay.compacted()
                self.published.advance(overlay.within(self.settings.overlay_bytes))

    def flush_due(self) -> bool:
        """Whether the engines are too far behind: by versions, by time, or by the size of the overlay."""
        overlay, disk = self.published.overlay, self._disk
        if overlay is None or disk is None:
            return False
        behind = self._at - disk.flushed
        late = behind > 0 and disk.late(self.settings.flush_seconds)
        return late or behind >= self.settings.flush_versions or not self._has_room(overlay, overlay.newest_bytes)

    def _has_room(self, overlay: Overlay, more: int) -> bool:
        """Whether the overlay could take `more` bytes without giving up changes that the engines lack.

        Flushing rarely is cheap: of a key that many versions changed only the newest value is written. So it is done
        in time for another version like the last, and not before (decision 0005).
        """
        return overlay.dirty_bytes + more <= self.settings.overlay_bytes

    # Opening and closing

    def _open_engines(self) -> TaskEngines:
        self._home.keep()
        return TaskEngines.open(self._home.data, self._home.volatile, self._specs, self._resources)

    def _use(self, engines: TaskEngines, *, applied_bytes: int, fresh: bool = False) -> None:
        """Uses opened engines, if their state is a part of this log's history. `fresh`: it isn't from this disk."""
        timeline = self._log_reader.timeline  # before the look at the log
        try:
            mark = engines.mark()
            verdict = self._source.examine(mark, self._home.path)
            now = BEFORE_TIME if mark is None else Now(mark.wall, mark.event)
            stamp = VersionStamp("" if mark is None else mark.commit, now, app=0)
            if fresh or mark is None:
                self._source.begin_without([spec.name for spec in self._specs if not spec.durable])
            if verdict.at == verdict.whole_from:
                pinned = engines.pin(verdict.at)
                overlay = Overlay.starting(verdict.at, {store: pinned.keys(store) for store in self.stores})
                with self._publishing:
                    self.published.move(overlay, pinned, stamp)
        except BaseException:
            self.published.clear()
            engines.close()
            raise
        disk = ReplicaDisk(engines, self._home, self.stores, self._source.specs, self._log_reader.log.id, self._clock)
        self._disk = disk
        disk.flushed = self._at = verdict.at
        disk.applied_bytes = self.applied_bytes = applied_bytes
        disk.know(self._at, stamp, applied_bytes)
        self.openings += 1
        self._commit = stamp.commit
        self._timeline = timeline

    def _start_over(self, cause: HoldfastError | None) -> None:
        """Empties the folder and opens it again. Its state is restored from the log."""
        with self._writing:
            if cause is not None:
                self._warn(cause, "the folder is emptied and restored from the log")
            self._shut()
            self._home.wipe()
            self._use(self._open_engines(), applied_bytes=0)

    def _empty_volatile(self, cause: HoldfastError) -> None:
        """Starts the stores that aren't durable over, empty. The others go on from what is on disk."""
        with self._writing:
            self._warn(cause, "its stores that aren't durable start over empty")
            applied_bytes = 0 if self._disk is None else self._disk.applied_bytes
            self._shut()
            remove(self._home.volatile)
            self._use(self._open_engines(), applied_bytes=applied_bytes, fresh=True)

    def _shut(self) -> None:
        with self._publishing:
            self.published.clear()
        disk, self._disk = self._disk, None
        self._at, self._commit = NOTHING, ""
        if disk is not None:
            disk.engines.close()

    def _warn(self, error: HoldfastError, what: str) -> None:
        message = f"task {self.task}: {error} ({what})"
        _LOG.warning(message)
        self._events.append(ProblemEvent("warning", str(self.task), type(error).__name__, error.category, message))
