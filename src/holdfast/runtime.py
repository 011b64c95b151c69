"""A running app: the parts, wired, started in order and stopped in the reverse of it.

    log ─► sinks brought up ─► instances restored, every store read once ─► Spark's query

Every version from there on is made in `_on_batch`, which Spark calls. Whatever ends the query ends the app.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from holdfast import faults, metrics
from holdfast.clock import Clock
from holdfast.embedded import EmbeddedInstances, Interrupted
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.events import RestoreEvent
from holdfast.instance.progress import RestoreBars
from holdfast.listeners import ListenerPool
from holdfast.log.appfile import AppSpec, effective
from holdfast.log.cleaning import Cleaner
from holdfast.log.commits import Commit, Writer, new_id
from holdfast.log.log import Log
from holdfast.log.objects import Retries
from holdfast.log.storage import open_storage
from holdfast.pipeline.driver import Driver
from holdfast.pipeline.offsets import Checkpoint
from holdfast.pipeline.protocol import check_checkpoint, version_of
from holdfast.pipeline.results import counts_of_stores, users_name
from holdfast.pipeline.sinks.outputs import DeadLetters, Output, ProcessorOutput, StoreChanges, TableOutput
from holdfast.pipeline.sinks.runner import Feed, SinkRunner
from holdfast.pipeline.spark import SparkTasks, check_session
from holdfast.pipeline.worker import Reach
from holdfast.retry import retrying
from holdfast.settings import Settings
from holdfast.states import AppState, StateMachine
from holdfast.topology.processor import stores_of
from holdfast.topology.stream import DEAD_LETTERS, Builder
from holdfast.words import TaskId, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

_versions = metrics.counter("holdfast_versions", "Versions this driver has committed.")
_records = metrics.counter("holdfast_records", "Records taken from the source in committed versions.")
_dead = metrics.counter("holdfast_dead_letters", "Records that could not be used and went to the dead letters.")
_entries = metrics.counter(
    "holdfast_store_entries",
    "Entries that were refused because they had expired, removed when their time was over, or evicted.",
    ["store", "what"],
)
_of_user = metrics.counter("holdfast_user_count", "What processors counted with ctx.count().", ["name"])
_newest = metrics.gauge("holdfast_newest_version", "The newest version this driver knows of.")
_batch_seconds = metrics.histogram("holdfast_batch_seconds", "From Spark's call to the commit.")


class QueryEnded(HoldfastError):
    """Spark's query ended and nobody had asked it to."""

    category = ErrorCategory.INVALID


