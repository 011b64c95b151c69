"""`hf.App`, the entry point for users.

Until `start()`, an app is a description: an id, settings, streams, stores and sinks. `holdfast.runtime` starts and runs
it; the app keeps its state and its listeners.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.describe import describe
from holdfast.drawing import mermaid
from holdfast.ending import Ending
from holdfast.errors import Interrupted, SettingsError, TopologyError
from holdfast.group_instances import GroupInstances
from holdfast.instances import Instances
from holdfast.listened import Listened
from holdfast.log.leadership import Leadership
from holdfast.log.starting import StartPlan
from holdfast.occupied import check_places
from holdfast.pipeline.sinks.builtin import files
from holdfast.pipeline.spark import limited_reader, prepare_session, session_of
from holdfast.planned import check_not_planned
from holdfast.runtime import Description, OnEvent, OnRebalance, RunningApp, plan, start
from holdfast.settings.load import LoadedSettings, load
from holdfast.settings.model import Settings
from holdfast.states import ACTIVE, AlreadyStarted, AppPaused, AppState, AppStopped, NotStarted
from holdfast.stores.options import Length
from holdfast.taken_names import find, take_name
from holdfast.terminal import run_in_terminal
from holdfast.topology.aggregation import Table
from holdfast.topology.endpoints import OwnEndpoint, checked_endpoints
from holdfast.topology.global_tables import GlobalTable, add_global_table, as_frame, check_sources, static_stream
from holdfast.topology.opening import open_stream
from holdfast.topology.outputs import DEAD_LETTERS
from holdfast.topology.parsing import JsonTexts
from holdfast.topology.plain_frames import PlainFrame
from holdfast.topology.sink import Sink
from holdfast.topology.stream import Stream
from holdfast.topology.tables import add_table
from holdfast.topology.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

logger = logging.getLogger(__name__)

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class App(Listened):
    """One pipeline with an id, its stores, and its log.

        app = hf.App("leaderboard")
        scores = app.stream(spark.readStream.schema(SCORE).json("scores/"), key="player", timestamp="at")
        scores.group_by().aggregate(games=hf.count(), best=hf.max("points")).store("players")
        app.run()

    Log, local state and Spark's checkpoint are under `./.holdfast` unless the settings say otherwise. Settings come
    from this object, then `holdfast.toml`, then the environment (`HOLDFAST_BATCH__COMMIT_INTERVAL=5s`); the last one
    wins.
    """

    def __init__(
        self,
        id: str,
        *,
        settings: Settings | None = None,
        settings_file: Path | None = None,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not _ID.fullmatch(id):
            raise SettingsError(
                f"{id!r} can't be the id of an app: it names folders and objects. Use up to 100 of a-z, 0-9, '.', '_' "
                "and '-', starting with a letter or a digit."
            )
        self.id = id
        self._loaded: LoadedSettings = load(settings, settings_file, os.environ)
        self._spark = spark
        if spark is not None:
            prepare_session(spark)  # before the user calls a UDF, which keeps the interpreter
        self._clock = clock or SYSTEM_CLOCK
        self._topology = Topology(self.settings.state.engine, self.settings.on_error)
        super().__init__()
        self._running: RunningApp | None = None
        self._in_terminal = False
        self._ending = Ending(self.settings.stop_timeout, self._failed)
        self._starting_or_stopping = threading.Lock()

    def __repr__(self) -> str:
        stores = [spec.name for spec in self._topology.stores]
        address = f", address={self.address!r}" if self.state in ACTIVE and self.address else ""
        return f"App({self.id!r}, state={str(self.state)!r}, version={self.version}{address}, stores={stores!r})"

    # What a user describes

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._loaded.settings

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the given one, the source's, or one created from the settings."""
        if self._spark is None:
            self._spark = session_of(self.id, self.settings.spark)
        return self._spark

    def reader(self, format: str) -> DataStreamReader:
        """`spark.readStream.format(...)` with the source's option for `batch.max_records` or `batch.max_files`."""
        return limited_reader(self.spark, format, self.settings.batch)

    def stream(
        self,
        df: object,
        *,
        key: str | Iterable[str],
        timestamp: str | None = None,
        position: str | Iterable[str] = (),
        name: str | None = None,
        whole_dead_letters: bool = False,
        parse: JsonTexts | None = None,
    ) -> Stream:
        """Adds a streaming DataFrame as a stream, with the columns of its key and the column of its event time.

        `position` names the columns by which records of the same time are ordered, Kafka's partition and offset by
        default. `name` is the name of the source, "main" by default for the first one; commits keep its clock under
        this name. A dead letter has the columns that the app uses; with `whole_dead_letters=True` it has all, and all
        are read.

        `parse=hf.json("value", "player string, points int, at timestamp")`: the records are in the texts of a column.
        Texts that can't be read, or that have no key or event time, are dead letters with the text and the cause.
        """
        from pyspark.sql import DataFrame

        if not isinstance(df, DataFrame | PlainFrame):
            raise TopologyError(f"app.stream() takes a streaming DataFrame, not {type(df).__name__}.")
        self._use_session_of(df)
        frame = cast("DataFrame", df)
        return open_stream(self._topology, frame, key, timestamp, position, name, whole_dead_letters, parse)

    def _use_session_of(self, df: object) -> None:
        from pyspark.sql import DataFrame

        if self._spark is None and isinstance(df, DataFrame):
            self._spark = df.sparkSession
            prepare_session(self._spark)

    def table(
        self,
        df: object,
        name: str,
        *,
        key: str | Iterable[str],
        timestamp: str | None = None,
        deleted: str | Column | None = None,
        position: str | Iterable[str] = (),
        parse: JsonTexts | None = None,
        history: Length | None = None,
        durable: bool = True,
        everywhere: bool = False,
        engine: str | None = None,
        profile: str = "balanced",
    ) -> Table:
        """Keeps the newest row per key of a changelog stream, in a store of this name.

        The newest row is that of the latest event time, then of the last source position; without `timestamp` it is
        the one that came last. Where `deleted` is true, the row is a tombstone and deletes the key:
        `app.table(changes, "players", key="id", timestamp="at", deleted="op = 'DELETE'")`. The source has the table's
        name.

        `history="7d"`: the rows that a key had are kept for that long by event time, and a stream that is joined with
        the table gets the row that was valid at the record's time.
        """
        stream = self.stream(df, key=key, timestamp=timestamp, position=position, name=name, parse=parse)
        options = {"durable": durable, "everywhere": everywhere, "engine": engine, "profile": profile}
        return add_table(stream, name, deleted, history, options)

    def global_table(
        self,
        df: object,
        name: str,
        *,
        key: str | Iterable[str],
        timestamp: str | None = None,
        deleted: str | Column | None = None,
        position: str | Iterable[str] = (),
        durable: bool = True,
        engine: str | None = None,
        profile: str = "balanced",
    ) -> GlobalTable:
        """Keeps the rows of a DataFrame in a table that every task can read as a whole, in a store of this name.

        Of a changelog stream it keeps the newest row per key, as `app.table` does. A static DataFrame, or a
        `pyarrow.Table`, has one row per key. It is read once per start, and what differs from the stored rows, deleted
        keys included, is part of the first version after it. Streams join it by any columns or expressions, without a
        shuffle: `orders.join(products, on="upper(code)", name="named")`; processors read it with `hf.GlobalStore`.
        """
        frame = as_frame(df)
        self._use_session_of(df)
        if frame.isStreaming:
            stream = self.stream(df, key=key, timestamp=timestamp, position=position, name=name)
        else:
            options = {"timestamp": timestamp, "deleted": deleted, "position": position}
            given = [option for option, value in options.items() if value not in (None, ())]
            stream = static_stream(self._topology, frame, name, (key,) if isinstance(key, str) else tuple(key), given)
        return add_global_table(stream, name, deleted, {"durable": durable, "engine": engine, "profile": profile})

    def dead_letters(self, sink: Sink) -> None:
        """Sets the sink of records that can't be used. The default is JSON files in `<base_dir>/<app>/dead-letters`."""
        self._topology.add_sink(DEAD_LETTERS, sink, DEAD_LETTERS)

    def serve(self, *endpoints: OwnEndpoint) -> None:
        """Adds endpoints of your own to REST: functions that are decorated with `hf.endpoint`."""
        self._topology.endpoints += checked_endpoints(endpoints)

    def describe(self, format: str = "text") -> str:
        """The app as text: its streams, stores, sinks and the places of its data.

        With `format="mermaid"` its topology as a flowchart, which GitHub and most wikis draw.
        """
        if format == "mermaid":
            return mermaid(self._topology)
        if format != "text":
            raise TopologyError(f"describe(format={format!r}) is not known. Use 'text' or 'mermaid'.")
        return describe(self.id, self.settings, self._topology)

    def plan(self) -> StartPlan:
        """What `start()` would change in the log: stores added, removed and changed, and why it would be refused.

        Nothing is changed. `print(app.plan())` is for people.
        """
        self._topology.check_real_sources()
        return plan(changed(self._description(), settings=self.settings.absolute()))

    # What a user runs

    @property
    def state(self) -> AppState:
        """The app's state."""
        return self._states.state

    @property
    def cause(self) -> BaseException | None:
        """Why the state is `error`."""
        return self._states.cause

    @property
    def version(self) -> int:
        """The newest version this app has committed or found; 0 before the first."""
        return self._running.version if self._running else 0

    @property
    def address(self) -> str | None:
        """The address for queries, such as `http://127.0.0.1:8080`: the first one of `addresses`."""
        return next(iter(self.addresses), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address for queries of each instance. Every one of them answers for all stores."""
        return self._running.instances.rest_addresses if self._running else ()

    @property
    def metrics_address(self) -> str | None:
        """The address of the driver's own metrics; each instance has its `/metrics` beside its queries."""
        return self._running.metrics_address if self._running else None

    @property
    def query(self) -> StreamingQuery:
        """Spark's streaming query, for its progress and metrics."""
        return self._started().query

    def start(self, *, replace: bool = False) -> App:
        """Starts instances, REST and the Spark query. Returns when every store is restored and was read once.

        Raises AlreadyStarted for an app that was started before: a running one goes on. Raises AppNameTaken while
        another app of this id runs on the session: with `replace=True` that one is stopped, and this one continues. A
        mistake that is found before leaves it running.
        """
        check_not_planned(self.id)
        if self._topology.is_empty:
            raise TopologyError(
                "The app has no store yet. Add one: stream.group_by(...).count().store('name'), or "
                "stream.process(...) with a processor."
            )
        check_sources(self._topology)
        self._topology.check_real_sources()
        if self.state is not AppState.CREATED:
            raise AlreadyStarted(self.id, self.state)
        self._loaded = changed(self._loaded, settings=self.settings.absolute())
        if not any(node.source == DEAD_LETTERS for node in self._topology.sinks):
            self.dead_letters(files(str(Path(self.settings.base_dir, self.id, DEAD_LETTERS)), format="json"))
        log = self.settings.log_url(self.id)
        name = take_name(self, self.spark, log, self._ending.has_begun, replace=replace)
        if not self._states.try_move(AppState.RESTORING):
            name.free()
            raise AlreadyStarted(self.id, self.state)
        try:
            with self._starting_or_stopping:
                self._running = start(self._description(), name, self._states, self._ending)
        except Interrupted:
            logger.info("app %s was stopped before it had started", self.id)
            self.stop()
            if self.cause is not None:
                raise self.cause from None
        except BaseException as error:
            # The caller gets the error. To log it too would show it twice.
            if self._states.try_move(AppState.ERROR, error):
                self._alerts.publish(error)
            self.stop()
            raise
        return self

    def run(self, *, replace: bool = False) -> None:
        """Starts the app and returns when it is stopped, by Ctrl-C, SIGTERM or `stop()` from another thread.

        `replace=True` is as for `start`. Ctrl-C stops the app as `stop()` does, and a second one ends it at once: Spark
        repeats the batch at the next start. Raises the error that stopped the app, if one did; if nobody catches it,
        Python prints its message alone.
        """
        self._in_terminal = True
        run_in_terminal(self, self._ending, lambda: self.start(replace=replace))

    def stop(self) -> None:
        """Ends the query after its batch, writes the sinks, stops the instances, within `stop_timeout`.

        What doesn't end in time is given up, and nothing is lost. It may be called twice and in every state.
        """
        if self.state is AppState.CREATED:
            return
        self._ending.ask()
        self._states.try_move(AppState.STOPPING)
        free = self._starting_or_stopping.acquire(timeout=self._ending.left() + 0.1)
        try:
            if not free:
                logger.warning(
                    "app %s is stopped without waiting longer for %s in another thread, where the log or Spark doesn't "
                    "answer. It ends when they do, and changes nothing more",
                    self.id,
                    "start()" if self._running is None else "stop()",
                )
            elif self._running is not None:
                self._running.stop()
        finally:
            self._states.try_move(AppState.STOPPED)
            self._close_listeners(lambda: min(1.0, self._ending.left() + 0.1))
            if free:
                self._starting_or_stopping.release()

    def process_all_available(self) -> None:
        """Returns when what the source has now and what is due now can be queried and is in the sinks.

        Due are windows that the newest records have closed, and punctuators and TTLs whose time has come at the call.
        For tests and batch jobs.
        """
        running = self._started()
        if self.state is AppState.STOPPED:
            raise AppStopped(f"App {self.id!r} is stopped. Start a new hf.App({self.id!r}): it continues from the log.")
        if self.state is AppState.PAUSED:
            raise AppPaused(f"App {self.id!r} is paused, so nothing is processed. Call app.resume() first.")
        running.process_all_available()

    def pause(self, note: str = "") -> None:
        """Starts no batch any more, also after a restart, until `resume`. The batch under way finishes, queries go on.

        The state is `paused`. The pause is an object in the log, with who asked for it and the note.
        """
        self._started().pausing.pause(note)

    def resume(self) -> None:
        """Goes on where the app was paused, whoever paused it."""
        self._started().pausing.resume()

    def __enter__(self) -> App:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self) -> RunningApp:
        if self._running is None and self.cause is not None:
            raise self.cause
        if self._running is None:
            raise NotStarted("The app is not started. Call app.start() first.")
        return self._running

    def _description(self) -> Description:
        return Description(
            id=self.id,
            settings=self.settings,
            spark=self.spark,
            topology=self._topology,
            connect=self._instances,
            check_places=lambda tasks: check_places(self.id, self.settings, tasks),
            clock=self._clock,
            restores=self._restores,
            rebalances=self._rebalances,
            alert=self._alert,
        )

    def _instances(
        self, app_file: int, on_event: OnEvent, on_rebalance: OnRebalance, ending: Ending, leadership: Leadership
    ) -> Instances:
        return GroupInstances(
            self.id,
            self.settings,
            app_file=app_file,
            on_event=on_event,
            on_failure=ending.fail,
            on_rebalance=on_rebalance,
            alert=self._alert,
            stopped=lambda: ending.asked,
            leadership=leadership,
        )

    def _alert(self, problem: BaseException) -> None:
        logger.error("app %s goes on with a problem: %s", self.id, problem)
        self._alerts.publish(problem)

    def _failed(self, cause: BaseException) -> None:
        if self._states.try_move(AppState.ERROR, cause):
            if logger.hasHandlers() or not self._in_terminal:
                logger.error("app %s stopped: %s", self.id, cause)  # else `run` raises it, and Python prints it
            self._alerts.publish(cause)


def running(id: str) -> App:
    """The app of this id in this process that was started last and isn't stopped. Raises NotRunning if there is none.

    For a notebook, in which its variable may be gone: `hf.running("leaderboard").stop()`.
    """
    return cast("App", find(id))
