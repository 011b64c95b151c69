"""The machine of the crash matrix with an outer join of two streams.

A record's number is its event time in seconds, times ten; on the right side plus one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.pipeline.driver import BatchResult, Step
from holdfast.pipeline.due import due_of, must_run
from holdfast.pipeline.join_task import JoinWork
from holdfast.stores.layouts.due import Due
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec
from holdfast.topology.join_windows import join_window
from holdfast.topology.joining import bound
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.topology import SubTopology
from holdfast.words import Version
from tests.crash.machine import KEY, START, Machine, Record, limits_of
from tests.pipeline import joined
from tests.pipeline.joined import SIDES, Oracle

WINDOW = join_window("10s", grace="5s")
JOIN, STORES = bound("pairs", "outer", WINDOW, KEY, *SIDES)


def record_of(record: Record) -> joined.Record:
    player, number = record
    return joined.Record(number % 10 == 0, player, START + number // 10 * 1_000, number)


class JoinMachine(Machine):
    """A machine whose app joins two streams."""

    def specs(self) -> tuple[StoreSpec, ...]:
        return STORES

    def output(self) -> Output:
        return ForwardedRows("pairs", 0, JOIN.columns)

    def subtopology(self) -> SubTopology:
        stream: Any = None
        return SubTopology("pairs", 0, stream, KEY, STORES, JOIN)

    def work(self, step: Step) -> JoinWork:  # type: ignore[override]
        return JoinWork(
            subtopology=0,
            version=step.version,
            now=step.now,
            name="pairs",
            key=KEY,
            join=JOIN,
            stores=STORES,
            keys=("k0",),
            sources=("main",),
            limits=limits_of(step),
        )

    def rows(self, records: Sequence[Record], step: Step) -> pa.RecordBatch:
        return joined.batch_of([record_of(record) for record in records])

    def due(self, version: Version) -> Mapping[str, Due]:
        stores = [replica.due(version) for replica in self.replicas.values()]
        found = {name: Due.soonest(each[name] for each in stores if name in each) for each in stores for name in each}
        return due_of([self.subtopology()], found, self.driver.next_step, self.driver.clock_moves_at)

    def computed_idle(self, due: Collection[str], step: Step) -> BatchResult:
        return self.computed([], step) if must_run(self.subtopology(), due, step) else BatchResult()

    def state(self) -> Any:
        """What the stores have in all partitions, as bytes, without what is hidden."""
        found = {}
        for task, view in self.views():
            for spec in STORES:
                start, stop = layout_of(spec).hidden(view.now) or (b"", b"")
                entries = view.scan(spec.name, b"", None)
                found[task, spec.name] = {key: cell for key, cell in entries if not start <= key < stop}
        return found

    def sent(self) -> list[Any]:
        """The rows that the sink of this process got, without times."""
        return sorted(((row["player"], row["a"], row["b"]) for row in self.memory.rows()), key=repr)


def expected(batches: Sequence[Sequence[Record]]) -> list[Any]:
    """The rows of an oracle."""
    oracle = Oracle(WINDOW, "outer")
    rows = [row for batch in batches for row in oracle.run([record_of(record) for record in batch])]
    return sorted((row[:3] for row in rows), key=repr)
