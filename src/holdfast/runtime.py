"""A running app: `start` builds its parts in this order, and `RunningApp.stop` ends them in the reverse order.

    log ─► leadership ─► sinks caught up ─► instances restored, every store read once ─► Spark's query

A start that fails ends the parts that it has built. The end of Spark's query ends the app, and so does another driver
that takes over. What can be checked is checked before this driver takes over itself, so that a mistaken start leaves a
running one alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast import faults
from holdfast.batches import BatchRunner, RunningQuery, count_commit, start_query
from holdfast.clock import Clock, SteadyClock, WallClock
from holdfast.driver_metrics import DriverMetrics
from holdfast.ending import BATCH, SINKS, Ending
from holdfast.errors import Interrupted
from holdfast.group.rebalances import RebalanceEvent
from holdfast.group.rules import everywhere
from holdfast.idle import IdleVersions
from holdfast.instance.events import RestoreEvent
from holdfast.instance.restore_bars import RestoreBars
from holdfast.instances import Instances
from holdfast.listened import on_rebalance
from holdfast.listeners import ListenerPool
from holdfast.log.appfile import AppSpec
from holdfast.log.chain import CommitChain
from holdfast.log.changing import ChangeRules
from holdfast.log.cleaning import Cleaner
from holdfast.log.commits import BEGINNING, Commit, Point
from holdfast.log.leadership import Leadership, may_be_led
from holdfast.log.log import Log
from holdfast.log.notes import clock_notes, sink_notes
from holdfast.log.objects import Storage
from holdfast.log.starting import StartPlan, plan_start
from holdfast.log.storage import open_storage
from holdfast.loops import Loops
from holdfast.pausing import Pausing
from holdfast.pipeline.driver import Driver
from holdfast.pipeline.due import due_of
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.former_source import stand_in
from holdfast.pipeline.offsets import Checkpoint, CheckpointUnreadable
from holdfast.pipeline.planners import BatchTasks
from holdfast.pipeline.protocol import DamagedCheckpoint, MissingVersions, NewCheckpoint, check_checkpoint, version_of
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.sinks.runner import SinkRunner, check_columns, check_folders, feeds_of, opened
from holdfast.pipeline.source_order import SourceRemoved, former, ordered
from holdfast.pipeline.spark import JobGroup, check_limits, prepare_session
from holdfast.pipeline.starting import adopt, app_spec, limits_of
from holdfast.pipeline.static_tables import StaticTables
from holdfast.pipeline.trial_query import check_query
from holdfast.retry import retrying
from holdfast.settings.model import Settings
from holdfast.states import AppState, StateMachine
from holdfast.taken_names import TakenName
from holdfast.topology.outputs import DEAD_LETTERS
from holdfast.topology.topology import Topology
from holdfast.upkeep import clean_log, watch_leadership
from holdfast.words import TaskId, Version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

OnEvent = Callable[[RestoreEvent], None]
OnRebalance = Callable[[RebalanceEvent], None]
Connect = Callable[[int, OnEvent, OnRebalance, Ending, Leadership], Instances]
"""Creates the app's instances for the app file of a number. They report restores, rebalances and failures."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """An app before its start."""

    id: str
    settings: Settings
    spark: SparkSession
    topology: Topology
    connect: Connect
    check_places: Callable[[Collection[TaskId]], None]
    """Raises if the instances of these tasks lack a port or a folder, also after a takeover."""
    clock: Clock
    restores: ListenerPool[RestoreEvent]
    rebalances: ListenerPool[RebalanceEvent]
    alert: Callable[[BaseException], None]
    """Reports a problem that doesn't stop the app."""


