"""An app in one process: real driver, tasks, sinks, replicas, snapshots and cleaning, without Spark.

A crash is an exception that nothing catches, raised at a fault point. It leaves what a kill leaves, since nothing
runs after it. `restart` builds everything again from the log and the folder.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import structs

from holdfast import faults
from holdfast.clock import ManualClock
from holdfast.instance.config import unchecked
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.range_reads import IN_RANGES
from holdfast.instance.read_views import ReadView
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import TaskDirectory
from holdfast.log.appfile import AppSpec
from holdfast.log.cleaning import Cleaner
from holdfast.log.commits import SparkBatch
from holdfast.log.leadership import Leadership
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.segments import STATE_SCHEMA
from holdfast.log.storage import open_storage
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import BatchResult, Driver, Step
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.processing_task import ProcessingWork
from holdfast.pipeline.results import TaskResult, decode, encode
from holdfast.pipeline.sinks.builtin import Files, Memory
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.sinks.runner import Feed, SinkRunner, opened
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.pipeline.task_state import EmptyState, TaskState
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.engines.base import Resources
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds.versioned import ReadOnlyVersionedKeyValueStore
from holdfast.stores.ranges import Ranges
from holdfast.stores.spec import VERSIONED, RowValues, StoreSpec
from holdfast.topology.aggregates import count, sum
from holdfast.topology.outputs import AggregateRows, Output
from holdfast.topology.reducers import bind
from holdfast.words import NOTHING, Millis, TaskId, Version
from tests.log.making import subtopologies_of

PARTITIONS = 2
START = Millis(1_000_000)
KEY = Schema((Field("player", "string"),))
SPEC = StoreSpec(
    name="scores",
    key=KEY,
    value=RowValues(Schema((Field("n", "bigint"), Field("total", "bigint")))),
    codec="rows/1",
    engine="rocksdb",
)
BOUNDED = structs.replace(SPEC, max_entries=2)
EXPIRING = structs.replace(SPEC, ttl_ms=2_500, slice_ms=1_000)
VERSIONED_TABLE = structs.replace(SPEC, kind=VERSIONED, retention_ms=2_500, slice_ms=1_000, clock="wall")
REDUCERS = (bind("n", count(), None), bind("total", sum("points"), "bigint"))
EVENT_CLOCK = EventClock(["main"], 60_000)
COLUMNS = TaskColumns(keys=("k0",), partials=("p0", "p1"), rows="p0", time=None)
TASKS = [TaskId(0, n) for n in range(PARTITIONS)]

Record = tuple[str, int]


class Crash(BaseException):
    """The end of the process."""


def crash_at(point: str, nth: int) -> Mapping[str, Callable[[], None]]:
    """A fault that ends the process when a point is reached for the nth time."""
    reached = 0

    def handle() -> None:
        nonlocal reached
        reached += 1
        if reached == nth:
            raise Crash(point)

    return {point: handle}


@dataclass(frozen=True)
class ReplicaState(TaskState):
    """A task's stores at a version, read from a replica of this process."""

    replica: Replica
    version: Version

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        with self.replica.read_view(self.version, wait=5) as view:
            return view.get_many(store, keys)

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        with self.replica.read_view(self.version, wait=5) as view:
            return table_of(islice(view.scan(store, start, stop, reverse=reverse), limit))

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        with self.replica.read_view(self.version, wait=5) as view:
            found = pa.Table.from_batches(view.scan_many(store, ranges), IN_RANGES)
        return pa.table([found["key"], found["value"]], schema=STATE_SCHEMA)

    def approximate_count(self, store: str) -> int:
        with self.replica.read_view(self.version, wait=5) as view:
            return view.approximate_count(store)


def table_of(entries: Iterable[tuple[bytes, bytes]]) -> pa.Table:
    pairs = list(entries)
    return pa.table([[key for key, _ in pairs], [value for _, value in pairs]], schema=STATE_SCHEMA)


def limits_of(step: Step) -> Limits:
    """Tasks write objects of their own in every other version. Otherwise the driver stores their segments together."""
    return Limits(PARTITIONS, 2, inline_limit=0 if step.version % 2 else 64 << 10)


