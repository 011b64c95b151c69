"""How operators over single records run on Spark: their records as rows of tasks, and one job over these.

The planner of such an operator says which rows its tasks get (`Frames`) and what they do with them (`work`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa

from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.local_records import LocalRows
from holdfast.pipeline.planning import (
    BY_BYTES,
    BY_ROWS,
    NOTHING_SEALED,
    Sealed,
    TaskRows,
    collect,
    has_one_size,
    run_idle_tasks,
    with_tasks,
)
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Case, Expression
from holdfast.pipeline.worker import TaskWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.topology.outputs import DerivedOutput
    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class Frames(Protocol):
    """The rows of an operator's tasks."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows are partitioned."""

    @property
    def carried(self) -> tuple[str, ...] | None:
        """The columns of rows that tasks get; None: all."""

    def used(self) -> list[Expression]: ...

    def unusable(self, wall: Millis) -> list[Case]: ...

    def rows(self, records: DataFrame, wall: Millis) -> DataFrame:
        """The rows of a batch, partitioned by key."""

    def local(self, records: pa.Table, wall: Millis) -> LocalRows:
        """The same without Spark."""


class RecordPlanner(ABC):
    """Runs an operator over single records."""

    every_version: ClassVar[bool] = False
    by_key: ClassVar[bool] = True
    can_read_sealed: bool = False

    def __init__(
        self, subtopology: SubTopology, limits: Limits, frames: Frames, columns: Sequence[str] | None = None
    ) -> None:
        """`columns` are those of the stream that rows have besides the key; None if rows have others too."""
        self._subtopology, self._limits, self._rows_of = subtopology, limits, frames
        schema, key = subtopology.stream.frame.schema, subtopology.key.names
        # Keys have a maximum length, so only the other columns can make a row large.
        others = None if columns is None else [schema[name].dataType for name in columns if name not in key]
        bounded = others is not None and all(map(has_one_size, others))
        self.arrow: Mapping[str, str] = BY_ROWS if bounded else BY_BYTES

    @abstractmethod
    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TaskWork:
        """What its tasks do in a version."""

    def used(self) -> list[Expression]:
        return self._rows_of.used()

    def unusable(self, wall: Millis) -> list[Case]:
        return self._rows_of.unusable(wall)

    def planned(self, records: DataFrame, step: Step, sealed: Sealed) -> TaskRows:
        frame, work = self._rows_of.rows(records, step.wall), self.work(step, sealed)
        return TaskRows(frame, self._rows_of.keys, work, columns=self._rows_of.carried)

    def saw(self, plan: Hashable, results: Sequence[TaskResult]) -> None:
        return None

    def of_sealed(self, output: DerivedOutput, step: Step, time: Millis) -> None:
        return None

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        with steps.labels("plan").time():
            rows = self.planned(records, step, locations.sealed)
            tasks = with_tasks(rows.selected, rows.work, locations)
        with steps.labels("tasks").time():
            return collect(tasks)

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return run_idle_tasks(session, self._limits.partitions, self.work(step), locations)

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        return self._rows_of.local(records, step.wall)
