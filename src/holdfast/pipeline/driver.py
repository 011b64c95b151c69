"""The driver's side of a version: decide, compute, commit, notify.

The order matters. Tasks write segments before the commit; the commit makes the version exist; sinks and replicas are
notified afterwards. One lock covers all steps. Sinks write in a thread of their own, and the next commit waits for
them, so they are never more than one version behind.

A commit that was under way when this driver took over may take the version that this one computes. Then it is the
newest version, and the batch is decided again: it is that version, or it becomes the next one.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast import metrics
from holdfast.clock import WallClock
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import FORMAT, Commit, SparkBatch
from holdfast.log.leadership import Leadership, accepts, outdated
from holdfast.log.log import Log, LostRace, WrittenSegments
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.protocol import AlreadyCommitted, Compute, decide, following, next_wall, version_of
from holdfast.pipeline.results import TaskDone, TaskRefused, TaskResult
from holdfast.pipeline.sinks.runner import SinkRunner
from holdfast.stores.access import Now
from holdfast.words import Millis, Version

logger = logging.getLogger(__name__)


steps = metrics.histogram("holdfast_batch_step_seconds", "How long the steps of a batch took in the driver.", ["step"])


class TaskFailed(HoldfastError):
    """A task rejected its rows, and would reject them again."""

    category = ErrorCategory.INVALID


class TaskUnavailable(HoldfastError):
    """A task could not reach its state or the log. Another attempt may succeed."""

    category = ErrorCategory.RETRY


@dataclass(frozen=True)
class Step:
    """A version to compute, and its clocks."""

    version: Version
    wall: Millis
    event: Millis | None = None
    """The event clock of the previous version."""
    before: Now | None = None
    """The clocks that the version before was computed with: its wall clock, and the event clock before it."""
    previous: str | None = None
    """The id of the commit before it, on which its tasks build."""

    @property
    def now(self) -> Now:
        """The clocks that this version is computed with."""
        return Now(self.wall, self.event)


@dataclass
class BatchResult:
    """The results of a version's tasks, and the number of records per source."""

    tasks: list[TaskResult] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    read: Mapping[str, Millis | None] = field(default_factory=dict)
    """Source → the largest event time that it has read, of sources with records that no task may have seen."""

    @property
    def event_times(self) -> list[Mapping[str, int]]:
        """The largest event times by source, of each task and of what was read."""
        read = {source: time for source, time in self.read.items() if time is not None}
        return [*(each.event_times for each in self.tasks if isinstance(each, TaskDone)), read]

    @property
    def arrived(self) -> set[str]:
        """The sources that have had records."""
        return {*self.read, *(source for source, number in self.records.items() if number)}


ComputeTasks = Callable[[Step], BatchResult]


