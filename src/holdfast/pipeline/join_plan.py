"""How a join of two streams runs on Spark: both streams as one, and a shuffle by key. The task does the rest.

Unusable records are JSON in the column `_dead`, as in `processing_plan`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from holdfast.pipeline.clock_columns import millis_of, source_number, source_numbers, sources_of
from holdfast.pipeline.driver import Step
from holdfast.pipeline.join_task import JoinWork
from holdfast.pipeline.local_records import LocalRows, dead_letters, in_order, times_of
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed, columns_of_records
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD, OF_SOURCE, TIME
from holdfast.pipeline.unusable import Case, Expression, cases_of, dead_letter, not_utf8_inside, quoted, shown_of
from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.joining import LEFT, RIGHT, StreamJoin, late_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class JoinFrames:
    """The records of both streams, with the columns of their own side. Their order doesn't matter."""

    carried: tuple[str, ...] | None = None

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        self._subtopology, self._limits, stream = subtopology, limits, subtopology.stream
        assert stream.timestamp is not None
        self.keys = tuple(f"k{n}" for n in range(len(subtopology.key.fields)))
        self.sources = sources_of(stream)
        self._sql = [
            *(f"{quoted(column)} AS {name}" for column, name in zip(subtopology.key.names, self.keys, strict=True)),
            f"{millis_of(stream.timestamp)} AS {TIME}",
            f"{source_number(self.sources)} AS {OF_SOURCE}",
            LEFT,
            RIGHT,
        ]
        self._texts = not_utf8_inside({name: stream.frame.schema[name].dataType for name in (LEFT, RIGHT)})

    @cached_property
    def _inputs(self) -> list[Column]:
        return [F.expr(sql) for sql in self._sql]

    def used(self) -> list[Expression]:
        return [*columns_of_records(self._subtopology), LEFT, RIGHT]

    def unusable(self, wall: Millis) -> list[Case]:
        fields, timestamp = self._subtopology.key.fields, self._subtopology.stream.timestamp
        return [*cases_of(fields, timestamp, wall, self._limits.max_ahead_millis), *self._texts]

    def rows(self, records: DataFrame, wall: Millis) -> DataFrame:
        letter = dead_letter(self.unusable(wall), shown_of(records, self._subtopology.stream.hidden))
        frame = records.select(*self._inputs, letter.alias(DEAD))
        return frame.repartition(self._limits.partitions, *self.keys)

    def local(self, records: pa.Table, wall: Millis) -> LocalRows:
        keys = zip(self._subtopology.key.names, self.keys, strict=True)
        rows = {name: whole(records[column]) for column, name in keys}
        rows |= times_of(self._subtopology.stream, records)
        rows |= {name: whole(records[name]) for name in (LEFT, RIGHT)}
        rows[OF_SOURCE] = source_numbers(self.sources, records)
        dead = dead_letters(self.unusable(wall), records, self._subtopology.stream.hidden)
        return LocalRows(in_order(rows, dead, (), (*self.keys, TIME, OF_SOURCE, LEFT, RIGHT, DEAD)), self.keys)


class JoinPlanner(RecordPlanner):
    """Runs a join where it has records. Where windows may have closed, `StreamJoin.next_due` says so."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, StreamJoin)
        self._operator, self._frames = operator, JoinFrames(subtopology, limits)
        self._late = late_of(subtopology.name)
        super().__init__(subtopology, limits, self._frames)

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        # Spark runs no task where it knows that a frame is empty, and windows may close there.
        return super().run(records, step, locations) or self.run_idle(records.sparkSession, step, locations)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> JoinWork:
        return JoinWork(
            subtopology=self._subtopology.number,
            version=step.version,
            now=step.now,
            name=self._subtopology.name,
            key=self._subtopology.key,
            join=self._operator,
            stores=self._subtopology.stores,
            keys=self._frames.keys,
            sources=self._frames.sources,
            limits=self._limits,
            late=self._late if self._subtopology.stream.topology.is_read(self._late) else None,
        )
