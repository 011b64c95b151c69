"""How joins with tables run on Spark: a shuffle by the table's key, and a lookup in each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.local_records import LocalRows
from holdfast.pipeline.lookup_task import LookedUpTable, LookupWork, output_schema
from holdfast.pipeline.planning import (
    BY_BYTES,
    NOTHING_SEALED,
    Sealed,
    collect,
    columns_of_records,
    configure,
    with_tasks,
)
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.table_join_task import TableJoinWork
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Case, Expression, quoted
from holdfast.topology.lookups import TableJoin
from holdfast.topology.table_joins import TableTableJoin
from holdfast.words import TaskId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class LookupPlanner:
    """Runs a join with a table. Its tasks have no state of their own."""

    every_version: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, TableJoin)
        self._subtopology, self._limits, self._operator = subtopology, limits, subtopology.operator
        self._table = subtopology.stream.topology.subtopology(self._operator.table)
        columns = self._operator.columns
        values: dict[str, Expression] = {f"v{n}": quoted(name) for n, name in enumerate(columns)}
        self._frames = RecordFrames(subtopology, limits, values, columns)

    def used(self) -> list[Expression]:
        return [*columns_of_records(self._subtopology), *map(quoted, self._operator.columns)]

    def unusable(self, wall: Millis) -> list[Case]:
        return self._frames.unusable(wall)

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        configure(records.sparkSession, BY_BYTES)
        with steps.labels("plan").time():
            rows = self._frames.rows(records, step.wall)
            tasks = with_tasks(rows, self.work(step, locations.sealed), locations)
        with steps.labels("tasks").time():
            return collect(tasks)

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return []

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        return self._frames.local(records, step.wall)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> LookupWork:
        return LookupWork(
            topology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            table=looked_up(self._table, sealed),
            how=self._operator.how,
            output=output_schema(self._operator.output.arrow),
            columns=self._frames.columns,
            now=step.now,
            limits=self._limits,
        )


class TableJoinPlanner:
    """Runs a join of two tables, over the keys that changed on either side."""

    every_version: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, TableTableJoin)
        self._subtopology, self._limits, self._operator = subtopology, limits, subtopology.operator
        topology = subtopology.stream.topology
        self._tables = [topology.subtopology(name) for name in (self._operator.left, self._operator.right)]
        self._frames = RecordFrames(subtopology, limits, {}, ())

    def used(self) -> list[Expression]:
        return columns_of_records(self._subtopology)

    def unusable(self, wall: Millis) -> list[Case]:
        return self._frames.unusable(wall)

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        configure(records.sparkSession, BY_BYTES)
        with steps.labels("plan").time():
            tasks = with_tasks(self._frames.rows(records, step.wall), self.work(step, locations.sealed), locations)
        with steps.labels("tasks").time():
            return collect(tasks)

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return []

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        return self._frames.local(records, step.wall)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TableJoinWork:
        (store,) = self._subtopology.stores
        left, right = (looked_up(table, sealed) for table in self._tables)
        return TableJoinWork(
            topology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            store=store,
            left=left,
            right=right,
            how=self._operator.how,
            columns=self._frames.columns,
            now=step.now,
            limits=self._limits,
        )


def looked_up(table: SubTopology, sealed: Sealed) -> LookedUpTable:
    """A table as the tasks of a join read it."""
    (store,) = table.stores
    tasks = ((TaskId.parse(name), refs) for name, refs in sealed.items())
    return LookedUpTable(
        table.number, store, tuple((task.partition, refs) for task, refs in tasks if task.topology == table.number)
    )
