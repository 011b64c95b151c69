"""The machine of the crash matrix while the app's code changes: one release writes, the next one rewrites.

In one app a table gains a column. In the other an upcaster divides a processor's values by ten, so that a value upcast
twice, or not at all, has a wrong number. In both, the newer release writes its own schema, and the pass rewrites the
other entries, two per task and version.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

import holdfast as hf
from holdfast.log.appfile import effective
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.driver import Step
from holdfast.pipeline.processing_task import ProcessingWork
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import unpack
from holdfast.stores.formats.keys import decode_key
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.layouts.rewriter import RewriteProgress, progress_in
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.outputs import AggregateRows, Output
from holdfast.words import TaskId
from tests.crash.machine import KEY, REDUCERS, SPEC, Machine, Record
from tests.crash.processor_machine import ProcessorMachine
from tests.stores.schemas import First, Tenths

OLD_BATCHES = 2
"""Batches that the older release processes."""

Entries = dict[bytes, tuple[int, bytes]]


class ChangingMachine(Machine):
    """An app whose code changes after some batches. A restart continues with the release that crashed."""

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
        """Per task: its entries as schema and payload, and its pass's progress without the estimated total."""
        found = {}
        for task, view in self.views():
            cells = dict(view.scan(self.specs()[0].name, b"", None))
            progress = progress_in(cells.pop(REWRITE_NOTE, None))
            entries = {key: (unpack(cell).schema, unpack(cell).payload) for key, cell in cells.items()}
            found[task] = entries, None if progress is None else msgspec.structs.replace(progress, total=0)
        return found


class TableMachine(ChangingMachine):
    """A table that gains a column."""

    def specs(self) -> tuple[StoreSpec, ...]:
        if self.is_new:
            return (msgspec.structs.replace(SPEC, from_now=("total",)),)
        return (msgspec.structs.replace(SPEC, value=RowValues(Schema.of(n="bigint"))),)

    def output(self) -> Output:
        self.spec = effective(self.log.app, self.specs()[0])
        return AggregateRows(self.spec.name, 0, self.spec)

    def work(self, step: Step) -> AggregationWork | ProcessingWork:
        work = super().work(step)
        if self.is_new:
            return replace(work, limits=replace(work.limits, rewrite_entries=2))
        assert isinstance(work, AggregationWork)
        return replace(work, reducers=REDUCERS[:1], columns=replace(work.columns, partials=("p0",)))

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
        """All records are counted; points are added up since the column exists."""
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
    """Adds up tenths of points. Existing values are upcast when they are read."""

    people = hf.KeyValueStore("people", value=Tenths)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        known = self.people.get(key) or Tenths(key, 0.0)
        self.people[key] = Tenths(key, known.score + event.points / 10, known.tags)
        ctx.forward(key, {"score": self.people[key].score})


class ValueMachine(ChangingMachine, ProcessorMachine):
    """A processor's store whose values are upcast."""

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