class Runtime:
    """Everything `app.start()` starts."""

    def __init__(
        self,
        app: str,
        settings: Settings,
        spark: SparkSession,
        builder: Builder,
        states: StateMachine,
        restores: ListenerPool[RestoreEvent],
        on_failure: Callable[[BaseException], None],
        clock: Clock,
    ) -> None:
        self._app = app
        self._settings = settings
        self._spark = spark
        self._builder = builder
        self._states = states
        self._restores = restores
        self._on_failure = on_failure
        self._clock = clock
        self._stop = threading.Event()
        self._in_batch = threading.Lock()
        self.query: StreamingQuery | None = None
        self._instances: EmbeddedInstances | None = None
        self._sinks: SinkRunner | None = None
        self._driver: Driver | None = None
        self._failure: BaseException | None = None
        self.metrics_address: str | None = None
        self._metrics: tuple[WSGIServer, threading.Thread] | None = None
        self._bars = RestoreBars()
        self._threads: list[threading.Thread] = []

    @property
    def version(self) -> Version:
        return version_of(self._driver.newest if self._driver else None)

    @property
    def address(self) -> str | None:
        return self._instances.rest_address if self._instances else None

    def start(self) -> None:
        faults.load_from_environment("driver")
        settings, app = self._settings, self._app
        check_session(self._spark)
        self._use_this_python()
        self._retries = Retries(
            attempts=settings.retry.attempts, first=settings.retry.first, longest=settings.retry.longest
        )
        storage = open_storage(
            settings.log_url(app), settings.log.options, fsync=settings.log.fsync, retries=self._retries
        )
        self._log = Log.create_or_open(storage, self._spec())
        self._builder.go_by(lambda spec: effective(self._log.app, spec))
        self._checkpoint = Checkpoint(self._spark, settings.checkpoint(app))
        restart = settings.on_new_checkpoint == "restart_sources"
        newest = self._log.newest()
        done = newest is None and self._checkpoint.has_done_batches()
        check_checkpoint(newest, self._log.commit, self._checkpoint.query_id(), restart, done)
        self._sinks = SinkRunner(self._log, self._feeds(), retry=self._retry, on_failure=self._fail)
        self._sinks.catch_up(version_of(newest))
        self._instances = EmbeddedInstances(
            app,
            settings,
            self._tasks(),
            everywhere=self._everywhere(),
            on_event=self._restored,
            on_failure=self._fail,
        )
        self._instances.start()
        self._instances.wait_until_ready(version_of(newest), self._stop.is_set)
        self._driver = Driver(
            self._log,
            self._sinks,
            self._clock,
            Writer.here(new_id()),
            restart_sources=restart,
            on_commit=self._committed,
        )
        self._work = SparkTasks(
            self._builder.tables,
            settings.partitions,
            processors=self._builder.processors,
            state_bytes=settings.batch.state_bytes,
            rewrite_entries=settings.batch.rewrite_entries,
            chunk_rows=settings.batch.segment_rows,
            inline_bytes=settings.log.inline_bytes,
            max_ahead_millis=round(settings.batch.max_ahead.total_seconds() * 1000),
        )
        self._sinks.start()
        self._serve_metrics()
        self._states.add_listener(lambda old, new: self._tell_state(new))
        self._start_query()
        self._states.move(AppState.RUNNING)
        self._thread("holdfast-query", self._watch_query)
        self._thread("holdfast-cleaner", self._clean)

    def process_all_available(self) -> None:
        assert self.query is not None and self._sinks is not None
        try:
            self.query.processAllAvailable()
        except PySparkException as error:
            raise (self._failure or error) from None  # Spark's has ours somewhere in hundreds of lines
        self._sinks.catch_up(self.version)

    def close(self) -> None:
        """Stops what was started, in the reverse order. Safe after a start that failed half way."""
        self.request_stop()
        seconds = self._settings.stop_timeout.total_seconds()
        with (
            contextlib.ExitStack() as stack
        ):  # each step whatever the one before it did; the last one pushed goes first
            stack.callback(self._bars.close)
            if self._metrics is not None:
                server, thread = self._metrics
                stack.callback(thread.join, seconds)
                stack.callback(server.server_close)
                stack.callback(server.shutdown)
            if self._instances is not None:
                stack.callback(self._instances.stop)
            if self._sinks is not None:
                stack.callback(self._sinks.stop, seconds)
            for thread in self._threads:
                if thread is not threading.current_thread():
                    stack.callback(thread.join, seconds)
            stack.callback(self._stop_query)

    def request_stop(self) -> None:
        """Makes a start that is under way, or a wait before another try, end soon."""
        self._stop.set()

    def _stop_query(self) -> None:
        """Between two batches if that comes soon, so that none is cut off."""
        free = self._in_batch.acquire(timeout=self._settings.stop_timeout.total_seconds())
        try:
            if self.query is not None and self.query.isActive:
                self.query.stop()
        except (Py4JError, OSError) as error:
            logger.warning("Spark's query could not be stopped, its JVM is gone: %s", error)
        finally:
            if free:
                self._in_batch.release()

    def _serve_metrics(self) -> None:
        """The driver counts batches and records; it is a scrape target of its own beside the instances."""
        rest = self._settings.rest
        if rest.enabled:
            self._metrics = start_http_server(rest.driver_metrics_port, rest.host, metrics.REGISTRY)
            self.metrics_address = f"http://{rest.host}:{self._metrics[0].server_port}/metrics"

    def _start_query(self) -> None:
        assert self._builder.source is not None
        interval = self._settings.batch.commit_interval.total_seconds()
        self.query = (
            self._builder.source.writeStream.queryName(self._app)
            .option("checkpointLocation", self._settings.checkpoint(self._app))
            .trigger(processingTime=f"{round(interval * 1000)} milliseconds")
            .foreachBatch(self._on_batch)
            .start()
        )

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        """Spark's call for a batch. What goes wrong here ends the query, and `_watch_query` hears of it."""
        assert self._driver is not None and self._instances is not None
        driver, reach = self._driver, self._reach()
        # Not waiting: whoever stops the query holds this, and Spark's stop waits for the batch.
        if self._stop.is_set() or not self._in_batch.acquire(blocking=False):
            raise Interrupted("The app is stopping. Spark repeats the batch at the next start.")
        try:
            self._run_batch(frame, number, driver, reach)
        finally:
            self._in_batch.release()

    def _run_batch(self, frame: DataFrame, number: int, driver: Driver, reach: Reach) -> None:
        try:
            batch = self._checkpoint.batch(number)
            with _batch_seconds.time():
                retrying(
                    lambda: driver.process(batch, lambda step: self._work.compute(frame, step, reach)),
                    self._settings.retry,
                    sleep=self._pause,
                )
        except BaseException as error:
            self._failure = error
            raise

    def _pause(self, seconds: float) -> None:
        """Waits before another try. There is none when the app is to stop."""
        if self._stop.wait(seconds):
            raise Interrupted("The app was told to stop while a batch was being tried again. Spark repeats the batch.")

    def _committed(self, commit: Commit) -> None:
        assert self._instances is not None
        self._instances.committed(Version(commit.version))
        _versions.inc()
        _records.inc(commit.counts.get("records", 0))
        _newest.set(commit.version)
        for name, number in commit.counts.items():
            if (own := users_name(name)) is not None:
                _of_user.labels(own).inc(number)
        for (what, store), number in counts_of_stores(commit.counts).items():
            _entries.labels(store, what).inc(number)
        if dead := commit.counts.get("dead", 0):
            _dead.inc(dead)
            logger.warning("version %d: %d record(s) went to the dead letters", commit.version, dead)

    def _watch_query(self) -> None:
        assert self.query is not None
        while not self._stop.is_set():
            if self._ended(self.query):
                if self._stop.is_set():
                    return
                self._fail(self._failure or self.query.exception() or QueryEnded("Spark's query ended by itself."))
                return

    def _ended(self, query: StreamingQuery) -> bool:
        """Waits a second for the query's end. One that ended with an error raises it here; `exception()` has it too."""
        try:
            return bool(query.awaitTermination(1))
        except PySparkException:
            return True
        except (Py4JError, OSError) as error:
            self._failure = self._failure or QueryEnded(f"Spark's JVM is gone: {error}")
            return True

    def _clean(self) -> None:
        sinks = [node.name for node in self._builder.sinks]
        cleaner = Cleaner(self._log, retention=self._settings.log.retention, sinks=lambda: sinks, clock=self._clock)
        while not self._stop.wait(self._settings.log.clean_interval.total_seconds()):
            try:
                cleaner.clean()
            except HoldfastError as error:
                logger.warning("cleaning the log failed and is tried again in a while: %s", error)

    def _fail(self, cause: BaseException) -> None:
        if not self._stop.is_set():
            self._on_failure(cause)
            self._stop_query()

    def _spec(self) -> AppSpec:
        tables, processors = self._builder.tables, self._builder.processors
        topologies = {table.name: table.topology for table in tables}
        topologies |= {spec.name: each.topology for each in processors for spec in each.specs}
        return AppSpec(
            id=self._app,
            partitions=self._settings.partitions,
            stores=(*(table.spec for table in tables), *(spec for each in processors for spec in each.specs)),
            topologies=topologies,
        )

    def _feeds(self) -> list[Feed]:
        outputs: dict[str, Output] = {t.name: TableOutput(t.spec, t.topology) for t in self._builder.tables}
        outputs |= {p.name: ProcessorOutput(p.name, p.topology) for p in self._builder.processors}
        for each in self._builder.processors:
            declared = stores_of(each.processor)
            outputs |= {
                each.changes_of(spec): StoreChanges(spec, each.topology, declared[attribute])
                for attribute, spec in each.stores
            }
        outputs[DEAD_LETTERS] = DeadLetters()
        return [Feed(node.name, outputs[node.source], node.sink) for node in self._builder.sinks]

    def _tasks(self) -> list[TaskId]:
        stateful = [each.topology for each in self._builder.processors if each.stores]
        numbers = [*(table.topology for table in self._builder.tables), *stateful]
        return [TaskId(number, n) for number in numbers for n in range(self._settings.partitions)]

    def _everywhere(self) -> list[TaskId]:
        """The tasks of the sub-topologies that have a global store."""
        app = self._log.app
        numbers = {app.topologies[spec.name] for spec in app.stores if spec.everywhere}
        return [task for task in self._tasks() if task.topology in numbers]

    def _reach(self) -> Reach:
        assert self._instances is not None
        return Reach(
            log_url=self._settings.log_url(self._app),
            log_id=self._log.id,
            log_options=self._settings.log.options,
            fsync=self._settings.log.fsync,
            replicas=self._instances.replicas(),
            deadline=timedelta(seconds=self._settings.batch.read_deadline.total_seconds()),
            retries=self._retries,
        )

    def _restored(self, event: RestoreEvent) -> None:
        self._bars.show(event)
        self._restores.tell(event)

    def _retry(self, call: Callable[[], None]) -> None:
        retrying(call, self._settings.retry)

    def _tell_state(self, state: AppState) -> None:
        if self._instances is not None:
            self._instances.tell_state(state, self._states.cause)

    def _use_this_python(self) -> None:
        """Spark's Python workers on this machine run under the interpreter the app runs under."""
        context = self._spark.sparkContext
        if "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
            context.pythonExec = sys.executable

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
