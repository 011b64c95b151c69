"""How a static table runs on Spark: one task that reads the whole DataFrame, without a shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed, collect, with_tasks
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.static_task import StaticTableWork
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.global_tables import StaticTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.topology import SubTopology


class StaticTablePlanner(RecordPlanner):
    """Runs a static table in the first version after a start, on the DataFrame's own session, whose options stay."""

    by_key: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, StaticTable)
        columns = subtopology.operator.columns
        values: dict[str, Expression] = {f"v{n}": quoted(name) for n, name in enumerate(columns)}
        self._frames = RecordFrames(subtopology, limits, values, columns, shuffled=False)
        super().__init__(subtopology, limits, self._frames)

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        with steps.labels("plan").time():
            rows = self.planned(records, step, NOTHING_SEALED)
            tasks = with_tasks(rows.selected, rows.work, locations)
        with steps.labels("tasks").time():
            # Spark runs no task where it knows that a frame is empty, and then all stored rows are to be deleted.
            return collect(tasks) or self.run_idle(records.sparkSession, step, locations)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> StaticTableWork:
        (store,) = self._subtopology.stores
        return StaticTableWork(
            subtopology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            store=store,
            columns=self._frames.columns,
            now=step.now,
            limits=self._limits,
        )
