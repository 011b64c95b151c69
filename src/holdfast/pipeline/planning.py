"""Shared by all planners: the limits of a task, and how tasks run as a Spark job."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.log.segments import SegmentRef
from holdfast.pipeline.driver import Step
from holdfast.pipeline.job_order import running
from holdfast.pipeline.local_records import LocalRows
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult, decode
from holdfast.pipeline.sealed import SealedInput
from holdfast.pipeline.task import READ_ROWS, Limits
from holdfast.pipeline.unusable import Case, Expression, quoted
from holdfast.pipeline.worker import TaskWork, run_idle_partition, run_partition
from holdfast.stores.formats.types import FieldType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from holdfast.topology.outputs import DerivedOutput
    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis

BY_BYTES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(READ_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}
"""The size of Arrow batches when rows may be large."""

BY_ROWS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
"""The same when no row can be large. Any limit in bytes makes Spark add up the batch's size after every row, which was
14 % of the JVM's time in the count benchmark (docs/decisions/0005)."""

ROW_BY_ROW = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
}
"""For a processor whose records may be large: it can start on a small batch while Spark prepares the next."""

Sealed = Mapping[str, tuple[SegmentRef, ...]]
"""Task → the segments that it has written in this version."""

NOTHING_SEALED: Sealed = {}

RESULT = StructType([StructField("result", BinaryType())])


@dataclass(frozen=True)
class TaskRows:
    """The rows of a planner's tasks in one version, and what the tasks do with them."""

    frame: DataFrame
    """The rows, partitioned by key."""
    keys: tuple[str, ...]
    """The columns of the key."""
    work: TaskWork
    plan: Hashable = None
    """The frames of one plan have the same columns in each version."""
    columns: tuple[str, ...] | None = None
    """The columns of the frame that tasks get; None: all."""

    @property
    def selected(self) -> DataFrame:
        """The rows as tasks get them."""
        return self.frame if self.columns is None else self.frame.select(*self.columns)


@dataclass(frozen=True)
class SealedTaskRows:
    """The same of a planner whose tasks make their rows from what others have sealed in the same Spark task."""

    sealed: SealedInput
    work: TaskWork
    plan: Hashable = None


class Planner(Protocol):
    """Runs one sub-topology on Spark. Every operator has a planner."""

    every_version: ClassVar[bool]
    """Whether its tasks also run in a batch in which its stream has no records."""
    by_key: ClassVar[bool]
    """Whether its rows are partitioned by the key of its sub-topology."""
    arrow: Mapping[str, str]
    """Spark's options for the size of the Arrow batches that its tasks get."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None: ...

    @property
    def can_read_sealed(self) -> bool:
        """Whether its tasks can make their rows from what another task has sealed, without Spark."""

    def used(self) -> list[Expression]:
        """What it reads of a record. The streaming query reads nothing else from the source."""

    def unusable(self, wall: Millis) -> list[Case]:
        """The cases in which it can't use a record, at this wall clock."""

    def planned(self, records: DataFrame, step: Step, sealed: Sealed) -> TaskRows:
        """The rows of its tasks for the records of one batch of its stream."""

    def saw(self, plan: Hashable, results: Sequence[TaskResult]) -> None:
        """Notes what rows by this plan gave, for the plan of the next batch."""

    def of_sealed(self, output: DerivedOutput, step: Step, time: Millis) -> SealedTaskRows | None:
        """Its rows made of an output's rows, if it can read sealed rows; None if this batch needs Spark."""

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        """Runs its tasks over the records of one batch of its stream."""

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        """Runs its tasks in a version without a batch: they remove what has expired, and call punctuators."""

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        """The rows that its tasks get, made from Arrow columns in this process: for tests without Spark."""

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TaskWork:
        """What its tasks do in a version, with rows of `local` or with none."""


def columns_of_records(subtopology: SubTopology) -> list[Expression]:
    """The columns that every planner uses: key, event time and, for dead letters, position."""
    stream = subtopology.stream
    names = [field.name for field in subtopology.key.fields]
    names += [*([stream.timestamp] if stream.timestamp else []), *stream.position]
    return [quoted(name) for name in dict.fromkeys(names)]


def has_one_size(kind: DataType) -> bool:
    """Whether all values of a type have the same size, so that no row of such columns can be large."""
    text = kind.simpleString()
    return text.partition("<")[0] not in ("array", "map", "struct", "variant") and not FieldType.parse(text).is_variable


def with_tasks(frame: DataFrame, work: TaskWork, locations: StateLocations) -> DataFrame:
    return frame.mapInArrow(partial(run_partition, work, locations), RESULT)


def run_idle_tasks(
    session: SparkSession, partitions: int, work: TaskWork, locations: StateLocations
) -> list[TaskResult]:
    """The results of tasks without records, in every partition."""
    every = session.range(0, partitions, 1, partitions)
    return collect(every.mapInArrow(partial(run_idle_partition, work, locations), RESULT))


def collect(tasks: DataFrame) -> list[TaskResult]:
    """Runs the job of these tasks, as it is planned now."""
    tasks._jdf.queryExecution().executedPlan()
    with running():
        # As Arrow: collect() takes 25 ms more until the first row.
        results = tasks.toArrow()["result"].to_pylist()
    return [decode(result) for result in results]


def is_partitioned_by(frame: DataFrame, columns: Sequence[str], partitions: int) -> bool:
    """Whether the physical plan ends hash-partitioned by these columns in this order, or has one partition if asked."""
    partitioning: Any = frame._jdf.queryExecution().executedPlan().outputPartitioning()
    if partitions == 1:
        return bool(partitioning.numPartitions() == 1)
    # Attributes print as name#id; the ids differ between plans.
    found = [part.partition("#")[0] for part in str(partitioning.toString()).partition("(")[2].split(", ")]
    return (
        partitioning.getClass().getSimpleName() == "HashPartitioning"
        and partitioning.numPartitions() == partitions
        and found[:-1] == [*columns]
    )


def configure(session: SparkSession, options: Mapping[str, str]) -> None:
    for name, value in options.items():
        session.conf.set(name, value)


def in_short(text: str, first: int = 4, last: int = 4) -> str:
    """The first and last lines of a long message, where a Python traceback has its error, without Java's stack."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return "\n".join(lines if len(lines) <= first + last else [*lines[:first], "...", *lines[-last:]])