class Driver:
    """Makes versions, one at a time, as long as no other driver takes over. Created after its own takeover."""

    def __init__(
        self,
        log: Log,
        sinks: SinkRunner,
        clock: WallClock,
        leadership: Leadership,
        *,
        event_clock: EventClock,
        inline_bytes: int = 256 << 10,
        restart_sources: bool = False,
        on_commit: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        self._log = log
        self._sinks = sinks
        self._clock = clock
        self._leadership = leadership
        self._event_clock = event_clock
        self._inline_bytes = inline_bytes
        self._restart_sources = restart_sources
        self._on_commit = on_commit
        self._lock = threading.Lock()
        self._newest: Commit | None = None
        self._computed_at: Now | None = None
        self._uncertain = False
        if (newest := log.newest()) is not None:
            self._take_as_newest(newest)

    @property
    def newest(self) -> Commit | None:
        """The newest commit that this driver has made or found."""
        return self._newest

    @property
    def next_step(self) -> Step | None:
        """The next version, if it were made at the wall clock of the newest one; None before the first version."""
        newest = self._newest
        return None if newest is None else self._step(Version(newest.version + 1), Millis(newest.clocks.wall))

    @property
    def clock_moves_at(self) -> Millis | None:
        """When the event clock moves although nothing arrives; None: not before the next record."""
        return None if self._newest is None else self._event_clock.moves_at(self._newest.clocks)

    def process(self, batch: SparkBatch, compute: ComputeTasks) -> Commit | None:
        """Turns a Spark batch into a version. None when the log already has it."""
        with self._lock:
            while True:
                self._resolve_uncertain_commit()
                match decide(batch, self._newest, self._log.commit, self._restart_sources):
                    case AlreadyCommitted(version):
                        logger.info("batch %d is already version %d and is not computed again", batch.batch, version)
                        self._sinks.catch_up(version_of(self._newest))
                        return None
                    case Compute(version, note):
                        if note:
                            logger.warning("%s", note)
                        try:
                            return self._make(version, following(self._newest, batch), compute)
                        except LostRace as lost:
                            self._accept(lost)

    def _accept(self, lost: LostRace) -> None:
        """Takes the winner's commit as the newest version, or raises if this driver is outdated."""
        self._uncertain = False
        if lost.winner is None:
            self._leadership.check()
            raise lost
        self._continue_after(lost.winner)

    def _continue_after(self, commit: Commit) -> None:
        own, place = self._leadership.driver, self._log.storage.place
        if not accepts(own, commit.writer):
            raise outdated(own, str(commit.writer), place) from None
        logger.info("version %d was committed by %s and is accepted by %s", commit.version, commit.writer, own)
        self._committed(commit)

    def advance(self, compute: ComputeTasks) -> Commit | None:
        """Makes a version without a Spark batch, so that time passes. None while a batch is being computed."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._resolve_uncertain_commit()
            if (newest := self._newest) is None:
                return None
            return self._make(Version(newest.version + 1), newest.spark, compute)
        except LostRace as lost:
            self._accept(lost)
            return None
        finally:
            self._lock.release()

    def _resolve_uncertain_commit(self) -> None:
        """Finds out whether a commit exists whose outcome is unknown because the storage failed during the call."""
        if not self._uncertain:
            return
        known = version_of(self._newest)
        newest = self._log.newest(known)
        if newest is not None and newest.version > known:
            self._continue_after(newest)
        self._uncertain = False

    def _take_as_newest(self, commit: Commit) -> None:
        before = self._newest
        if before is None or before.version != commit.version - 1:
            before = self._log.commit(Version(commit.version - 1))  # the two newest commits are never cleaned
        # In this order: `next_step` is read by another thread, and is believed only for the newest version.
        self._computed_at = Now(commit.clocks.wall, _event(before))
        self._newest = commit

    def _step(self, version: Version, wall: Millis) -> Step:
        newest = self._newest
        return Step(version, wall, _event(newest), self._computed_at, newest.id if newest else None)

    def _committed(self, commit: Commit) -> None:
        self._take_as_newest(commit)
        self._sinks.offer(commit)
        self._on_commit(commit)

    def _make(self, version: Version, batch: SparkBatch | None, compute: ComputeTasks) -> Commit:
        previous = self._newest
        self._sinks.check()
        wall = next_wall(previous, self._clock.now())
        batch_result = compute(self._step(version, wall))
        results = _done(batch_result.tasks)
        with steps.labels("sinks").time():
            self._sinks.catch_up(version_of(previous))
        counts = {"records": sum(batch_result.records.values())}
        written: dict[str, WrittenSegments] = {}
        for result in results:  # a task has several results where records have failed
            own = WrittenSegments(result.segments, result.volatile)
            written[result.task] = written.get(result.task, WrittenSegments()) + own
            for name, number in result.counts.items():
                counts[name] = counts.get(name, 0) + number
        with steps.labels("segments").time():
            written = self._log.write_together(version, written, inline_bytes=self._inline_bytes)
        commit = Commit(
            format=FORMAT,
            version=version,
            id=self._log.new_id(),
            previous=previous.id if previous else None,
            log=self._log.id,
            app=self._log.app.number,
            clocks=self._event_clock.next(previous, wall, batch_result.event_times, batch_result.arrived),
            spark=batch,
            segments={task: each.segments for task, each in written.items() if each.segments},
            counts=counts,
            volatile={task: each.volatile for task, each in written.items() if each.volatile},
            sinks={**self._sinks.positions},
            writer=self._leadership.driver,
        )
        self._leadership.check()
        self._uncertain = True
        with steps.labels("commit").time():
            self._log.create_commit(commit)
        self._uncertain = False
        self._committed(commit)
        return commit


def _event(previous: Commit | None) -> Millis | None:
    event = previous.clocks.event if previous else None
    return None if event is None else Millis(event)


def _done(results: Sequence[TaskResult]) -> list[TaskDone]:
    """The results of tasks that are all done. Raises for a task that isn't."""
    done = [result for result in results if isinstance(result, TaskDone)]
    if len(done) < len(results):
        others = [result for result in results if not isinstance(result, TaskDone)]
        # A permanent error is more important than one that a retry may avoid.
        first = next((each for each in others if not _is_retryable(each)), others[0])
        kind = TaskUnavailable if _is_retryable(first) else TaskFailed
        raise kind(f"Task {first.task}: {first.message}")
    return done


def _is_retryable(result: TaskResult) -> bool:
    return isinstance(result, TaskRefused) and result.category is ErrorCategory.RETRY