@dataclass(frozen=True, kw_only=True)
class RunningApp:
    """The parts that `start` has built."""

    log: Log
    sinks: SinkRunner
    instances: Instances
    driver: Driver
    running_query: RunningQuery
    idle: IdleVersions
    batches: BatchRunner
    pausing: Pausing
    metrics_address: str | None
    ending: Ending
    closing: contextlib.ExitStack

    @property
    def query(self) -> StreamingQuery:
        return self.running_query.query

    @property
    def version(self) -> Version:
        return version_of(self.driver.newest)

    def process_all_available(self) -> None:
        try:
            self.running_query.process_all_available()
            self.instances.wait_until_visible(self.version)  # before they are asked what is due
            self.idle.catch_up()
            version = self.version
            self.sinks.catch_up(version)
            self.instances.wait_until_visible(version)
            if self.ending.failed:  # Spark's call returns also when the query was stopped
                raise Interrupted("The app has failed while it processed what was available.")
        except Exception as error:
            # What the caller's wait ended with is often an effect: a job that was cancelled, an instance that ended.
            if (cause := self.ending.cause_of(error)) is error:
                raise
            raise cause from None

    def stop(self) -> None:
        """Ends every part in the reverse order of the start, even if another one fails to end."""
        self.ending.ask()
        self.closing.close()


def start(app: Description, name: TakenName, states: StateMachine, ending: Ending) -> RunningApp:
    """Starts an app. Raises Interrupted when it is asked to stop meanwhile."""
    closing = contextlib.ExitStack()
    try:
        return _started(app, name, states, ending, closing)
    except BaseException:
        ending.ask()
        closing.close()
        raise


def _started(
    app: Description, name: TakenName, states: StateMachine, ending: Ending, closing: contextlib.ExitStack
) -> RunningApp:
    faults.load_from_environment("driver")
    settings, topology = app.settings, app.topology
    closing.callback(name.free)
    prepare_session(app.spark)
    check_folders(topology)
    check_columns(topology)
    frames = {source.name: source.frame for source in topology.sources if source.name in topology.used_sources}
    for note in check_limits(frames, settings.batch):
        logger.warning("%s.", note)
    log = _opened_log(app)
    before = _checked_newest(app, log)
    ending.call("a sink's open()", lambda: opened(feeds_of(topology), log))
    app.check_places(log.app.tasks())
    after = before.writer if before else None
    if may_be_led(log.storage, log.id, after):
        _check_before_takeover(app, log, before, ending)
    name.make_way()
    ending.check()  # one that was given up, because the log didn't answer for long, takes over from nobody
    leadership = Leadership.take_over(log.storage, log.id, log.new_id(), app.clock.now(), after)
    closing.callback(leadership.end)
    ending.explain = leadership.explain
    found = _checked_newest(app, log)
    for note in _notes(app, log.chain, found, _former_sources(app, found)):
        logger.warning("%s.", note)
    log, newest = _planned_again(app, log, before, found), found.point if found else BEGINNING
    sinks = SinkRunner(
        log,
        feeds_of(topology),
        retry=lambda call: retrying(call, settings.retry, sleep=ending.pause),
        check_leads=leadership.check,
        on_failure=ending.fail,
        given_up=lambda: ending.is_over(BATCH),
    )
    sinks.start()
    closing.callback(lambda: sinks.stop(ending.left(SINKS)))
    sinks.catch_up(newest.version)
    ending.check()
    instances = _restored_instances(app, log, newest, states, ending, closing, leadership)

    static = StaticTables.of(topology.subtopologies)

    def committed(commit: Commit) -> None:
        static.committed(own=commit.writer == leadership.driver)
        instances.committed(commit.point)
        count_commit(commit, dead_letters)

    dead_letters = next(node.sink for node in topology.sinks if node.source == DEAD_LETTERS)
    clock = SteadyClock(app.clock, settings.batch.max_clock_jump, on_jump=app.alert)
    idle_after = settings.batch.idle_after // timedelta(milliseconds=1)
    event_clock = EventClock(topology.timed_sources, idle_after, since=app.clock.now())
    driver = Driver(
        log,
        sinks,
        clock,
        leadership,
        event_clock=event_clock,
        inline_bytes=settings.log.inline_bytes,
        restart_sources=_restarts_sources(app),
        on_commit=committed,
    )
    served = DriverMetrics(app.id, settings, ending.pause) if settings.rest.enabled else None

    def free() -> None:
        """Frees the ports and folders on this machine."""
        if served is not None:
            served.stop(ending.left())
        instances.stop(ending.left())

    closing.callback(free)
    closing.callback(lambda: sinks.stop(ending.left(SINKS)))  # before the instances, which may use all of the time
    metrics_address = served.address if served else None
    states.add_listener(lambda old, new: instances.set_app_state(new, states.cause, metrics_address))

    def locations() -> StateLocations:
        return _locations(app, log, instances)

    checkpoint = _checkpoint(app)
    checkpoint = replace(checkpoint, sources=ordered(topology.used_sources, found, checkpoint.query_id()))
    checkpoint.make_room()
    if found is not None and found.spark is not None and _former_sources(app, found):
        checkpoint.forget_planned(found.spark.batch)
    tasks = _batch_tasks(app, found, static)
    pausing = Pausing(app.id, log.storage, log.id, states, ending)
    batches = BatchRunner(checkpoint, driver, tasks, locations, settings, ending, clock, pausing.wait_until_resumed)
    session = app.spark.newSession()
    jobs = JobGroup(app.spark.sparkContext, f"holdfast {app.id} {leadership.driver}")
    idle = IdleVersions(
        driver=driver,
        due=lambda version: {
            **due_of(topology.subtopologies, instances.due(version), driver.next_step, driver.clock_moves_at),
            **static.due(),
        },
        compute=lambda due, step: tasks.compute_idle(session, due, step, locations()),
        clock=clock,
        interval=settings.batch.idle_interval,
        ending=ending,
        is_paused=lambda: pausing.paused,
        begin=jobs.begin,
        cancel=jobs.cancel,
    )
    loops = Loops(ending, app.alert)
    closing.callback(loops.join)

    ending.check()

    def start_again() -> StreamingQuery:
        return start_query(app.id, tasks.query_frame, batches)

    query = RunningQuery(start_again(), app.spark.sparkContext, batches, ending, start_again)
    closing.callback(query.stop)
    closing.callback(idle.stop)  # before the query's, whose batch may wait for a version under way

    def watch() -> None:
        query.watch()
        idle.stop()  # also of an app that has failed

    if not states.try_move(AppState.RUNNING):
        raise Interrupted("The app was told to stop before it had started.")
    pausing.look()
    cleaner = _cleaner(app, log, leadership, clock)
    loops.start("query", watch)
    loops.start("idle", idle.run)
    loops.start("pausing", pausing.watch)
    loops.start("cleaner", lambda: clean_log(cleaner, settings.log.clean_interval, ending, app.alert))
    loops.start("leadership", lambda: watch_leadership(leadership, ending, free))
    return RunningApp(
        log=log,
        sinks=sinks,
        instances=instances,
        driver=driver,
        running_query=query,
        idle=idle,
        batches=batches,
        pausing=pausing,
        metrics_address=metrics_address,
        ending=ending,
        closing=closing,
    )


