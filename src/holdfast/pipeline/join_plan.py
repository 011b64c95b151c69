"""How a join of two streams runs on Spark: both streams as one, and a shuffle by key. The task does the rest.

Unusable records are JSON in the column `_dead`, as in `processing_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from holdfast.pipeline.clock_columns import millis_of, sources_of
from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.join_task import OF_SOURCE, JoinWork
from holdfast.pipeline.local_records import LocalRows, dead_letters, in_order, times_of
from holdfast.pipeline.planning import (
    BY_BYTES,
    NOTHING_SEALED,
    Sealed,
    collect,
    columns_of_records,
    configure,
    run_idle_tasks,
    with_tasks,
)
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD, TIME
from holdfast.pipeline.unusable import Case, Expression, cases_of, dead_letter, not_utf8_inside, quoted
from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.joining import LEFT, RIGHT, StreamJoin
from holdfast.topology.stream import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class JoinPlanner:
    """Runs a join where it has records. Where windows may have closed, `StreamJoin.next_due` says so."""

    every_version: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, StreamJoin)
        self._subtopology, self._limits, self._operator = subtopology, limits, subtopology.operator
        stream = subtopology.stream
        assert stream.timestamp is not None
        self._keys = tuple(f"k{n}" for n in range(len(subtopology.key.fields)))
        keys = zip(subtopology.key.names, self._keys, strict=True)
        inputs = [f"{quoted(column)} AS {name}" for column, name in keys]
        self._sources = sources_of(stream)
        inputs += [
            f"{millis_of(stream.timestamp)} AS {TIME}",
            f"{_number_of(self._sources)} AS {OF_SOURCE}",
            LEFT,
            RIGHT,
        ]
        self._sql = inputs
        self._texts = not_utf8_inside({name: stream.frame.schema[name].dataType for name in (LEFT, RIGHT)})

    @cached_property
    def _inputs(self) -> list[Column]:
        return [F.expr(sql) for sql in self._sql]

    def used(self) -> list[Expression]:
        return [*columns_of_records(self._subtopology), LEFT, RIGHT]

    def unusable(self, wall: Millis) -> list[Case]:
        fields, timestamp = self._subtopology.key.fields, self._subtopology.stream.timestamp
        return [*cases_of(fields, timestamp, wall, self._limits.max_ahead_millis), *self._texts]

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        session, work = records.sparkSession, self.work(step)
        configure(session, BY_BYTES)
        with steps.labels("plan").time():
            frame = records.select(*self._inputs, dead_letter(self.unusable(step.wall)).alias(DEAD))
            frame = frame.repartition(self._limits.partitions, *self._keys)
        with steps.labels("tasks").time():
            # Spark runs no task where it knows that a frame is empty.
            return collect(with_tasks(frame, work, locations)) or self.run_idle(session, step, locations)

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return run_idle_tasks(session, self._limits.partitions, self.work(step), locations)

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        stream = self._subtopology.stream
        keys = zip(self._subtopology.key.names, self._keys, strict=True)
        rows = {name: whole(records[column]) for column, name in keys}
        rows |= times_of(stream, records)
        rows |= {name: whole(records[name]) for name in (LEFT, RIGHT)}
        rows[OF_SOURCE] = pc.index_in(whole(records[SOURCE]), pa.array(self._sources, pa.string()))
        dead = dead_letters(self.unusable(step.wall), records)
        return LocalRows(in_order(rows, dead, (), (*self._keys, TIME, OF_SOURCE, LEFT, RIGHT, DEAD)), self._keys)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> JoinWork:
        return JoinWork(
            topology=self._subtopology.number,
            version=step.version,
            now=step.now,
            name=self._subtopology.name,
            key=self._subtopology.key,
            join=self._operator,
            stores=self._subtopology.stores,
            keys=self._keys,
            sources=self._sources,
            limits=self._limits,
        )


def _number_of(sources: Sequence[str]) -> str:
    """The SQL of a source's place among these; null for a record of an output.

    >>> _number_of(["games", "chats"])
    "CASE _source WHEN 'games' THEN 0 WHEN 'chats' THEN 1 END"
    """
    cases = " ".join(f"WHEN '{name}' THEN {n}" for n, name in enumerate(sources))
    return f"CASE {SOURCE} {cases} END" if sources else "CAST(NULL AS int)"
