"""How a table from a changelog runs on Spark: a shuffle by key, and each partition in the order of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.local_records import LocalRows
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
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.table_task import TableWork
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Case, Expression, quoted
from holdfast.topology.tables import Changelog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class TablePlanner:
    """Runs a table."""

    every_version: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, Changelog)
        self._subtopology, self._limits, self._operator = subtopology, limits, subtopology.operator
        values: dict[str, Expression] = {f"v{n}": quoted(name) for n, name in enumerate(self._operator.columns)}
        deleted = self._operator.deleted
        values["gone"] = "false" if deleted is None else deleted
        self._frames = RecordFrames(subtopology, limits, values, self._operator.columns)

    def used(self) -> list[Expression]:
        return [*columns_of_records(self._subtopology), *self._frames.values.values()]

    def unusable(self, wall: Millis) -> list[Case]:
        return self._frames.unusable(wall)

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        configure(records.sparkSession, BY_BYTES)
        with steps.labels("plan").time():
            tasks = with_tasks(self._frames.rows(records, step.wall), self.work(step), locations)
        with steps.labels("tasks").time():
            return collect(tasks)

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return run_idle_tasks(session, self._limits.partitions, self.work(step), locations)

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        return self._frames.local(records, step.wall)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TableWork:
        (store,) = self._subtopology.stores
        return TableWork(
            topology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            store=store,
            columns=self._frames.columns,
            now=step.now,
            limits=self._limits,
        )
