"""A driver of the simulation: the real driver, sinks, cleaner and coordinator, with tasks that count records per key.

Spark's part is played here too: batches are planned into a checkpoint, run, and marked as done. A batch that isn't
marked is run again after a restart, with the offsets of the checkpoint's entry or, if that was lost, with others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.chance import new_id
from holdfast.errors import ErrorCategory, HoldfastError, StorageUnavailable
from holdfast.group.coordinator import Coordinator
from holdfast.group.driver_heartbeat import DRIVER, DriverHeartbeat
from holdfast.group.driver_steps import DriverSteps
from holdfast.group.generations import Generation
from holdfast.group.rules import needs_of
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.cleaning import Cleaner
from holdfast.log.commits import Commit
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.log.log import BrokenChain, Log, LostRace
from holdfast.log.segments import OUTPUT, STATE, STATE_SCHEMA
from holdfast.pipeline.driver import BatchResult, Driver, Step
from holdfast.pipeline.event_clock import EventClock
from holdfast.pipeline.protocol import OtherOffsets
from holdfast.pipeline.results import TaskDone, TaskResult, refused
from holdfast.pipeline.sinks.runner import Feed, SinkRunner
from holdfast.topology.outputs import ForwardedRows
from holdfast.topology.sink import Rows, Timeline
from holdfast.words import NOTHING, TaskId, Version
from tests.simulation.model import COUNTS, FIRSTS, Record, Violation, batch_of, positions_of
from tests.simulation.processes import Process
from tests.simulation.watching import FORGET_AFTER, INTERVAL, TIMEOUT, Watch, WatchedJudge

if TYPE_CHECKING:
    from tests.simulation.world import World

OUT = "changes"
_OUTPUT = pa.schema([("key", pa.binary()), ("n", pa.int64())])
SINK = "recorder"


@dataclass
class Checkpoint:
    """Spark's checkpoint: entries are created if absent, so the second of two queries on it fails."""

    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    @property
    def next_batch(self) -> int:
        """The batch that a start runs first: the last one again if it isn't marked as done."""
        last = max(self.offsets, default=-1)
        return last + 1 if last in self.done or last < 0 else last

    def forget_last(self) -> None:
        """The last entry is lost: of a batch that is done, its mark; otherwise its offsets."""
        last = max(self.offsets, default=-1)
        if last in self.done:
            self.done.discard(last)
        elif last >= 0:
            del self.offsets[last]


class ConcurrentQuery(HoldfastError):
    """What Spark raises when another query has written an entry of its checkpoint."""

    category = ErrorCategory.INVALID


