"""Spark's query of a running app: every batch becomes a version, and the end of the query ends the app."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException

from holdfast import metrics
from holdfast.clock import ClockJumped, WallClock
from holdfast.ending import BATCH, QUERY, Ending
from holdfast.errors import ErrorCategory, HoldfastError, Interrupted
from holdfast.log.commits import Commit
from holdfast.pipeline.driver import Driver
from holdfast.pipeline.offsets import Checkpoint
from holdfast.pipeline.planners import BatchTasks
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import SKIPPED, USER, labelled_counts
from holdfast.pipeline.spark import query_options, with_options
from holdfast.pipeline.spark_errors import FailedInQuery, query_failure
from holdfast.retry import retrying
from holdfast.settings.model import Settings
from holdfast.stores.layouts.waiting import WAITING_COUNT

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

_versions = metrics.counter("holdfast_versions", "Versions this driver has committed.")
_records = metrics.counter("holdfast_records", "Records taken from the source in committed versions.")
_dead = metrics.counter("holdfast_dead_letters", "Records that could not be used and went to the dead letters.")
_entries = metrics.counter(
    "holdfast_store_entries",
    "Entries that were refused because they had expired, removed when they expired, or evicted.",
    ["store", "what"],
)
_waiting = metrics.gauge("holdfast_store_waiting", "Windows that wait to be sent to sinks.", ["store"])
_of_user = metrics.counter("holdfast_user_count", "What processors counted with ctx.count().", ["name"])
_skipped = metrics.counter("holdfast_skipped_records", "Records that failed and were skipped.", ["processor"])
_newest = metrics.gauge("holdfast_newest_version", "The newest version this driver knows of.")
_batch_seconds = metrics.histogram("holdfast_batch_seconds", "From Spark's call to the commit.")


_LOOK_SECONDS = 0.005
"""Between two looks at a query that is being started."""


class QueryEnded(HoldfastError):
    """Spark's query ended although the app was not asked to stop."""

    category = ErrorCategory.INVALID


class BatchFailed(HoldfastError):
    """What Spark is told of a batch's error, which the app has in full."""

    category = ErrorCategory.INVALID


class SparkGone(QueryEnded):
    """Spark was stopped, or its JVM died, while the app ran."""

    def __init__(self, fact: str) -> None:
        super().__init__(f"{fact} Nothing is lost: a new hf.App with the same id continues in a new Spark session.")


@dataclass(eq=False)
class BatchRunner:
    """Turns Spark's batches into versions, one at a time."""

    checkpoint: Checkpoint
    driver: Driver
    work: BatchTasks
    locations: Callable[[], StateLocations]
    settings: Settings
    ending: Ending
    clock: WallClock
    wait_while_paused: Callable[[], object] = lambda: None
    """Returns when a batch may start."""
    look_seconds: float = 1.0
    """Between two looks at a clock that is far ahead."""
    failure: BaseException | None = None
    """The error of the last batch."""
    number: int | None = None
    """The number of the last batch."""
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def run(self, frame: DataFrame, number: int) -> None:
        """Spark's call per batch. An error raised here ends the query, and `RunningQuery.watch` reports it."""
        with contextlib.suppress(Interrupted):  # then the app stops
            self.wait_while_paused()
        # Without waiting for the lock: `between_batches` has it while it stops the query, which waits for the batch.
        if self.ending.has_begun() or not self._busy.acquire(blocking=False):
            self._wait_until_interrupted(frame)
            raise Interrupted("The app is stopping. Spark repeats the batch at the next start.")
        self.number = number
        try:
            self._run(frame, number)
        except HoldfastError as error:
            self.failure = error
            # Without the trace: in one of a query that was stopped, Spark looks for the cause by a regular expression
            # that overflows its stack.
            raise BatchFailed(str(error)) from None
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._busy.release()

    def _wait_until_interrupted(self, frame: DataFrame) -> None:
        """Waits in Spark's own thread for `query.stop()`, which interrupts it. Spark prints a trace of other errors."""
        jvm: Any = frame.sparkSession.sparkContext._jvm
        jvm.java.lang.Thread.sleep(round(self.ending.left(QUERY) * 1000))

    def _run(self, frame: DataFrame, number: int) -> None:
        batch = self.checkpoint.batch(number)

        def attempt() -> None:
            self._wait_for_clock()
            self.driver.process(batch, lambda step: self.work.compute(frame, step, self.locations()))

        with _batch_seconds.time():
            retrying(attempt, self.settings.retry, sleep=self.ending.pause)

    def _wait_for_clock(self) -> None:
        """Waits while the wall clock is far ahead. To stop would not help: the next start accepts the clock."""
        while True:
            try:
                self.clock.now()
                return
            except ClockJumped:
                self.ending.pause(self.look_seconds)

    def between_batches(self, call: Callable[[], None]) -> None:
        """Calls between two batches, so that no batch is interrupted, unless a batch takes longer than its time."""
        free = self._busy.acquire(timeout=self.ending.left(BATCH))
        try:
            call()
        finally:
            if free:
                self._busy.release()


