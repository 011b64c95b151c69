"""The life of an app whose code changes: starts, stops, crashes, overlaps and changes in one process, without Spark.

A `Life` is one process of the app: a driver, its tasks, sinks, replicas, snapshots and the cleaner, all real, on a log
in memory and a folder. An `App` is what stays between them. Beside it, `Oracle` counts the same records in
dictionaries.
"""

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
from msgspec import structs

from holdfast.clock import ManualClock
from holdfast.errors import Closed
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import TaskDirectory
from holdfast.log.appfile import AppSpec, SubTopologySpec, effective
from holdfast.log.changing import START_OVER, ChangeRules
from holdfast.log.cleaning import Cleaner
from holdfast.log.commits import SparkBatch
from holdfast.log.leadership import Leadership
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import BatchResult, Driver, Step
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.results import TaskDone, TaskResult, decode, encode
from holdfast.pipeline.sinks.builtin import Memory
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.sinks.runner import Feed, SinkRunner
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.task_state import EmptyState
from holdfast.stores.access import Now
from holdfast.stores.engines.base import Resources
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.aggregates import count, max, sum
from holdfast.topology.outputs import AggregateRows
from holdfast.topology.reducers import bind
from holdfast.words import NOTHING, TaskId, Version
from tests.crash.machine import KEY, PARTITIONS, START, Machine, ReplicaState, limits_of, table_of

Record = tuple[str, int]
Row = dict[str, int | None]

_DELIVERED = ("n", "total")
REDUCERS = {
    "n": bind("n", count(), None),
    "total": bind("total", sum("points"), "bigint"),
    "best": bind("best", max("points"), "bigint"),
}


SHARED = ("a", "b")
"""Tables that have one sub-topology; every other one has its own. A processor can have several stores in this way."""


@dataclass(frozen=True)
class Table:
    """A table as the code of one release has it."""

    name: str
    best: bool = False
    """It has one more aggregate, which starts with the records after it was added."""
    sink: bool = False
    engine: str = "rocksdb"

    @property
    def subtopology(self) -> str:
        return "shared" if self.name in SHARED else self.name

    @property
    def columns(self) -> tuple[str, ...]:
        return ("n", "total", "best") if self.best else ("n", "total")

    @property
    def spec(self) -> StoreSpec:
        return StoreSpec(
            name=self.name,
            key=KEY,
            value=RowValues(Schema(tuple(Field(column, "bigint") for column in self.columns))),
            codec="rows/1",
            engine=self.engine,
            from_now=("best",),
        )


Code = tuple[Table, ...]
"""What one release of the app has."""