class DriverProcess(Process):
    """One start of the app."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, f"driver#{number}")
        self.watch = Watch(self.name)
        self.coordinator: Coordinator | None = None
        self.unanswered: set[str] = set()
        """The addresses at which nobody answered the last call."""
        self.batch = 0

    @property
    def epoch(self) -> int:
        return self.leadership.driver.epoch

    def start(self) -> None:
        world, random = self.world, self.world.random
        self.rules = world.rules
        self.log = Log.create_or_open(self.storage, world.spec, random)
        newest = self.log.newest()
        self.leadership = Leadership.take_over(
            self.storage, self.log.id, new_id(random), self.clock.now(), newest.writer if newest else None
        )
        feeds = [Feed(SINK, ForwardedRows(OUT, 0), Recorder(self))]
        self.sinks = SinkRunner(self.log, feeds, retry=lambda call: call(), check_leads=self.leadership.check)
        self.driver = Driver(
            self.log,
            self.sinks,
            self.clock,
            self.leadership,
            event_clock=EventClock([], 60_000),
            inline_bytes=random.choice((0, 1 << 20)),
            on_commit=self._notify,
        )
        self.cleaner = Cleaner(
            self.log,
            retention=timedelta(seconds=random.choice((0, 0, 60))),
            sinks=lambda: [SINK],
            clock=self.clock,
            check_leads=self.leadership.check,
        )
        self.coordinator = Coordinator(
            self.storage,
            self.log.id,
            DRIVER,
            WatchedJudge(self.watch),
            world.assigning,
            self.rules,
            lambda: new_id(random),
            check_leads=self.leadership.check,
            forget_after=FORGET_AFTER,
            each=map,
        )
        self.steps = DriverSteps(
            self.coordinator,
            DriverHeartbeat(self.storage, self.log.id, process=self.leadership.driver.id, host="simulated", pid=0),
            self.clock,
            interval=INTERVAL,
            timeout=TIMEOUT,
            ask=lambda members: [world.is_running(member) for member in members],
            on_generation=self._on_generation,
        )
        self.batch = world.checkpoint.next_batch
        self.loop("batch", 1.0, self.run_batch)
        self.loop("coordinate", INTERVAL, self.coordinate)
        self.loop("clean", 3.0, self.clean)
        self.loop("check", INTERVAL, self.check)
        if (found := self.driver.newest) is not None:
            self.sinks.catch_up(Version(found.version))

    # Loops. An error that stops an app stops this one; after others its supervisor starts it again.

    def run_batch(self) -> None:
        if self.world.quiet:
            return
        if self.world.random.random() < 0.1:
            self._guarded(lambda: self.driver.advance(lambda step: BatchResult()))
        else:
            self._guarded(self._process)

    def coordinate(self) -> None:
        newest = self.driver.newest
        at = NOTHING if newest is None else Version(newest.version)
        self._call_again()
        self._guarded(lambda: self.steps.step(lambda: needs_of(self.log.app, at)))

    def _on_generation(self, generation: Generation) -> None:
        self.world.tell(generation)

    def end(self) -> None:
        """It is told to stop between two batches."""
        self.steps.end()
        self.stop()

    def clean(self) -> None:
        self._guarded(self.cleaner.clean)

    def check(self) -> None:
        self._guarded(self.leadership.check)

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (OutdatedDriver, LostRace, BrokenChain, ConcurrentQuery) as error:
            self.world.say(f"{self} stops: {type(error).__name__}")
            self.stop()
        except OtherOffsets as error:
            self.world.say(f"{self} stops, and its checkpoint is repaired: {type(error).__name__}")
            self.repair()
            self.stop()
        except StorageUnavailable:
            self.world.invariants.excuse(self)
            raise
        self.world.invariants.check_withdrawn(self)

    def repair(self) -> None:
        """`holdfast checkpoint repair`: the checkpoint gets the position that the log has."""
        checkpoint, newest = self.world.checkpoint, self.world.model.commits[self.world.model.newest]
        assert newest.spark is not None
        batch, (start, end) = newest.spark.batch, positions_of(newest.spark)
        checkpoint.offsets = {n: each for n, each in checkpoint.offsets.items() if n < batch}
        checkpoint.done = {n for n in checkpoint.done if n < batch}
        if batch and batch - 1 not in checkpoint.offsets:  # it was lost too
            checkpoint.offsets[batch - 1] = start, start
            checkpoint.done.add(batch - 1)
        checkpoint.offsets[batch] = start, end

    def _process(self) -> None:
        checkpoint, number = self.world.checkpoint, self.batch
        start, end = self._planned(number)
        batch = batch_of(number, start, end)
        records = self.world.model.records[start:end]
        made = self.driver.process(batch, lambda step: self._computed(step, records))
        if made is not None and self.world.model.commits[Version(made.version)].id != made.id:
            raise Violation(f"{self} believes that its commit {made.id} is version {made.version}")
        if number in checkpoint.done:
            raise ConcurrentQuery(f"another query has finished batch {number}. Stop one of them.")
        checkpoint.done.add(number)
        self.batch = number + 1

    def _planned(self, number: int) -> tuple[int, int]:
        checkpoint = self.world.checkpoint
        if number and number - 1 not in checkpoint.offsets:
            raise ConcurrentQuery(f"the entry of batch {number - 1} is gone. Stop the other query.")
        if number not in checkpoint.offsets:
            start = checkpoint.offsets[number - 1][1] if number else 0
            checkpoint.offsets[number] = start, start + self.world.random.randint(0, 6)
        elif number in checkpoint.done:
            raise ConcurrentQuery(f"another query has planned batch {number}. Stop one of them.")
        return checkpoint.offsets[number]

    # Tasks

    def _computed(self, step: Step, records: list[Record]) -> BatchResult:
        results = [self._task(step, task, records) for task in self.world.model.tasks]
        return BatchResult(results, {"main": len(records)})

    def _task(self, step: Step, task: TaskId, records: list[Record]) -> TaskResult:
        """What a task does: reads its keys at v-1, counts, and writes a segment."""
        own = [record for record in records if self.world.model.task_of(record) == task]
        keys = sorted({record.bytes for record in own})
        if not keys:
            return TaskDone(str(task))
        try:
            before = {store: self._read(task, store, keys, Version(step.version - 1)) for store in (COUNTS, FIRSTS)}
            counts, firsts = dict(before[COUNTS]), dict(before[FIRSTS])
            for record in own:
                key = record.bytes
                if record.ends:
                    counts[key] = firsts[key] = None
                else:
                    counts[key] = b"%d" % (int(counts[key] or 0) + 1)
                    firsts[key] = firsts[key] or b"%d" % record.position
            parts = [(STATE, COUNTS, _table(counts))]
            if firsts != before[FIRSTS]:
                parts.append((STATE, FIRSTS, _table(firsts)))
            numbers = [int(counts[key] or 0) for key in keys]
            parts.append((OUTPUT, OUT, pa.table([keys, numbers], schema=_OUTPUT)))
            limit = self.world.random.choice((0, 1 << 16))
            written = self.log.write_parts(task, step.version, parts, inline_limit=limit)
            return TaskDone(str(task), written.segments, len(own))
        except HoldfastError as error:
            return refused(task, error)

    def _read(self, task: TaskId, store: str, keys: list[bytes], version: Version) -> dict[bytes, bytes | None]:
        """As `RemoteState` does it: the next replica if one doesn't answer."""
        if version == NOTHING:
            return dict.fromkeys(keys)
        generation = self.steps.generation
        error: HoldfastError = InstanceUnavailable(f"task {task} has no replica that answers. Try again.")
        for address in generation.replicas(str(task)) if generation else ():
            found = self.world.at_address(address)
            if found is None or not found.answers:
                self._unanswered(address, self.steps.lost if found is None or found.dead else self.steps.hangs)
                continue
            try:
                values = self.world.ask(found, partial(found.read, task, store, keys, version))
            except HoldfastError as other:
                error = other
                continue
            if address in self.unanswered:
                self.unanswered.discard(address)
                self.steps.started(found.id)
            return dict(zip(keys, values, strict=True))
        raise error

    def _unanswered(self, address: str, report: Callable[[str, int], bool]) -> None:
        """As a contact does: the member is reported as lost or hanging, and the next step follows at once."""
        self.unanswered.add(address)
        generation = self.steps.generation
        for id, member in generation.members.items() if generation else ():
            if member.flight == address and report(id, member.incarnation):
                self.due_now("coordinate")

    def _call_again(self) -> None:
        """As contacts do, which call every member: one that answers again is reported, also if it has no task."""
        for address in sorted(self.unanswered):
            found = self.world.at_address(address)
            if found is not None and found.answers:
                self.unanswered.discard(address)
                self.steps.started(found.id)

    def _notify(self, commit: Commit) -> None:
        self.world.notify(Version(commit.version))


def _table(values: dict[bytes, bytes | None]) -> pa.Table:
    keys = sorted(values)
    return pa.table([keys, [values[key] for key in keys]], schema=STATE_SCHEMA)


class Recorder:
    """A sink that compares what it gets with the model."""

    kind = SINK

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver

    def open(self, timeline: Timeline) -> None:
        """Any log."""

    def write(self, version: Version, commit: str, rows: Iterator[Rows]) -> None:
        found = {key: n for each in rows for key, n in zip(*each.table.to_pydict().values(), strict=True)}
        self._driver.world.delivered(self._driver, version, found)
