"""Runs a whole app in one process: records in, outputs and stores out, at times that the test chooses.

    pipe(records) ─► tasks ─► segments ─► commit ─► outputs, stores
                                 log in memory ◄── crash(): everything else is gone, and starts again from here

Driver, log, commits, tasks, clocks and the delivery to sinks are those of an app. There is no streaming query, no
instance and no file. Spark starts only for stateless steps and SQL expressions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from holdfast.chance import SYSTEM_RANDOM
from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError, TopologyError, did_you_mean
from holdfast.log.changing import ChangeRules
from holdfast.log.commits import Commit, SparkBatch
from holdfast.log.leadership import Leadership
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.driver import BatchResult, Driver, Step
from holdfast.pipeline.due import due_of
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.local_tasks import LocalTasks
from holdfast.pipeline.results import TaskDone
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.pipeline.sinks.runner import SinkRunner, feeds_of
from holdfast.pipeline.starting import adopt, app_spec, limits_of
from holdfast.pipeline.static_tables import StaticTables
from holdfast.settings.model import Settings
from holdfast.settings.units import parse_duration
from holdfast.stores.access import Now
from holdfast.stores.kinds.base import millis
from holdfast.stores.layouts.due import Due
from holdfast.testing.ahead import warn_of_times
from holdfast.testing.attributes import AttributeWatch
from holdfast.testing.log_state import LogState
from holdfast.testing.records import as_table, several
from holdfast.testing.store_reader import StoreInTest
from holdfast.topology.global_tables import check_sources
from holdfast.topology.outputs import DEAD_LETTERS, OF_OUTPUT, OF_STORE
from holdfast.topology.processor import Processor
from holdfast.topology.topology import SinkNode, Source, Topology
from holdfast.topology.windowing import FINAL_ROWS
from holdfast.words import Millis, TaskId, Version

Row = dict[str, Any]

_START = datetime.fromisoformat("2030-01-01T00:00:00+00:00")


class AnApp(Protocol):
    """What a test needs of `hf.App`."""

    id: str
    _topology: Topology

    @property
    def settings(self) -> Settings: ...


class TestDriver:
    """Runs an app without Spark, one version per `pipe`.

    >>> import holdfast as hf
    >>> from holdfast.testing import TestDriver, records
    >>> app = hf.App("leaderboard")
    >>> games = app.stream(records("player string, points bigint, at timestamp"), key="player", timestamp="at")
    >>> _ = games.group_by().aggregate(games=hf.count(), best=hf.max("points")).store("players")
    >>> driver = TestDriver(app)
    >>> driver.pipe("main", [{"player": "ann", "points": 3, "at": "2030-01-01 00:00:01"}])
    1
    >>> driver.store("players").get("ann")
    {'games': 1, 'best': 3}
    >>> driver.output("players")
    [{'player': 'ann', 'games': 1, 'best': 3}]
    """

    __test__ = False  # pytest collects classes of this name otherwise

    def __init__(self, app: AnApp, *, wall: int | datetime = _START) -> None:
        """`wall` is what the wall clock shows at the start. It moves with `advance` alone."""
        self._id, self._settings = app.id, app.settings
        if app._topology.is_empty:
            raise TopologyError("The app has no store yet: there is nothing to test.")
        check_sources(app._topology)
        self._clock = ManualClock(Millis(millis(wall)))
        self._log_url = f"memory://test-{SYSTEM_RANDOM.getrandbits(64):x}"
        # The outside world: it keeps what it got, whatever happens to the app.
        self._outputs = {name: Memory() for name in app._topology.outputs}
        sinks = [SinkNode(f"test.{name}", name, sink) for name, sink in self._outputs.items()]
        self._topology = app._topology.with_sinks(sinks)
        self._asked: dict[str, Version] = {}
        self._watches: dict[str, AttributeWatch] = {}
        self._done = 0
        self._interrupted: Mapping[str, pa.Table] | None = None
        self._start()

    def _start(self) -> None:
        topology, settings = self._topology, self._settings
        spec = app_spec(self._id, settings.partitions, topology)
        rules = ChangeRules(keep_removed=settings.log.keep_removed, returned=settings.returned_stores)
        self._log = log = Log.create_or_open(open_storage(self._log_url), spec, rules=rules)
        adopt(log, topology)
        leadership = Leadership.take_over(log.storage, log.id, log.new_id(), self._clock.now())
        sinks = SinkRunner(log, feeds_of(topology), retry=lambda call: call(), check_leads=leadership.check)
        self._states = LogState(log, topology.subtopologies, settings.partitions)
        self._static = StaticTables.of(topology.subtopologies)
        limits = limits_of(settings, len(topology.subtopologies))
        self._tasks = LocalTasks(topology.subtopologies, limits, self._static, self._watch)
        idle_after = settings.batch.idle_after // timedelta(milliseconds=1)
        self._driver = Driver(
            log,
            sinks,
            self._clock,
            leadership,
            event_clock=EventClock(topology.timed_sources, idle_after, since=self._clock.now()),
            inline_bytes=settings.log.inline_bytes,
            on_commit=self._committed,
        )
        if (newest := self._driver.newest) is not None:
            sinks.catch_up(Version(newest.version))

    def _watch(self, processor: Processor, call: str) -> AbstractContextManager[None]:
        """Warns about attributes that a processor sets on itself, once per attribute."""
        own = type(processor)
        return self._watches.setdefault(own.__qualname__, AttributeWatch(own)).watched(processor, call)

    def _committed(self, commit: Commit) -> None:
        self._static.committed(own=True)
        self._states.catch_up(Version(commit.version))

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        newest = self._driver.newest
        return 0 if newest is None else newest.version

    @property
    def now(self) -> Now:
        """The wall clock, and the event clock of the newest version."""
        return Now(self._clock.now(), self._states.now.event)

    @property
    def counts(self) -> dict[str, int]:
        """What the newest version has counted: records, dead letters, late and expired entries, your own counts."""
        newest = self._driver.newest
        return {} if newest is None else dict(newest.counts)

    def pipe(self, source: str, records: Iterable[object] | object) -> int:
        """Processes records of one source as one batch, or a single record, and returns its version.

        A record is a mapping or an object with the source's columns. A column that it doesn't have is null. Times are
        datetimes, ISO texts or milliseconds since 1970.
        """
        self._pipe({source: records})
        return self.version

    def pipe_all(self, batch: Mapping[str, Iterable[object] | object]) -> int:
        """The same with records of several sources in one batch."""
        self._pipe(batch)
        return self.version

    def _pipe(self, batch: Mapping[str, Iterable[object] | object]) -> None:
        tables = {name: self._read(self._source(name), several(rows, name)) for name, rows in batch.items()}
        warn_of_times(self._topology.subtopologies, tables, self._clock.now(), self._settings.batch.max_ahead)
        self._process(tables)

    def _read(self, source: Source, rows: Iterable[object]) -> pa.Table:
        given = as_table(source.given or source.frame, rows, source.name)
        return given if source.parse is None else source.parse.rows(given, source.given or source.frame)

    def _source(self, name: str) -> Source:
        for source in self._topology.sources:
            if source.name == name:
                return source
        known = [source.name for source in self._topology.sources]
        raise TopologyError(
            f"pipe({name!r}): the app has no such source. {did_you_mean(name, known)}It has {', '.join(known)}."
        )

    def _process(self, tables: Mapping[str, pa.Table], moved: Mapping[str, int] | None = None) -> None:
        self._interrupted = tables
        batch = SparkBatch(query="test", batch=self._done, offsets=f"v1\n{{}}\n{self._done}")
        try:
            self._driver.process(batch, partial(self._compute, tables, moved or {}))
        except HoldfastError:
            self._interrupted = None  # the batch was refused
            raise
        self._done += 1
        self._interrupted = None

    def _compute(self, tables: Mapping[str, pa.Table], moved: Mapping[str, int], step: Step) -> BatchResult:
        found = self._tasks.compute(tables, step, self._log, self._states.of)
        if moved:
            found.tasks.append(TaskDone(str(TaskId(0, 0)), event_times=dict(moved)))
        return found

    def advance(self, wall: str | timedelta | None = None, *, stream: str | timedelta | None = None) -> int:
        """Lets time pass in which no record arrives, and returns the newest version.

        By the wall clock, `advance("30s")`: the versions are made that an app makes on its own then, in which entries
        expire and punctuators are called. By event time, `advance(stream="1h")`: as if each source had a record that
        much later, which no store is interested in.
        """
        if stream is not None:
            self._move_event_clock(_length(stream))
        self._settle(Millis(self._clock.now() + (0 if wall is None else _length(wall))))
        return self.version

    def _move_event_clock(self, by: int) -> None:
        newest = self._driver.newest
        if newest is None or newest.clocks.event is None:
            raise TopologyError("advance(stream=...): there is no event time before the first record. Pipe one first.")
        times = {name: newest.clocks.sources.get(name, newest.clocks.event) for name in self._topology.timed_sources}
        self._process({}, {name: time + by for name, time in times.items()})

    def _settle(self, until: Millis) -> None:
        """Makes the versions that are due up to a time, as `holdfast.idle` does, and sets the clock to that time.

        What is due right after one of them waits for `idle_interval`, or until that time.
        """
        interval = self._settings.batch.idle_interval // timedelta(milliseconds=1)
        made: Millis | None = None
        while self._driver.newest is not None:
            due = self._due()
            first = Due.soonest(due.values()).first
            if first is None or first > until or made == until:
                break
            earliest = self._clock.now() if made is None else min(made + interval, until)
            at = Millis(max(first, earliest))
            self._clock.advance((at - self._clock.now()) / 1000)
            names = frozenset(name for name, each in due.items() if each.tasks is not None and each.tasks <= at)
            self._driver.advance(partial(self._compute_idle, names))
            made = at
        self._clock.advance((until - self._clock.now()) / 1000)

    def _due(self) -> dict[str, Due]:
        driver = self._driver
        due = due_of(self._topology.subtopologies, self._states.due(), driver.next_step, driver.clock_moves_at)
        return {**due, **self._static.due()}

    def _compute_idle(self, due: frozenset[str], step: Step) -> BatchResult:
        return self._tasks.compute_idle(due, step, self._log, self._states.of)

    def crash(self) -> TestDriver:
        """Ends the app as a kill does, and starts it again: only its log and what sinks have got are still there.

        A batch that the crash interrupted is processed again, as Spark does. Returns this driver.
        """
        interrupted = self._interrupted
        self._start()
        if interrupted is not None:
            self._process(interrupted)
        return self

    def output(self, name: str) -> list[Row]:
        """The rows of an output since the last call: of a table its changed rows, of a processor what it forwarded.

        Other outputs have names such as `"visits/alerts"`, of a processor, and `"minutes/final"`, of a table. The last
        part is enough where no other output has it.
        """
        found = self._output(name)
        rows, after = self._outputs[found].versions, self._asked.get(found, 0)
        self._asked[found] = Version(self.version)
        return [row for version in sorted(rows) if version > after for row in rows[version]]

    def _output(self, name: str) -> str:
        known = names_in_tests(self._outputs)
        if name in known:
            return known[name]
        ends = [each for each in known if each.endswith(f"{OF_OUTPUT}{name}")]
        if not ends and name.rpartition(OF_OUTPUT)[2] == FINAL_ROWS:
            raise TopologyError(
                f"output({name!r}): no table sends final rows. Ask for them where the app is built: table.final()."
            )
        if len(ends) != 1:
            raise TopologyError(
                f"output({name!r}): {'several outputs have' if ends else 'no output has'} this name. "
                f"{did_you_mean(name, known)}There are {', '.join(sorted(known))}."
            )
        return known[ends[0]]

    def dead_letters(self) -> list[Row]:
        """The records that could not be used since the last call: reason, record, times and version."""
        return [{**row, "record": json.loads(row["record"])} for row in self.output(DEAD_LETTERS)]

    def store(self, name: str) -> StoreInTest:
        """A store as it is after the newest version."""
        for each in self._topology.subtopologies:
            for place, spec in enumerate(each.stores):
                if spec.name == name:
                    return StoreInTest(each, place, list(self._states.of_store(name)), self.now)
        known = [spec.name for spec in self._topology.stores]
        raise TopologyError(f"store({name!r}): {did_you_mean(name, known)}The app's stores are {', '.join(known)}.")


def names_in_tests(outputs: Iterable[str]) -> dict[str, str]:
    """What a test calls each output: the table or processor, and after a slash which of its outputs.

    A table of a function has its own name, as any table, though its changes are those of a processor's store. A
    processor's output comes before the changes of a store of the same name.

    >>> names_in_tests(["minutes~final", "visits", "visits/seen", "visits~seen", "sums~sums"])
    {'visits': 'visits', 'visits/seen': 'visits/seen', 'sums': 'sums~sums', 'minutes/final': 'minutes~final'}
    """
    given = list(outputs)
    found = {name: name for name in given if OF_STORE not in name}
    of_stores = [(name, *name.split(OF_STORE)) for name in given if OF_STORE in name]
    for name, table, store in of_stores:
        if table == store:
            found.setdefault(table, name)
    for name, table, store in of_stores:
        if name not in found.values():
            found.setdefault(f"{table}{OF_OUTPUT}{store}", name)
    return found


def _length(given: str | timedelta) -> int:
    return parse_duration(given) // timedelta(milliseconds=1)