def plan(app: Description) -> StartPlan:
    """What a start would change in the log, and why Spark's checkpoint would be refused. Changes nothing."""
    storage, done = _storage(app), _checkpoint(app).last_done()
    planned = plan_start(storage, spec_of(app), rules_of(app.settings))
    chain = CommitChain(storage, planned.after.log)
    newest = None if planned.before is None else chain.newest()
    refusals, gone = planned.refusals, dict[str, str]()
    try:
        _check_checkpoint(app, newest, done)
        gone = _former_sources(app, newest)
    except (CheckpointUnreadable, DamagedCheckpoint, MissingVersions, NewCheckpoint, SourceRemoved) as error:
        refusals = (*refusals, str(error))
    return replace(planned, warnings=(*planned.warnings, *_notes(app, chain, newest, gone)), refusals=refusals)


def _notes(app: Description, chain: CommitChain, newest: Commit | None, gone: Iterable[str]) -> list[str]:
    """What to know before a start that finds this commit as the newest. `gone` are the sources that the code lacks."""
    if newest is None:
        return []
    clock = clock_notes(newest, app.topology.stores, app.clock.now(), app.settings.batch.max_clock_jump)
    sources = [
        f"source {name!r} isn't in the code any more: its position is kept, and it goes on there when it comes back"
        for name in gone
    ]
    # A start adds the sink of dead letters if the code has none.
    sinks = dict.fromkeys((*(node.name for node in app.topology.sinks), DEAD_LETTERS))
    return [*clock, *sources, *sink_notes(sinks, newest, chain)]