class Life:
    """One process of the app."""

    def __init__(self, app: "App", code: Code, rules: ChangeRules) -> None:
        self.app, self.code, self.rules = app, code, rules
        spec = AppSpec(
            id="app",
            partitions=PARTITIONS,
            stores=tuple(table.spec for table in code),
            subtopologies=_subtopologies(code),
        )
        self.log = Log.create_or_open(app.storage(), spec, rules=rules)
        leadership = Leadership.take_over(self.log.storage, self.log.id, uuid.uuid4().hex, app.clock.now())
        self.specs = {table.name: effective(self.log.app, table.spec) for table in code}
        feeds = [
            Feed(f"{name}-rows", AggregateRows(name, self.log.app.number_of(name), spec), app.sinks[name])
            for name, spec in self.specs.items()
            if any(table.name == name and table.sink for table in code)
        ]
        self.sinks = SinkRunner(self.log, feeds, retry=lambda call: call(), check_leads=leadership.check)
        reader, resources, events = LogReader(self.log), Resources(16 << 20), Events()
        self.replicas = {
            task: Replica(
                TaskDirectory(app.folder, task, "life"),
                reader,
                tuple(self.specs.get(store.name, store) for store in self.log.app.stores_of(task)),
                resources,
                events,
                ReplicaSettings(flush_versions=2),
                app.clock,
            )
            for task in self.log.app.tasks()
        }
        self.snapshotters = [Snapshotter(r, self.log, Machine.limits, app.clock) for r in self.replicas.values()]
        self.cleaner = Cleaner(
            self.log,
            retention=timedelta(0),
            sinks=lambda: [feed.name for feed in feeds],
            clock=app.clock,
            check_leads=leadership.check,
        )
        self.driver = Driver(
            self.log, self.sinks, app.clock, leadership, event_clock=EventClock(["main"], 60_000), inline_bytes=0
        )
        if (newest := self.driver.newest) is not None:
            self.sinks.catch_up(Version(newest.version))

    def run(self, number: int, records: Sequence[Record]) -> None:
        """Makes a version of a Spark batch; then the work of the instances and of the cleaner."""
        batch = SparkBatch(query="query", batch=number, offsets=f"v1\n{{}}\n{records!r}")
        self.driver.process(batch, partial(self._computed, records))
        self.maintain()

    def idle(self) -> None:
        """Makes a version without a Spark batch and without tasks."""
        self.driver.advance(lambda step: BatchResult())
        self.maintain()

    def maintain(self) -> None:
        if (newest := self.driver.newest) is None:
            return
        for replica in self.replicas.values():
            replica.catch_up(Version(newest.version))
            if replica.flush_due():
                replica.flush_overlay()
        for snapshotter in self.snapshotters:
            with contextlib.suppress(Closed):  # a store that has just begun has nothing to save
                snapshotter.step()
        self.cleaner.clean()

    def _computed(self, records: Sequence[Record], step: Step) -> BatchResult:
        found: dict[str, TaskDone] = {}
        for result in (result for table in self.code for result in self._results(table, records, step)):
            assert isinstance(result, TaskDone)
            others = found[result.task].segments if result.task in found else ()
            found[result.task] = structs.replace(result, segments=(*others, *result.segments))
        return BatchResult(list(found.values()), {"main": len(records)})

    def _results(self, table: Table, records: Sequence[Record], step: Step) -> Iterator[TaskResult]:
        number = self.log.app.number_of(table.name)
        rows = _grouped(records, table.columns)
        where = partitions_of(KEY, [rows["k0"]], PARTITIONS)
        work = AggregationWork(
            number,
            step.version,
            self.specs[table.name],
            tuple(REDUCERS[column] for column in table.columns),
            TaskColumns(keys=("k0",), partials=tuple(f"p{n}" for n in range(len(table.columns))), rows="p0", time=None),
            Now(step.wall, step.event),
            limits_of(step),
        )
        before = Version(step.version - 1)
        for partition in range(PARTITIONS):
            task = TaskId(number, partition)
            state = EmptyState() if before == NOTHING else ReplicaState(self.replicas[task], before)
            own = rows.filter(pa.array(where == partition))
            yield decode(encode(work.run(task, [own], self.log, state)))

    def state(self) -> dict[str, dict[str, Row]]:
        """Each table of the code, read from the replicas."""
        if (newest := self.driver.newest) is None:
            return {table.name: {} for table in self.code}
        found: dict[str, dict[str, Row]] = {}
        for table in self.code:
            rows: dict[str, Row] = found.setdefault(table.name, {})
            for partition in range(PARTITIONS):
                replica = self.replicas[TaskId(self.log.app.number_of(table.name), partition)]
                replica.catch_up(Version(newest.version))
                with replica.read_view(Version(newest.version)) as view:
                    entries = list(view.scan(table.name, b"", None))
                for row in aggregate_rows(self.specs[table.name], table_of(entries)).to_pylist():
                    rows[row.pop("player")] = row
        return found

    def close(self) -> None:
        """Ends the process as a clean stop does."""
        self.sinks.stop()
        for replica in self.replicas.values():
            replica.close()

    def vanish(self) -> None:
        """Ends the process as a kill does: nothing is flushed, and the folder is free."""
        for replica in self.replicas.values():
            replica.published.clear()
            if replica._engines is not None:
                replica._engines.close()
            replica._home.close()


def _subtopologies(code: Code) -> tuple[SubTopologySpec, ...]:
    stores: dict[str, list[str]] = {}
    for table in code:
        stores.setdefault(table.subtopology, []).append(table.name)
    return tuple(SubTopologySpec(name, n, tuple(found)) for n, (name, found) in enumerate(stores.items()))


def _grouped(records: Sequence[Record], columns: Sequence[str]) -> pa.RecordBatch:
    """The records as tasks get them from Spark: one row per key."""
    rows: dict[str, Row] = {}
    for record in records:
        _count(rows, record, columns)
    ordered = sorted(rows, key=lambda player: encode_key(KEY, [player]))
    values = {f"p{n}": pa.array([rows[p][c] for p in ordered], pa.int64()) for n, c in enumerate(columns)}
    return pa.RecordBatch.from_pydict(
        {"_dead": pa.nulls(len(ordered), pa.string()), "k0": pa.array(ordered, pa.string()), **values}
    )


def _count(rows: dict[str, Row], record: Record, columns: Sequence[str]) -> None:
    player, points = record
    row = rows.setdefault(player, dict.fromkeys(columns, None))
    row["n"] = (row["n"] or 0) + 1
    row["total"] = (row["total"] or 0) + points
    if "best" in columns:
        best = row.get("best")
        row["best"] = points if best is None or points > best else best