class Machine:
    """An app that runs, crashes and restarts on one log and one folder."""

    out = "files"
    """The folder of the file sink."""

    limits = unchecked(SnapshotSettings, ratio=0.01, bytes=1, age=timedelta(seconds=1))

    def __init__(self, folder: Path, spec: StoreSpec = SPEC) -> None:
        self.folder = folder
        self.spec = spec
        self.name = uuid.uuid4().hex
        self.clock = ManualClock(START)
        self.done = 0
        self.restart()

    def restart(self) -> "Machine":
        """Starts a new process: only what is stored is still there."""
        for replica in getattr(self, "replicas", {}).values():
            replica.published.clear()
            if replica._engines is not None:
                replica._engines.close()
            replica._home.close()
        self.log = Log.create_or_open(self.storage(), self.app_spec())
        self.opened()
        self.leadership = self.take_over()
        self.memory = Memory()
        output = self.output()
        feeds = [Feed("files", output, Files(f"memory://{self.name}-{self.out}")), Feed("rows", output, self.memory)]
        self.sinks = SinkRunner(
            self.log,
            opened(feeds, self.log),
            retry=lambda call: call(),
            check_leads=self.check_leads,
        )
        source = LogReader(self.log)
        resources = Resources(16 << 20)
        self.replicas = {
            task: Replica(
                TaskDirectory(self.folder, task, "machine"),
                source,
                specs,
                resources,
                Events(),
                ReplicaSettings(flush_versions=2),
                self.clock,
            )
            for task, specs in self.hosted().items()
        }
        self.snapshotters = [
            Snapshotter(replica, self.log, self.limits, self.clock) for replica in self.replicas.values()
        ]
        self.cleaner = Cleaner(
            self.log,
            retention=timedelta(0),
            sinks=lambda: ["files", "rows"],
            clock=self.clock,
            check_leads=self.check_leads,
        )
        self.driver = Driver(self.log, self.sinks, self.clock, self.leadership, event_clock=EVENT_CLOCK, inline_bytes=0)
        newest = self.log.newest()
        if newest is not None:
            self.sinks.catch_up(Version(newest.version))
        return self

    def beside(self, folder: Path) -> "Machine":
        """The same app, started in another process on the same log and Spark checkpoint, with other local state."""
        other = type(self).__new__(type(self))
        other.folder, other.spec, other.name, other.out = folder, self.spec, self.name, self.out
        other.clock, other.done = ManualClock(START), self.done
        return other.restart()

    def storage(self) -> Storage:
        """The storage of the log."""
        return open_storage(f"memory://{self.name}-log")

    def app_spec(self) -> AppSpec:
        """The app as its code declares it."""
        specs = self.specs()
        return AppSpec(
            id="app",
            partitions=PARTITIONS,
            stores=specs,
            subtopologies=subtopologies_of({each.name: 0 for each in specs}),
        )

    def opened(self) -> None:
        """Called when the log is open."""

    def hosted(self) -> Mapping[TaskId, tuple[StoreSpec, ...]]:
        """The stores of each task."""
        return dict.fromkeys(TASKS, self.specs())

    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores of a task."""
        return (self.spec,)

    def output(self) -> Output:
        """The output that the sinks get."""
        return AggregateRows(self.spec.name, 0, self.spec)

    def new_driver(self) -> Driver:
        """A driver on this log that takes over the sinks and the cleaner of this process."""
        self.leadership = self.take_over()
        return Driver(self.log, self.sinks, self.clock, self.leadership, event_clock=EVENT_CLOCK, inline_bytes=0)

    def check_leads(self) -> None:
        self.leadership.check()

    def take_over(self) -> Leadership:
        return Leadership.take_over(self.log.storage, self.log.id, uuid.uuid4().hex, self.clock.now())

    def run(self, batches: Sequence[Sequence[Record]]) -> None:
        """Runs the batches that Spark's checkpoint hasn't marked as done yet."""
        while self.done < len(batches):
            records = batches[self.done]
            self.clock.advance(max(0, START / 1000 + self.done + 1 - self.clock.now() / 1000))
            self.driver.process(_spark_batch(self.done, records), partial(self.computed, records))
            self._after()
            self.done += 1

    def _after(self) -> None:
        """The work of instances and the cleaner between batches, here in a fixed order."""
        newest = self.driver.newest
        assert newest is not None
        for replica in self.replicas.values():
            replica.catch_up(Version(newest.version))
            if replica.flush_due():
                replica.flush_overlay()
        for snapshotter in self.snapshotters:
            snapshotter.step()
        self.cleaner.clean()

    def computed(self, records: Sequence[Record], step: Step) -> BatchResult:
        """A version's results, as Spark returns them."""
        return BatchResult(self._compute(records, step), {"main": len(records)})

    def _compute(self, records: Sequence[Record], step: Step) -> list[TaskResult]:
        work, rows = self.work(step), self.rows(records, step)
        where = partitions_of(KEY, [rows["k0"]], PARTITIONS)
        results = []
        for task in TASKS:
            own = rows.filter(pa.array(where == task.partition))
            results.append(decode(encode(work.run(task, [own], self.log, self.before(task, step)))))
        return results

    def work(self, step: Step) -> AggregationWork | ProcessingWork:
        """What every task does in a version."""
        now = Now(step.wall, step.event)
        return AggregationWork(0, step.version, self.spec, REDUCERS, COLUMNS, now, limits_of(step))

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        """The records as tasks get them from Spark."""
        return pre_aggregated(records)

    def before(self, task: TaskId, step: Step) -> TaskState:
        """The state that a task starts from."""
        before = Version(step.version - 1)
        return EmptyState() if before == NOTHING else ReplicaState(self.replicas[task], before)

    def views(self) -> Iterator[tuple[TaskId, ReadView]]:
        """Each task's stores at the newest version."""
        if (newest := self.driver.newest) is not None:
            for task, replica in self.replicas.items():
                replica.catch_up(Version(newest.version))
                with replica.read_view(Version(newest.version)) as view:
                    yield task, view

    def state(self) -> Any:
        """The stores' entries, read from the replicas, without expired ones."""
        rows = [entry for _, view in self.views() for entry in view.scan("scores", b"", None)]
        rows = [(k, v) for k, v in rows if not 0 < unpack(v).expires <= self.clock.now()]
        decoded = aggregate_rows(self.spec, table_of(rows)).to_pylist()
        if self.spec.kind == VERSIONED:
            return {row["player"]: self._history(row["player"], dict(rows)) for row in decoded}
        return {row["player"]: (row["n"], row["total"]) for row in decoded}

    def _history(self, player: str, cells: Mapping[bytes, bytes]) -> list[tuple[int, int, int]]:
        """A player's current and earlier results, and the second of each."""
        bytes_ = DictBytes()
        bytes_.entries.update(cells)
        view: ReadOnlyVersionedKeyValueStore[str, Any] = ReadOnlyVersionedKeyValueStore(
            self.spec, bytes_, Now(self.clock.now())
        )
        return [(r.value["n"], r.value["total"], (r.timestamp - START) // 1000) for r in view.history(player)]

    def files(self) -> dict[str, bytes]:
        """The file sink's objects, except the one that names the log, without the random ids of commits."""
        storage = open_storage(f"memory://{self.name}-files")
        found = {name: storage.get(name) for name in storage.list("") if name != "_log.json"}
        for mark in [data for name, data in found.items() if name.startswith("_versions/")]:
            commit = json.loads(mark)["commit"]
            found = {
                name.replace(commit, "commit"): data.replace(commit.encode(), b"commit") for name, data in found.items()
            }
        return found


def expected(batches: Sequence[Sequence[Record]]) -> dict[str, tuple[int, int]]:
    """Games and points per player."""
    totals: dict[str, tuple[int, int]] = {}
    for player, points in (record for batch in batches for record in batch):
        n, total = totals.get(player, (0, 0))
        totals[player] = (n + 1, total + points)
    return totals


def _spark_batch(number: int, records: Sequence[Record]) -> SparkBatch:
    return SparkBatch(query="query", batch=number, offsets=f"v1\n{{}}\n{records!r}")


def pre_aggregated(records: Sequence[Record]) -> pa.RecordBatch:
    totals = expected([records])
    ordered = sorted(totals, key=lambda player: encode_key(KEY, [player]))
    number = len(ordered)
    return pa.RecordBatch.from_pydict(
        {
            "_dead": pa.nulls(number, pa.string()),
            "k0": pa.array(ordered, pa.string()),
            "p0": pa.array([totals[p][0] for p in ordered], pa.int64()),
            "p1": pa.array([totals[p][1] for p in ordered], pa.int64()),
        }
    )


def reached(batches: Sequence[Sequence[Record]], machine: Machine) -> dict[str, int]:
    """How often a run without a crash reaches each fault point."""
    counts = dict.fromkeys(faults.POINTS, 0)

    def counter(point: str) -> Callable[[], None]:
        def handle() -> None:
            counts[point] += 1

        return handle

    with faults.active({point: counter(point) for point in faults.POINTS}):
        machine.run(batches)
    return counts
