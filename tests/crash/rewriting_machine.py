"""The machine of the crash matrix under code that changes: a release writes, then the next one finds what it left.

Two apps do so. In one a table gains a column; in the other a processor's value is lifted by an upcaster that divides by
ten, so that a value which was lifted twice, or not at all, is seen in its number. In both the later release writes what
comes in its own shape and has the pass rewrite the rest, two entries a task in each version.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

import holdfast as hf
from holdfast.log.appfile import effective
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import Step
from holdfast.pipeline.results import TaskResult, decode, encode
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.stores.access import Now
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.keys import decode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.layouts.rewriter import RewriteProgress, progress_in
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.outputs import AggregateRows, Output
from holdfast.words import TaskId, Version
from tests.crash.machine import KEY, LAYOUT, PARTITIONS, REDUCERS, SPEC, TASKS, Machine, Record, pre_aggregated
from tests.crash.processor_machine import ProcessorMachine
from tests.stores.schemas import First, Tenths

OLD_BATCHES = 2
"""How many batches the older release does."""

Entries = dict[bytes, tuple[int, bytes]]


class ChangingMachine(Machine):
    """An app whose code changes after some batches. A crash finds the release it was in."""

    is_new = False

    def restart(self) -> Machine:
        self.is_new = self.done >= OLD_BATCHES
        return super().restart()

    def run(self, batches: Sequence[Sequence[Record]]) -> None:
        super().run(batches[:OLD_BATCHES])
        if not self.is_new:
            self.restart()
        super().run(batches)

    def stored(self) -> dict[TaskId, tuple[Entries, RewriteProgress | None]]:
        """Each task's entries, as schema and payload, and how far its pass is, but for what is a guess."""
        newest = self.driver.newest
        assert newest is not None
        found = {}
        for task, replica in self.replicas.items():
            replica.catch_up(Version(newest.version))
            with replica.read_view(Version(newest.version)) as view:
                cells = dict(view.scan(self.specs()[0].name, b"", None))
            progress = progress_in(cells.pop(REWRITE_NOTE, None))
            entries = {key: (unpack(cell).schema, unpack(cell).payload) for key, cell in cells.items()}
            found[task] = entries, None if progress is None else msgspec.structs.replace(progress, total=0)
        return found


class TableMachine(ChangingMachine):
    """A table that gains a column, which begins in the middle."""

    def specs(self) -> tuple[StoreSpec, ...]:
        if self.is_new:
            return (msgspec.structs.replace(SPEC, from_now=("total",)),)
        return (msgspec.structs.replace(SPEC, value=RowValues(Schema.of(n="bigint"))),)

    def output(self) -> Output:
        self.spec = effective(self.log.app, self.specs()[0])
        return AggregateRows(self.spec.name, 0, self.spec)

    def _compute(self, records: Sequence[Record], step: Step) -> list[TaskResult]:
        results = []
        for task in TASKS:
            work = AggregationWork(
                topology=0,
                version=step.version,
                source="main",
                store=self.spec,
                reducers=REDUCERS if self.is_new else REDUCERS[:1],
                chunk_rows=2,
                inline_limit=0,
                partitions=PARTITIONS,
                columns=LAYOUT if self.is_new else TaskColumns(keys=("k0",), partials=("p0",), rows="p0", time=None),
                now=Now(step.wall, step.event),
                rewrite_entries=2 if self.is_new else 0,
            )
            mine = pre_aggregated([r for r in records if partition_of(KEY, [r[0]], PARTITIONS) == task.partition])
            result = work.run(task, [mine], self.log, self.before(task, step))
            results.append(decode(encode(result)))
        return results

    def state(self) -> dict[str, tuple[int, int | None]]:
        codec = codec_of(self.spec)
        found: dict[str, tuple[int, int | None]] = {}
        for entries, _ in self.stored().values():
            for key, (schema, payload) in entries.items():
                [player] = decode_key(KEY, key)
                row = codec.decode(payload, schema)
                found[str(player)] = row["n"], row["total"]
        return found

    @staticmethod
    def expected(batches: Sequence[Sequence[Record]]) -> dict[str, tuple[int, int | None]]:
        """All records are counted; what they had is added up since there is a column for it."""
        model: dict[str, tuple[int, int | None]] = {}
        for number, batch in enumerate(batches):
            for player, points in batch:
                n, total = model.get(player, (0, None))
                model[player] = n + 1, (total or 0) + points if number >= OLD_BATCHES else None
        return model


class Older(hf.Processor):
    """Adds up points."""

    people = hf.KeyValueStore("people", value=First)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        known = self.people.get(key) or First(key, 0)
        self.people[key] = First(key, known.score + event.points)
        ctx.forward(key, {"score": float(self.people[key].score)})


class Newer(hf.Processor):
    """The same in tenths. The values it finds are lifted as they are read."""

    people = hf.KeyValueStore("people", value=Tenths)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        known = self.people.get(key) or Tenths(key, 0.0)
        self.people[key] = Tenths(key, known.score + event.points / 10, known.tags)
        ctx.forward(key, {"score": self.people[key].score})


class ValueMachine(ChangingMachine, ProcessorMachine):
    """A processor's store whose values are lifted by an upcaster."""

    columns = "player string, score double"

    def restart(self) -> Machine:
        self.processor = Newer if self.done >= OLD_BATCHES else Older
        self.rewrite_entries = 2 if self.done >= OLD_BATCHES else 0
        return super().restart()

    @staticmethod
    def expected(batches: Sequence[Sequence[Record]]) -> dict[str, dict[str, Tenths]]:
        scores: dict[str, int] = {}
        for player, points in (record for batch in batches for record in batch):
            scores[player] = scores.get(player, 0) + points
        return {"people": {player: Tenths(player, score / 10) for player, score in scores.items()}}