@dataclass
class Oracle:
    """The truth in dictionaries."""

    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    delivered: dict[tuple[str, int], dict[str, Row]] = field(default_factory=dict)
    """What the sink of a table got in a version, for versions that were made while it had one.

    Without `best`: a version that is delivered again after a crash has the columns of the code that delivers it.
    """
    current: Code = ()
    """The code of the newest version."""

    def change(self, version: int, code: Code, rules: ChangeRules) -> None:
        """What the first version of a process changes before its records count.

        A sink that was removed after a crash may not have the version before the crash. A store that was removed before
        is dropped, unless it is kept.
        """
        if not rules.keep_removed:
            for name in {*self.rows} - {table.name for table in (*self.current, *code)}:
                del self.rows[name]
        fed = {table.name for table in code if table.sink}
        for name in {table.name for table in self.current} - fed:
            self.delivered.pop((name, version - 1), None)
        before = {table.name: table for table in self.current}
        for table in code:
            rows = self.rows.setdefault(table.name, {})
            if table.name not in before and rules.returned.get(table.name) == START_OVER:
                rows.clear()
            for row in rows.values():
                if not table.best:
                    row.pop("best", None)
                else:
                    row.setdefault("best", None)
        self.current = code

    def count(self, version: int, records: Sequence[Record]) -> None:
        for table in self.current:
            for record in records:
                _count(self.rows[table.name], record, table.columns)
            if table.sink and records:
                rows = self.rows[table.name]
                self.delivered[table.name, version] = {p: {c: rows[p][c] for c in _DELIVERED} for p, _ in records}


class App:
    """An app over all its lives: the log, the folder, the clock, the sinks and the truth."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._name = uuid.uuid4().hex
        self._folders = 0
        self.folder = folder / "0"
        self.clock = ManualClock(START)
        self.sinks: Mapping[str, Memory] = _Sinks()
        self.oracle = Oracle()
        self.done = 0
        """The batches that Spark's checkpoint has as done."""
        self._planned: dict[int, Sequence[Record]] = {}
        """Spark writes down what a batch has before it runs: it never changes."""
        self.version = 0
        """The newest version."""
        self._made_newest: Life | None = None

    def storage(self) -> Storage:
        return open_storage(f"memory://{self._name}-log")

    def start(self, code: Code, returned: str = START_OVER, keep_removed: timedelta = timedelta(days=7)) -> Life:
        """Starts a process with this code. It takes over from one that runs."""
        returning = dict.fromkeys(self.returning(code), returned)
        return Life(self, code, ChangeRules(returned=returning, keep_removed=keep_removed))

    def returning(self, code: Code) -> set[str]:
        """The stores that come back with this code."""
        return {*self.oracle.rows} & {table.name for table in code} - {table.name for table in self.oracle.current}

    def run(self, life: Life, records: Sequence[Record]) -> None:
        """Runs the next Spark batch, with these records unless it is a repeated one."""
        records = self._planned.setdefault(self.done, records)
        with self._counted(life, records):
            life.run(self.done, records)
        self.done += 1

    def idle(self, life: Life) -> None:
        """Makes a version without a Spark batch, as a quiet app does when something is due."""
        with self._counted(life, ()):
            life.idle()

    @contextlib.contextmanager
    def _counted(self, life: Life, records: Sequence[Record]) -> Iterator[None]:
        """The truth counts a version as soon as it is in the log, whatever happens then."""
        self.clock.advance(1)
        try:
            yield
        finally:
            newest = life.log.newest()
            if newest is not None and newest.version > self.version:
                assert newest.version == self.version + 1
                self.version += 1
                if life is not self._made_newest:
                    self.oracle.change(self.version, life.code, life.rules)
                self._made_newest = life
                self.oracle.count(self.version, records)

    def lose_folder(self) -> None:
        """The next process starts with an empty folder."""
        self._folders += 1
        self.folder = self._root / str(self._folders)

    def delivered(self) -> dict[tuple[str, int], dict[str, Row]]:
        """What sinks got in the versions that were made while their tables had them."""
        found: dict[tuple[str, int], dict[str, Row]] = {}
        for name, version in self.oracle.delivered:
            rows = self.sinks[name].versions.get(Version(version), [])
            found[name, version] = {str(row["player"]): {c: row[c] for c in _DELIVERED} for row in rows}  # type: ignore[misc]
        return found


class _Sinks(dict[str, Memory]):
    def __missing__(self, name: str) -> Memory:
        self[name] = Memory()
        return self[name]