def _check_before_takeover(app: Description, log: Log, newest: Commit | None, ending: Ending) -> None:
    """Tries what would fail only after the takeover, when the driver before has stopped. Changes nothing."""
    once = SinkRunner(log, feeds_of(app.topology), retry=lambda call: call(), check_leads=lambda: None)
    once.check_next()
    check_query(_batch_tasks(app, newest, StaticTables.of(app.topology.subtopologies)).query_frame, ending.pause)


def _storage(app: Description) -> Storage:
    log = app.settings.log
    return open_storage(app.settings.log_url(app.id), log.options, fsync=log.fsync, retry=app.settings.retry)


def _opened_log(app: Description) -> Log:
    opened = Log.create_or_open(_storage(app), spec_of(app), rules=rules_of(app.settings))
    adopt(opened, app.topology)
    return opened


def _planned_again(app: Description, log: Log, before: Commit | None, newest: Commit | None) -> Log:
    """The log after the takeover: the driver before may have committed meanwhile, and with another app file."""
    if newest is None or (before is not None and before.app == newest.app):
        return log
    return _opened_log(app)


def _checked_newest(app: Description, log: Log) -> Commit | None:
    """The newest commit, if Spark's checkpoint belongs to it."""
    done = _checkpoint(app).last_done()  # first: a driver that may be running commits before Spark does
    newest = log.newest()
    _check_checkpoint(app, newest, done)
    return newest


def _check_checkpoint(app: Description, newest: Commit | None, done: int | None) -> None:
    checkpoint = _checkpoint(app)
    query = checkpoint.query_id()
    check_checkpoint(newest, query, _restarts_sources(app), done, checkpoint.damaged())
    ordered(app.topology.used_sources, newest, query)


def _checkpoint(app: Description) -> Checkpoint:
    return Checkpoint(app.spark, app.settings.checkpoint(app.id))


def _restarts_sources(app: Description) -> bool:
    return app.settings.on_new_checkpoint == "restart_sources"


def _restored_instances(
    app: Description,
    log: Log,
    newest: Point,
    states: StateMachine,
    ending: Ending,
    closing: contextlib.ExitStack,
    leadership: Leadership,
) -> Instances:
    bars = RestoreBars()
    closing.callback(bars.close)

    def on_event(event: RestoreEvent) -> None:
        bars.show(event)
        app.restores.publish(event)

    instances = app.connect(log.app.number, on_event, on_rebalance(states, app.rebalances), ending, leadership)
    closing.callback(lambda: instances.stop(ending.left()))
    instances.assign(log.app.tasks(), everywhere(log.app))
    instances.wait_until_ready(newest)
    return instances


def _cleaner(app: Description, log: Log, leadership: Leadership, clock: WallClock) -> Cleaner:
    sinks = [node.name for node in app.topology.sinks]
    retention = app.settings.log.retention
    return Cleaner(log, retention=retention, sinks=lambda: sinks, clock=clock, check_leads=leadership.check)


def _batch_tasks(app: Description, newest: Commit | None, static: StaticTables) -> BatchTasks:
    """The tasks of an app whose newest commit is this one."""
    subtopologies = app.topology.subtopologies
    sources = ordered(app.topology.used_sources, newest, _checkpoint(app).query_id())
    stand_ins = {name: stand_in(app.spark, position) for name, position in _former_sources(app, newest).items()}
    return BatchTasks(subtopologies, limits_of(app.settings, len(subtopologies)), sources, static, stand_ins)


def _former_sources(app: Description, newest: Commit | None) -> dict[str, str]:
    return former(app.topology.used_sources, newest, _checkpoint(app).query_id())


def rules_of(settings: Settings) -> ChangeRules:
    """What the settings say about stores that come and go."""
    return ChangeRules(keep_removed=settings.log.keep_removed, returned=settings.returned_stores)


def spec_of(app: Description) -> AppSpec:
    """The app for its file in the log."""
    return app_spec(app.id, app.settings.partitions, app.topology)


def _locations(app: Description, log: Log, instances: Instances) -> StateLocations:
    return StateLocations(
        log_url=app.settings.log_url(app.id),
        log_id=log.id,
        app_file=log.app.number,
        log_options=app.settings.log.options,
        credentials=instances.credentials,
        fsync=app.settings.log.fsync,
        replicas=instances.replicas(),
        deadline=app.settings.batch.read_deadline,
        retry=app.settings.retry,
    )