@dataclass(eq=False)
class RunningQuery:
    """Spark's streaming query, watched until its end."""

    query: StreamingQuery
    spark: SparkContext
    batches: BatchRunner
    ending: Ending
    start: Callable[[], StreamingQuery]
    """Starts the query again."""
    _restarting: threading.Lock = field(default_factory=threading.Lock)

    def process_all_available(self) -> None:
        query = self.query
        try:
            query.processAllAvailable()
        except (PySparkException, Py4JError, OSError) as error:
            if self._has_restarted(query):
                self.process_all_available()
                return
            # Spark buries our error in hundreds of lines.
            if isinstance(error, StreamingQueryException):
                error = query_failure(error, self.batches.checkpoint.location)
            raise (self._spark_gone() or self.batches.failure or error) from None

    def watch(self) -> None:
        """Waits for the query's end, which fails the app unless it was asked to stop. Stops a failed app's query."""
        while not self.ending.asked:
            query = self.query
            ended = self._ended(query)
            if (gone := self._spark_gone()) is not None:
                self.ending.fail(gone)
                return
            if ended and self._has_restarted(query):
                continue
            if ended:
                self.ending.fail(self.batches.failure or self._why_ended())
                return
            if self.ending.failed:
                self.stop()
                return

    def stop(self) -> None:
        self.batches.between_batches(self._stop)

    def _stop(self) -> None:
        """Stops the query from another thread, since Spark waits without a limit for code that it can't interrupt."""
        stopping = threading.Thread(target=self._stop_query, name="holdfast-query-stop", daemon=True)
        stopping.start()
        stopping.join(self.ending.left(QUERY))
        if stopping.is_alive():
            logger.warning(
                "holdfast: the driver is still at work on batch %s, and Spark can't interrupt it: its query ends when "
                "that work ends, and the next start repeats the batch if it wasn't committed",
                self.batches.number,
            )

    def _stop_query(self) -> None:
        if self._spark_gone() is not None:
            return
        try:
            if self.query.isActive:
                self.query.stop()
        except (Py4JError, OSError) as error:
            logger.warning("Spark's query could not be stopped, its JVM is gone: %s", error)

    def _has_restarted(self, ended: StreamingQuery) -> bool:
        """Whether another query runs now, because a step of this one failed for a record that it hides.

        Spark repeats the batch with the new one, which leaves the steps to Holdfast.
        """
        with self._restarting:
            if self.query is not ended:
                return True
            if self.ending.asked or not isinstance(self.batches.failure, FailedInQuery) or self._spark_gone():
                return False
            logger.info("a step of Spark's query failed; the batch is repeated to find the record")
            try:
                ended.stop()
                self.batches.failure = None
                self.batches.work.check_steps()
                self.query = self.start()
            except (HoldfastError, PySparkException, Py4JError, OSError) as error:
                self.batches.failure = error
                return False
            return True

    def _why_ended(self) -> HoldfastError:
        error = self.query.exception()
        if error is None:
            return QueryEnded("Spark's query ended by itself.")
        return query_failure(error, self.batches.checkpoint.location)

    @staticmethod
    def _ended(query: StreamingQuery) -> bool:
        """Waits a second for the query's end. A query that failed raises here; `exception()` also has the error."""
        try:
            return bool(query.awaitTermination(1))
        except (PySparkException, Py4JError, OSError):
            return True

    def _spark_gone(self) -> SparkGone | None:
        """Whether the session was stopped or its JVM died. The query's own error then says nothing about that."""
        try:
            java = self.spark._jsc
            if java is None or java.sc().isStopped():  # PySpark drops its reference at the end of spark.stop()
                return SparkGone("Spark was stopped while the app ran: call app.stop() before spark.stop().")
        except (Py4JError, OSError) as error:
            return SparkGone(f"Spark's JVM died while the app ran ({error}). Its own messages are above.")
        return None


def start_query(name: str, frame: DataFrame, batches: BatchRunner) -> StreamingQuery:
    """Starts Spark's query of an app, whose batches become versions."""
    batch = batches.settings.batch
    options = query_options(batch.poll_interval, local_checkpoint=batches.checkpoint.is_local)
    with with_options(frame.sparkSession, options):
        writer = (
            frame.writeStream.queryName(name)
            .option("checkpointLocation", batches.settings.checkpoint(name))
            .trigger(processingTime=f"{batch.commit_interval // timedelta(milliseconds=1)} milliseconds")
            .foreachBatch(batches.run)
        )
        try:
            query = writer.start()
        except (PySparkException, Py4JError) as error:
            raise query_failure(error, batches.settings.checkpoint(name)) from error
        # Sources read the session's options in Spark's own thread.
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            if batches.ending.wait(_LOOK_SECONDS):
                break
    return query


def count_commit(commit: Commit, dead_letters: object) -> None:
    """Adds a version's counts to the driver's metrics."""
    _versions.inc()
    _records.inc(commit.counts.get("records", 0))
    _newest.set(commit.version)
    for (what, label), number in labelled_counts(commit.counts).items():
        if what == WAITING_COUNT:
            _waiting.labels(label).set(number)
            continue
        if what == SKIPPED:
            logger.warning(
                'version %d: %s skipped %d record(s) that failed; on_error="dead_letter" keeps them',
                commit.version,
                label,
                number,
            )
            _skipped.labels(label).inc(number)
            continue
        counter = _of_user.labels(label) if what == USER else _entries.labels(label, what)
        counter.inc(number)
    if dead := commit.counts.get("dead", 0):
        _dead.inc(dead)
        logger.warning("version %d: %d record(s) went to the dead letters: %s", commit.version, dead, dead_letters)
