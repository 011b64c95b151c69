"""Brings the replicas of an instance forward: restore, standby and normal running are the same loop for all tasks.

One thread looks for new versions, which the driver reports or the log shows. A few others apply them, so several tasks
restore in parallel. They take the tasks in turns, the one furthest behind first: all tasks pass through the same few
versions at about the same time, so each commit is read once for all of them. A replica that fails is suspended and
tried again after a pause that grows; a failure is reported once, not at every attempt. Its engines are opened again
only if they have failed themselves. Where the log can't be read, a replica that has caught up once keeps what it has
published, however far behind it is. Tasks come and go while the loop runs. Nothing here ends the process.

`step` looks once, and the calls that it submits apply what it found. `start` runs it in a thread; the simulator of the
tests calls it itself, and runs the submitted calls itself.
"""

import heapq
import itertools
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.backoff import backoff
from holdfast.chance import SYSTEM_RANDOM, Random
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Closed, ErrorCategory, HoldfastError
from holdfast.instance.config import Phase
from holdfast.instance.events import Events, TaskEvent, described, report_problem, same_problem
from holdfast.instance.following import follow
from holdfast.instance.log_reader import LogReader
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.instance.replica import Replica
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.lasting import lasting_thread
from holdfast.log.commits import Commit
from holdfast.settings.sections import RestoreSettings, RetrySettings
from holdfast.stores.engines.base import StateError
from holdfast.words import NOTHING, TaskId, Version

_LOG = logging.getLogger(__name__)
_FULL_LOOKS = 10
"""How many looks apart the newest version is searched for, in case the next one was cleaned meanwhile."""


TURN = 16
"""How many versions a task may pass before it is another task's turn. The commits of two turns are kept."""


@dataclass
class TaskProgress:
    """How far one task is: its phase, and what its last failure was. `busy`: it waits for its turn, or has it."""

    replica: Replica
    report: RestoreReporter
    phase: Phase = Phase.RESTORING
    busy: bool = False
    caught_up_in: int | None = None
    """The opening of the replica in which it was last caught up, and each of its stores read once."""
    failures: int = 0
    retry_at: float = 0.0
    error: str | None = None
    problem: str = ""
    error_category: ErrorCategory | None = None

    def behind(self, target: Version) -> bool:
        return self.replica.version < target or self.replica.published.version is None or not self.readable

    @property
    def readable(self) -> bool:
        """Whether it has been caught up since it was opened, so that a key it didn't have then didn't exist."""
        return self.caught_up_in == self.replica.openings and not self.replica.must_look_back

    @property
    def turn(self) -> int:
        """Which turn is its next one; a replica that isn't open yet, and may be far behind, is among the first."""
        return self.replica.version // TURN


