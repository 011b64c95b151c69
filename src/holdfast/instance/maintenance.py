"""Background work per task: one thread calls the step of every task again and again.

An instance has two such loops, one that flushes overlays and one that saves snapshots, so that an upload to slow
storage doesn't keep a replica from flushing. Tasks come and go while a loop runs.
"""

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from holdfast.backoff import backoff
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Closed
from holdfast.instance.events import Events, described, report_problem, same_problem
from holdfast.instance.replica import Replica
from holdfast.instance.state_dir import FolderLost
from holdfast.lasting import lasting_thread
from holdfast.settings.sections import RetrySettings
from holdfast.stores.engines.base import DamagedState, StateError
from holdfast.words import TaskId

_LOG = logging.getLogger(__name__)
_STEP_RETRY = RetrySettings(first="500ms", longest="30s")
_FOLDER_ROUNDS = 4
"""A look at the folder takes 5 us, and there may be hundreds of tasks."""


@dataclass
class _Job:
    step: Callable[[], object]
    failures: int = 0
    due: float = 0.0
    error: str | None = None
    problem: str = ""


class MaintenanceLoop:
    """Calls each task's step every `every` seconds. A failure is reported once, and the step is tried again later."""

    def __init__(self, name: str, events: Events, every: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._events = events
        self._every = every
        self._clock = clock
        self._jobs: dict[TaskId, _Job] = {}
        self._changed = threading.Condition()
        self._running: TaskId | None = None
        self._ended = threading.Event()
        self._thread = lasting_thread(name, self._run, partial(report_problem, events, None))

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def add(self, task: TaskId, step: Callable[[], object]) -> None:
        with self._changed:
            self._jobs[task] = _Job(step)

    def remove(self, task: TaskId) -> None:
        """The task gets no further step. One that is under way goes on."""
        with self._changed:
            self._jobs.pop(task, None)

    def end(self, task: TaskId) -> None:
        """Removes the task, and returns when a step of it that is under way has ended."""
        with self._changed:
            self.remove(task)
            self._changed.wait_for(lambda: self._running != task)

    def error(self, task: TaskId) -> str | None:
        """What the task's step failed with, until it works again."""
        job = self._jobs.get(task)
        return None if job is None else job.error

    def step(self, now: float) -> None:
        """One round over all tasks whose step is due."""
        for task in list(self._jobs):
            if (job := self._begin(task, now)) is not None:
                try:
                    self._try(task, job, now)
                finally:
                    self._end()

    def _begin(self, task: TaskId, now: float) -> _Job | None:
        with self._changed:
            job = self._jobs.get(task)
            if self._ended.is_set() or job is None or now < job.due:
                return None
            self._running = task
            return job

    def _end(self) -> None:
        with self._changed:
            self._running = None
            self._changed.notify_all()

    def _try(self, task: TaskId, job: _Job, now: float) -> None:
        try:
            job.step()
            job.failures, job.error = 0, None
        except Closed:
            _LOG.debug("task %s isn't open now", task)
        except BaseException as error:  # noqa: BLE001  trouble with one task must not stop the work for the others
            job.failures += 1
            job.due = now + backoff(job.failures, _STEP_RETRY)
            if job.error is None or job.problem != same_problem(error):
                job.error, job.problem = described(error), same_problem(error)
                report_problem(self._events, task, error)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self.step(self._clock.monotonic())


def flushing(replica: Replica, reopened: Callable[[TaskId], None]) -> Callable[[], None]:
    """The step that keeps a replica's engines close behind it. `reopened`: the replica has to be caught up again.

    It also looks whether the replica's folder is still there, once in a few rounds. RocksDB wouldn't notice until its
    next flush.
    """
    rounds = itertools.count()

    def step() -> None:
        if next(rounds) % _FOLDER_ROUNDS == 0 and replica.has_lost_folder:
            reopened(replica.task)  # also before, so that nobody reads it meanwhile
            replica.rebuild(FolderLost(replica.folder))
            reopened(replica.task)
            return
        replica.tidy()
        if not replica.flush_due():
            return
        opening = replica.openings
        try:
            replica.flush_overlay()
        except DamagedState as error:
            replica.rebuild(error)
            reopened(replica.task)
        except StateError:
            if replica.recover(opening):
                reopened(replica.task)
            raise
        pa.default_memory_pool().release_unused()

    return step
