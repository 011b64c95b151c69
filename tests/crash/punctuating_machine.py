"""The machine of the crash matrix with punctuators, and with versions that the driver makes when nothing arrives.

A step of its script is a batch, or None: a second in which nothing arrives. `Model` has the expected state and rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import holdfast as hf
from holdfast.ending import Ending
from holdfast.idle import IdleVersions
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import due_of, must_run
from holdfast.pipeline.processing_task import ProcessingWork
from holdfast.stores.layouts.due import Due
from holdfast.topology.events import EventShape
from holdfast.topology.processing import Processing
from holdfast.topology.processor import parse_output, stores_of
from holdfast.topology.punctuation import fired, punctuators_of
from holdfast.topology.topology import SubTopology
from holdfast.words import Version
from tests.crash.machine import KEY, PARTITIONS, START, Record, _spark_batch
from tests.crash.processor_machine import ProcessorMachine, in_order, time_of

FLUSH_MS, COUNT_MS = 2_000, 1_500

Batches = Sequence[Sequence[Record] | None]


class Batching(hf.Processor):
    """Collects points per player. The wall clock flushes them, and stream time counts the flushes."""

    buffer = hf.KeyValueStore("buffer", value=int)
    ticks = hf.KeyValueStore("ticks", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.buffer[key] = self.buffer.get(key, 0) + event.points

    @hf.punctuate(every=f"{FLUSH_MS}ms", time="wall")
    def flush(self, now: int, ctx: hf.Context) -> None:
        for player, points in self.buffer.items():
            ctx.forward(player, {"n": points, "at": now})
            del self.buffer[player]

    @hf.punctuate(every=f"{COUNT_MS}ms", time="stream")
    def count(self, now: int, ctx: hf.Context) -> None:
        self.ticks[str(ctx.partition)] = self.ticks.get(str(ctx.partition), 0) + 1
        ctx.forward(f"tick {ctx.partition}", {"n": self.ticks[str(ctx.partition)], "at": now})


class PunctuatingMachine(ProcessorMachine):
    """A machine that lives through batches and quiet seconds."""

    processor = Batching
    columns = "player string, n bigint, at bigint"

    def subtopology(self) -> SubTopology:
        operator = Processing(
            Batching,
            EventShape(("player", "points")),
            tuple(stores_of(Batching)),
            ((None, parse_output(self.columns)),),
            punctuators_of(Batching),
        )
        stream: Any = None
        return SubTopology("visits", 0, stream, KEY, self.specs(), operator)

    def work(self, step: Step) -> ProcessingWork:
        return replace(super().work(step), punctuations=fired(punctuators_of(Batching), step.before, step.now))

    def live(self, script: Batches) -> None:
        """Lives through the steps that are not done yet, one per second."""
        while self.done < len(script):
            self.clock.advance(max(0, START / 1000 + self.done + 1 - self.clock.now() / 1000))
            records = script[self.done]
            if records is None:
                idle = self.idle()
                while not idle.step():
                    pass
            else:
                batch = sum(each is not None for each in script[: self.done])
                self.driver.process(_spark_batch(batch, records), partial(self.computed, records))
            if self.driver.newest is not None:
                self._after()
            self.done += 1

    def idle(self) -> IdleVersions:
        return IdleVersions(
            driver=self.driver,
            due=self.due,
            compute=self.computed_idle,
            clock=self.clock,
            interval=timedelta(milliseconds=500),
            ending=Ending(timedelta(seconds=1), lambda cause: pytest.fail(str(cause))),
        )

    def due(self, version: Version) -> Mapping[str, Due]:
        stores = [replica.due(version) for replica in self.replicas.values()]
        found = {name: Due.soonest(each[name] for each in stores if name in each) for name in ("buffer", "ticks")}
        return due_of([self.subtopology()], found, self.driver.next_step, self.driver.clock_moves_at)

    def computed_idle(self, due: Collection[str], step: Step) -> BatchResult:
        return self.computed([], step) if must_run(self.subtopology(), due, step) else BatchResult()


@dataclass
class Model:
    """What the processor should have stored and forwarded, by a plain program."""

    buffer: dict[str, int] = field(default_factory=dict)
    ticks: dict[str, int] = field(default_factory=dict)
    rows: set[tuple[str, int, int]] = field(default_factory=set)
    versions: int = 0

    def live(self, script: Batches) -> "Model":
        walls: list[int] = []
        events: list[int | None] = [None]
        for second, records in enumerate(script):
            wall = START + 1_000 * (second + 1)
            flushes = bool(walls) and wall // FLUSH_MS > walls[-1] // FLUSH_MS
            moved = bool(walls) and _passed(events[-2], events[-1])
            if records is None and not flushes and not moved:
                continue
            for player, points in in_order(records or [], wall):
                self.buffer[player] = self.buffer.get(player, 0) + points
            if flushes:
                self.rows |= {(player, points, wall) for player, points in self.buffer.items()}
                self.buffer = {}
            if moved:
                for partition in map(str, range(PARTITIONS)):
                    self.ticks[partition] = self.ticks.get(partition, 0) + 1
                    self.rows.add((f"tick {partition}", self.ticks[partition], events[-1] or 0))
            walls.append(wall)
            times = [time_of(record, wall) for record in records or []]
            events.append(max([*times, *([] if events[-1] is None else [events[-1]])], default=None))
            self.versions += 1
        return self

    def state(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "ticks": self.ticks}


def _passed(before: int | None, now: int | None) -> bool:
    return now is not None and (before is None or now // COUNT_MS > before // COUNT_MS)
