"""The keeper of an instance's disk: folds replicas into their engines, and saves snapshots when they are due.

Both happen between two versions and beside the readers. A fold writes what the overlay holds; a snapshot is a fold, a
flush and a checkpoint (hard links), and then an upload that holds nobody up. Each has a thread of its own, so that an
upload to a slow storage doesn't keep a replica from flushing.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Closed, HoldfastError
from holdfast.instance.events import Events
from holdfast.instance.replica import Replica
from holdfast.instance.restore import tell_problem
from holdfast.instance.source import state_bytes
from holdfast.log.log import Log
from holdfast.log.snapshot_policy import snapshot_due
from holdfast.retry import backoff
from holdfast.settings import RetrySettings
from holdfast.stores.engines.base import DamagedState
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SnapshotLimits:
    """When a snapshot is due; see log/snapshot_policy."""

    enabled: bool = True
    ratio: float = 2.0
    size: int = 256 << 20
    age: timedelta = timedelta(minutes=10)


@dataclass
class Saved:
    """What is known of a task's last snapshot."""

    version: Version
    bytes: int | None
    applied_bytes: int
    at: float


class Snapshotter:
    """Saves one replica's snapshots when they are due."""

    def __init__(self, replica: Replica, log: Log, limits: SnapshotLimits, clock: Clock = SYSTEM_CLOCK) -> None:
        self._replica = replica
        self._log = log
        self._limits = limits
        self._clock = clock
        self._saved: Saved | None = None

    def step(self) -> bool:
        """Saves a snapshot if one is due, and says whether it did."""
        if not self._limits.enabled or not self._replica.held.version:
            return False
        last = self._saved or self._found()
        due = snapshot_due(
            tail_versions=self._replica.held.version - last.version,
            tail_bytes=self._replica.applied_bytes - last.applied_bytes,
            snapshot_bytes=last.bytes,
            since=timedelta(seconds=self._clock.monotonic() - last.at),
            ratio=self._limits.ratio,
            size=self._limits.size,
            age=self._limits.age,
        )
        if due is None:
            return False
        self.save()
        return True

    def save(self) -> Version:
        """Saves a snapshot of the newest version now."""
        applied = self._replica.applied_bytes
        with self._replica.saved() as (mark, home):
            task, engine = self._replica.task, self._replica.engine
            manifest = self._log.snapshots.write(
                task, home.saving, version=mark.version, commit=mark.commit, engine=engine
            )
        self._saved = Saved(mark.version, manifest.bytes, applied, self._clock.monotonic())
        _LOG.info("task %s: snapshot of version %s, %s bytes", task, mark.version, manifest.bytes)
        return mark.version

    def _found(self) -> Saved:
        manifest = self._log.snapshots.newest(self._replica.task)
        version = NOTHING if manifest is None else Version(manifest.version)
        missed = self._bytes_between(version, self._replica.opened_at or NOTHING)
        self._saved = Saved(version, None if manifest is None else manifest.bytes, -missed, self._clock.monotonic())
        return self._saved

    def _bytes_between(self, after: Version, through: Version) -> int:
        """The tail that an earlier life of this replica had applied; looked up once, and no further than it matters."""
        total = 0
        for version in range(through, after, -1):
            commit = self._log.commit(Version(version))
            if commit is None or total >= self._limits.size:
                break
            total += state_bytes(commit, self._replica.task)
        return total


_STEP_RETRY = RetrySettings(first="500ms", longest="30s")


class Keeper:
    """Calls each task's step again and again on a thread of its own; a failure is told once and tried again."""

    def __init__(
        self,
        name: str,
        steps: Mapping[TaskId, Callable[[], object]],
        events: Events,
        every: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._steps = dict(steps)
        self._events = events
        self._every = every
        self._clock = clock
        self._failures = dict.fromkeys(steps, 0)
        self._retry_at = dict.fromkeys(steps, 0.0)
        self._errors: dict[TaskId, str] = {}
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def error(self, task: TaskId) -> str | None:
        """What the task's step failed with, until it works again."""
        return self._errors.get(task)

    def _run(self) -> None:
        while not self._ended.is_set():
            for task in self._steps:
                if self._ended.is_set():
                    return
                if self._clock.monotonic() >= self._retry_at[task]:
                    self._try(task)
            self._wake.wait(self._every)
            self._wake.clear()

    def _try(self, task: TaskId) -> None:
        try:
            self._steps[task]()
            self._failures[task] = 0
            self._errors.pop(task, None)
        except Closed:
            _LOG.debug("task %s isn't open now", task)
        except Exception as error:  # noqa: BLE001  one task's trouble is no reason to stop looking after the others
            self._failures[task] += 1
            self._retry_at[task] = self._clock.monotonic() + backoff(self._failures[task], _STEP_RETRY)
            if self._errors.get(task) != str(error):
                self._errors[task] = str(error)
                tell_problem(self._events, task, error)


def folding(replica: Replica, opened_anew: Callable[[TaskId], None]) -> Callable[[], None]:
    """The step that keeps a replica's engine close behind it. `opened_anew`: the replica has to be caught up again."""

    def step() -> None:
        replica.tidy()
        if not replica.fold_due():
            return
        opening = replica.openings
        try:
            replica.fold()
        except DamagedState as error:
            replica.rebuild(error)
            opened_anew(replica.task)
        except HoldfastError:
            if replica.recover(opening):
                opened_anew(replica.task)
            raise
        pa.default_memory_pool().release_unused()

    return step
