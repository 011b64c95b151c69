"""How a join with a table runs on Spark: a shuffle by the table's key, and a lookup in each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.lookup_task import LookedUpTable, LookupWork, output_schema
from holdfast.pipeline.planning import BY_BYTES, collect, columns_of_records, configure, with_tasks
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Case, Expression, quoted
from holdfast.topology.lookups import TableJoin
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
            tasks = with_tasks(rows, self._work(step, locations), locations)
        with steps.labels("tasks").time():
            return collect(tasks)

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return []

    def _work(self, step: Step, locations: StateLocations) -> LookupWork:
        (store,) = self._table.stores
        tasks = ((TaskId.parse(name), refs) for name, refs in locations.sealed.items())
        sealed = tuple((task.partition, refs) for task, refs in tasks if task.topology == self._table.number)
        return LookupWork(
            topology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            table=LookedUpTable(self._table.number, store, sealed),
            how=self._operator.how,
            output=output_schema(self._operator.output.arrow),
            columns=self._frames.columns,
            now=step.now,
            limits=self._limits,
        )