class ReplicaUpdater:
    """Keeps every replica at the newest version."""

    def __init__(
        self,
        source: LogReader,
        events: Events,
        restore: RestoreSettings,
        retry: RetrySettings,
        poll_seconds: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
        random: Random = SYSTEM_RANDOM,
        pool: Executor | None = None,
    ) -> None:
        """`pool` runs the updates; without one it is a pool of as many threads as `restore` says."""
        self._source = source
        self._events = events
        self._restore = restore
        self._retry = retry
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._random = random
        self._tasks: dict[TaskId, TaskProgress] = {}
        self._lock = threading.RLock()
        self._look_asked = threading.Condition(self._lock)
        self._turn_ended = threading.Condition(self._lock)
        """Apart from the other, so that the end of each of many turns doesn't wake the thread that looks."""
        self._committed: tuple[Version, str | None] | None = None
        """What the driver has reported since the last look, and the id of its commit."""
        self._look = True
        self._stopping = False
        self._looks = 0
        self._source_error: type[HoldfastError] | None = None
        self._has_looked = False
        self._target = NOTHING
        self._timeline = source.timeline
        """The timeline of the target."""
        self._waiting: list[tuple[int, int, TaskProgress]] = []
        """The tasks that wait for a turn, as a heap: by turn, then in the order in which they came."""
        self._arrivals = itertools.count()
        self._workers = 0
        self._pool = pool or ThreadPoolExecutor(restore.parallel_tasks, thread_name_prefix="restore")
        self._thread = lasting_thread("updater", self._run, partial(report_problem, events, None))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop and the updates under way."""
        with self._lock:
            self._stopping = True
            self._look_asked.notify_all()
            tasks = list(self._tasks.values())
        for progress in tasks:
            progress.replica.stop_moving()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, replica: Replica) -> TaskProgress:
        """From now on the replica is brought forward."""
        with self._lock:
            progress = self._tasks[replica.task] = self.progress_of(replica)
            self._wake()
            return progress

    def progress_of(self, replica: Replica) -> TaskProgress:
        replica.report = RestoreReporter(self._events, replica.task, replica.stores)
        return TaskProgress(replica, replica.report)

    def remove(self, task: TaskId) -> None:
        """Ends the update of a task that is under way, and returns when it has ended."""
        with self._lock:
            progress = self._tasks.pop(task, None)
            if progress is not None:
                progress.replica.stop_moving()
                self._turn_ended.wait_for(lambda: not progress.busy)
            self._turn_ended.notify_all()

    def committed(self, version: Version, commit: str | None = None) -> None:
        """The driver has made this version, or has started at it."""
        with self._lock:
            self._committed = version, commit
            self._wake()

    def look(self) -> None:
        """There is something to look for: the log was set back."""
        with self._lock:
            self._wake()

    def restore_again(self, task: TaskId) -> None:
        """A replica was, or will be, opened again: it has to be caught up and read once more."""
        with self._lock:
            if (progress := self._tasks.get(task)) is not None:
                progress.caught_up_in = None
                progress.phase = Phase.RESTORING
                self._wake()

    @property
    def ready(self) -> bool:
        """Every task is caught up and can be read now."""
        return all(progress.phase is Phase.RUNNING for progress in list(self._tasks.values()))

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Waits until every task is caught up and every store was read once."""
        with self._lock:
            return self._turn_ended.wait_for(lambda: self.ready, timeout)

    def step(self, now: float) -> float:
        """Brings replicas that are behind on their way, and ends old holds. Returns the seconds until the next step."""
        with self._lock:
            self._look = False
        timeline = self._source.timeline
        target = self._newest()
        if timeline != self._source.timeline:
            return 0.0  # the log was set back meanwhile, and so may the target be
        if target is not None:
            with self._lock:
                self._target, self._timeline = target, timeline
                for progress in self._tasks.values():
                    if progress.phase is Phase.RUNNING and not progress.readable:
                        self._enter(progress, Phase.RESTORING)
            self._follow(target)
        with self._lock:
            replicas = [progress.replica for progress in self._tasks.values()]
        for replica in replicas:
            replica.published.held.end_old()
        with self._lock:
            if target is not None:
                ready = [p for p in self._tasks.values() if not p.busy and now >= p.retry_at]
                self._queue([progress for progress in ready if progress.behind(target)])
            pauses = [p.retry_at - now for p in self._tasks.values() if p.retry_at > now and not p.busy]
        return max(0.0, min([self._poll_seconds, *pauses]))

    def _follow(self, target: Version) -> None:
        """Brings the running replicas to the newest version together, those for which it is the next one.

        Those whose changes are in the commit itself move on this thread. The others have objects to read, which takes
        a while on object storage: as many threads as restore read a share each. Tasks that share an object stay
        together.
        """
        with self._lock:
            running = [each for each in self._tasks.values() if each.phase is Phase.RUNNING and not each.busy]
        if not any(each.replica.version < target for each in running) or (commit := self._kept(target)) is None:
            return
        apart = commit.objects_of_tasks()
        self._follow_together([each for each in running if str(each.replica.task) not in apart], commit)
        with self._lock:  # one that was removed meanwhile must not become busy: it is closed
            left = [each for each in running if self._tasks.get(each.replica.task) is each and not each.busy]
            before = target - 1
            reading = [each for each in left if each.replica.version == before and str(each.replica.task) in apart]
            for each in reading:
                each.busy = True
        by_object: dict[str, list[TaskProgress]] = {}
        for each in reading:
            by_object.setdefault(apart[str(each.replica.task)], []).append(each)
        groups = list(by_object.values())
        shares = min(len(groups), self._restore.parallel_tasks)
        for number in range(shares):
            share = [each for group in groups[number::shares] for each in group]
            self._pool.submit(self._follow_share, share, commit)

    def _follow_share(self, share: Sequence[TaskProgress], commit: Commit) -> None:
        self._follow_together(share, commit)
        with self._lock:
            for each in share:
                each.busy = False
            self._queue([each for each in share if self._goes_on(each)])
            self._turn_ended.notify_all()

    def _follow_together(self, tasks: Sequence[TaskProgress], commit: Commit) -> None:
        try:
            follow([each.replica for each in tasks], commit, self._source.log)
        except BaseException as error:  # noqa: BLE001  the tasks that didn't follow get their turns
            report_problem(self._events, None, error)

    def _queue(self, behind: Sequence[TaskProgress]) -> None:
        """Has these tasks wait for a turn, and starts as many threads as may take one."""
        if self._stopping:
            return
        for progress in behind:
            progress.busy = True
            self._wait_for_turn(progress)
        for _ in range(min(len(self._waiting), self._restore.parallel_tasks - self._workers)):
            self._workers += 1
            self._pool.submit(self._work)

    def _kept(self, version: Version) -> Commit | None:
        try:
            return self._source.commit(version)
        except HoldfastError:
            return None  # the turns of the tasks report it

    def _wait_for_turn(self, progress: TaskProgress) -> None:
        heapq.heappush(self._waiting, (progress.turn, next(self._arrivals), progress))

    def _work(self) -> None:
        """Gives turns to tasks until none waits."""
        while True:
            with self._lock:
                if not self._waiting or self._stopping:
                    self._workers -= 1
                    return
                progress = heapq.heappop(self._waiting)[-1]
            try:
                self._update(progress, self._target)
            except BaseException as error:  # noqa: BLE001  a worker that ends unnoticed is missing for ever
                report_problem(self._events, progress.replica.task, error)

    def _run(self) -> None:
        while not self._stopping:
            pause = self.step(self._clock.monotonic())
            with self._lock:
                self._look_asked.wait_for(lambda: self._look or self._stopping, timeout=pause)

    def _wake(self) -> None:
        self._look = True
        self._look_asked.notify_all()

    def _newest(self) -> Version | None:
        """The newest version; None until one look at the log has worked, since an empty log would look the same."""
        try:
            with self._lock:
                committed, self._committed = self._committed, None
            if committed is not None and self._source.learn(*committed) == committed[0]:
                return committed[0]
            self._looks += 1
            if not self._has_looked or self._looks % _FULL_LOOKS == 1:
                newest = self._source.newest()
            else:
                newest = self._source.follow()
            self._source_error = None
            self._has_looked = True
            return newest
        except HoldfastError as error:
            if type(error) is not self._source_error:  # its text names the object, and looks take turns
                self._source_error = type(error)
                report_problem(self._events, None, error)
            return self._source.newest_known if self._has_looked else None

    def _update(self, progress: TaskProgress, target: Version) -> None:
        replica, opening = progress.replica, progress.replica.openings
        goes_on = False
        try:
            self._bring_closer(progress, target)
            goes_on = self._goes_on(progress)
        except Closed:
            progress.report.suspended(replica.version)
        except BaseException as error:  # noqa: BLE001  the other tasks continue, and this one is tried again
            progress.report.suspended(replica.version)
            self._suspend(progress, error, opening)
        finally:
            with self._lock:
                progress.busy = goes_on
                if goes_on:
                    self._wait_for_turn(progress)
                elif progress.error is not None:
                    self._wake()  # for the pause until the next attempt
                self._turn_ended.notify_all()

    def _goes_on(self, progress: TaskProgress) -> bool:
        """Whether a task takes another turn. Where the log was set back, the next step says where to."""
        return self._timeline == self._source.timeline and progress.behind(self._target)

    def _bring_closer(self, progress: TaskProgress, target: Version) -> None:
        """One turn of a task: it is opened, or passes some versions on its way to the target."""
        replica, report = progress.replica, progress.report
        if self._timeline != self._source.timeline:
            return
        if not replica.is_open:
            self._enter(progress, Phase.RESTORING)
            replica.open()
            if replica.version < target:
                return  # those further behind come first
        far = progress.phase is not Phase.RUNNING or target - replica.version > self._restore.acceptable_lag
        if far and target > replica.version and not report.under_way:
            self._enter(progress, Phase.RESTORING)
            report.started(replica.version, target)
        replica.catch_up(target, report, pause_at=Version((progress.turn + 1) * TURN))
        opening = replica.openings
        if replica.version < target or self._timeline != self._source.timeline:
            return
        if not progress.readable:
            try:
                replica.probe()
            except VersionNotAvailable:
                if replica.openings == opening:
                    raise
                return  # it was opened again meanwhile
            progress.caught_up_in = opening
        report.ended(replica.version)
        progress.failures, progress.error, progress.error_category, progress.retry_at = 0, None, None, 0.0
        self._enter(progress, Phase.RUNNING)

    def _enter(self, progress: TaskProgress, phase: Phase) -> None:
        if progress.phase is not phase:
            self._events.append(TaskEvent(str(progress.replica.task), phase.value, progress.replica.version))
        progress.phase = phase

    def _suspend(self, progress: TaskProgress, error: BaseException, opening: int) -> None:
        progress.failures += 1
        if progress.failures > 1 and isinstance(error, StateError) and progress.replica.is_open:
            self._recover(progress.replica, opening)
        progress.retry_at = self._clock.monotonic() + backoff(progress.failures, self._retry, self._random)
        if progress.error is None or same_problem(error) != progress.problem:
            progress.error, progress.problem = described(error), same_problem(error)
            progress.error_category = error.category if isinstance(error, HoldfastError) else ErrorCategory.BUG
            report_problem(self._events, progress.replica.task, error)
        self._enter(progress, Phase.SUSPENDED)

    def _recover(self, replica: Replica, opening: int) -> None:
        try:
            replica.recover(opening)
        except BaseException as error:  # noqa: BLE001  it stays suspended and is tried again
            _LOG.warning("task %s can't be opened again: %s", replica.task, error)
