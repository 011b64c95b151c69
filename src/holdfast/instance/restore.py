"""Moving many replicas: restore, standby and running are the same loop, for all tasks of an instance.

One thread watches for new versions, told by the driver or by looking; a few others bring the replicas there, so many
tasks restore in parallel. A replica that fails is suspended and tried again after a pause that grows; what failed is
told once, not at every try. Nothing here ends the process.
"""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Closed, ErrorCategory, HoldfastError
from holdfast.instance.events import Events, ProblemEvent, TaskEvent
from holdfast.instance.replica import Replica
from holdfast.instance.report import RestoreReport
from holdfast.instance.source import Source
from holdfast.retry import DEFAULT_RETRY, backoff
from holdfast.settings import RetrySettings
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
_FULL_LOOKS = 10
"""Every so many looks the newest version is searched for, in case the next one was cleaned while nobody looked."""


class Phase(StrEnum):
    RESTORING = "restoring"
    RUNNING = "running"
    SUSPENDED = "suspended"


@dataclass(frozen=True, kw_only=True)
class MoveSettings:
    parallel_tasks: int = 4
    acceptable_lag: int = 10
    poll_seconds: float = 1.0
    retry: RetrySettings = DEFAULT_RETRY


@dataclass
class Progress:
    """Where one task is in its life."""

    phase: Phase = Phase.RESTORING
    busy: bool = False
    probed: bool = False
    failures: int = 0
    retry_at: float = 0.0
    error: str | None = None
    error_category: ErrorCategory | None = None


class Mover:
    """Keeps every replica at the newest version."""

    def __init__(
        self,
        replicas: Mapping[TaskId, Replica],
        source: Source,
        events: Events,
        settings: MoveSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._replicas = dict(replicas)
        self._source = source
        self._events = events
        self._settings = settings or MoveSettings()
        self._clock = clock
        self._progress = {task: Progress() for task in replicas}
        self._wake = threading.Condition()
        self._told = NOTHING
        self._look = True
        self._stopping = False
        self._looks = 0
        self._source_error: str | None = None
        self._has_looked = False
        self._pool = ThreadPoolExecutor(self._settings.parallel_tasks, thread_name_prefix="restore")
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._ready = threading.Event()
        if not replicas:
            self._ready.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop and what is under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        for replica in self._replicas.values():
            replica.stop_moving()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def tell(self, version: Version) -> None:
        """The driver has made this version."""
        with self._wake:
            self._told = max(self._told, version)
            self._look = True
            self._wake.notify_all()

    def wake(self, task: TaskId) -> None:
        """A replica has to be looked at: it was, or will be, opened anew."""
        with self._wake:
            self._progress[task].probed = False
            self._progress[task].phase = Phase.RESTORING
            self._look = True
            self._wake.notify_all()

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Waits until every task has once been caught up and every store read."""
        return self._ready.wait(timeout)

    @property
    def ready(self) -> bool:
        """Every task is caught up and can be read now."""
        return all(progress.phase is Phase.RUNNING for progress in self._progress.values())

    def progress(self, task: TaskId) -> Progress:
        return self._progress[task]

    def _run(self) -> None:
        while True:
            target = self._newest()
            with self._wake:
                if self._stopping:
                    return
                now = self._clock.monotonic()
                if target is not None:
                    self._send_those_behind(target, now)
                pauses = [p.retry_at - now for p in self._progress.values() if p.retry_at > now and not p.busy]
                self._wake.wait_for(
                    lambda: self._look or self._stopping, timeout=max(0.0, min([self._settings.poll_seconds, *pauses]))
                )
                self._look = False

    def _send_those_behind(self, target: Version, now: float) -> None:
        for task, replica in self._replicas.items():
            progress = self._progress[task]
            behind = replica.version < target or replica.held.version is None or not progress.probed
            if behind and not progress.busy and now >= progress.retry_at:
                progress.busy = True
                self._pool.submit(self._move, task, target)

    def _newest(self) -> Version | None:
        """The newest version; None until one look at the log has worked, since an empty log would look the same."""
        try:
            if self._told > self._source.newest_known and self._source.hear(self._told) == self._told:
                return self._told
            self._looks += 1
            if not self._has_looked or self._looks % _FULL_LOOKS == 1:
                newest = self._source.newest()
            else:
                newest = self._source.follow()
            self._source_error = None
            self._has_looked = True
            return newest
        except HoldfastError as error:
            if str(error) != self._source_error:
                self._source_error = str(error)
                self._tell_problem(None, error)
            return self._source.newest_known if self._has_looked else None

    def _move(self, task: TaskId, target: Version) -> None:
        replica, progress = self._replicas[task], self._progress[task]
        report = RestoreReport(self._events, task, replica.stores)
        opening = replica.openings
        try:
            if not replica.is_open:
                self._enter(task, Phase.RESTORING)
                replica.open()
            far = progress.phase is not Phase.RUNNING or target - replica.version > self._settings.acceptable_lag
            if far and target > replica.version:
                self._enter(task, Phase.RESTORING)
                report.started(replica.version, target)
            replica.catch_up(target, report)
            if not progress.probed:
                replica.probe()
                progress.probed = True
            report.ended(replica.version)
            replica.tidy()
            progress.failures, progress.error, progress.error_category, progress.retry_at = 0, None, None, 0.0
            self._enter(task, Phase.RUNNING)
        except Closed:
            report.suspended(replica.version)
        except Exception as error:  # noqa: BLE001  whatever it is, the other tasks go on and this one is tried again
            report.suspended(replica.version)
            self._suspend(task, error, opening)
        finally:
            with self._wake:
                progress.busy = False
                self._look = True
                self._wake.notify_all()

    def _enter(self, task: TaskId, phase: Phase) -> None:
        progress = self._progress[task]
        if progress.phase is not phase or (phase is Phase.RUNNING and not self._ready.is_set()):
            self._events.append(TaskEvent(str(task), phase.value, self._replicas[task].version))
        progress.phase = phase
        if self.ready:
            self._ready.set()

    def _suspend(self, task: TaskId, error: Exception, opening: int) -> None:
        progress = self._progress[task]
        progress.failures += 1
        if progress.failures > 1 and isinstance(error, HoldfastError) and self._replicas[task].is_open:
            self._recover(task, opening)
        progress.retry_at = self._clock.monotonic() + backoff(progress.failures, self._settings.retry)
        if str(error) != progress.error:
            progress.error = str(error)
            progress.error_category = error.category if isinstance(error, HoldfastError) else ErrorCategory.BUG
            self._tell_problem(task, error)
        self._enter(task, Phase.SUSPENDED)

    def _recover(self, task: TaskId, opening: int) -> None:
        try:
            self._replicas[task].recover(opening)
        except Exception as error:  # noqa: BLE001  it stays suspended and is tried again
            _LOG.warning("task %s can't be opened again: %s", task, error)

    def _tell_problem(self, task: TaskId | None, error: Exception) -> None:
        tell_problem(self._events, task, error)


def tell_problem(events: Events, task: TaskId | None, error: Exception) -> None:
    """Logs an error and keeps it for the driver."""
    category = error.category if isinstance(error, HoldfastError) else ErrorCategory.BUG
    where = "" if task is None else f"task {task}: "
    _LOG.error("%s%s", where, error, exc_info=error if category is ErrorCategory.BUG else None)
    name = None if task is None else str(task)
    events.append(ProblemEvent("error", name, type(error).__name__, category.value, f"{where}{error}"))
