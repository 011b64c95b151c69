"""Outputs as input: what the tasks of one sub-topology have sealed in this version is read by another one.

The segments of the first sub-topology's tasks are written, so a stage that Spark runs twice reads the same rows again.
Only the commit makes them count, for both sub-topologies at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import OUTPUT, Part, SegmentRef
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskDone, TaskResult
from holdfast.pipeline.shipping import ship, unship
from holdfast.pipeline.sinks.outputs import is_part_of, timed_rows
from holdfast.pipeline.worker import log_of
from holdfast.topology.derived import ROW, TASK, TIME, frame_schema
from holdfast.topology.outputs import DerivedOutput, deletions_of
from holdfast.words import Millis, TaskId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SealedRows:
    """What a worker needs to read the rows of an output."""

    output: bytes
    """The output, as `shipping` sends it: a store's values may be of a user's class."""
    tasks: tuple[tuple[int, tuple[SegmentRef, ...]], ...]
    """Partition and segments of each task that has rows."""
    time: Millis
    """The time of rows that have none of their own, such as those of keys that expired."""
    locations: StateLocations

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of `mapInArrow`: numbers of tasks in, their rows out."""
        log, output = log_of(self.locations), unship(self.output)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                partition, refs = self.tasks[number]
                for rows in _rows_of_task(output, partition, refs, self.time, log):
                    yield from rows.to_batches()


class RowsOf(Protocol):
    """Makes the rows of a task from the rows of an output. Raises `RejectFastPlan` if it can't."""

    def __call__(self, rows: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class SealedInput:
    """How a task reads the rows of an output that the task of the same partition has sealed in the same Spark task."""

    output: bytes
    """The output, as `shipping` sends it."""
    subtopology: int
    """The sub-topology of the output."""
    time: Millis
    rows_of: RowsOf

    def read(self, task: TaskId, sealed: Mapping[str, tuple[SegmentRef, ...]], log: Log) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        refs = sealed[str(TaskId(self.subtopology, task.partition))]
        for rows in _rows_of_task(unship(self.output), task.partition, refs, self.time, log):
            yield from self.rows_of(rows).to_batches()


def _rows_of_task(
    output: DerivedOutput, partition: int, refs: Sequence[SegmentRef], time: Millis, log: Log
) -> Iterator[pa.Table]:
    at, deleted = 0, _deletions(output, refs, log)
    for ref in refs:
        for part in filter(partial(is_part_of, output), ref.parts):
            rows = _columns(timed_rows(output, log.read_part(ref, part), deleted), time, partition, at)
            at += rows.num_rows
            yield rows


def _deletions(output: DerivedOutput, refs: Sequence[SegmentRef], log: Log) -> pa.Table | None:
    """The event times of deleted keys, for tables that tell them."""
    name = deletions_of(output.name)
    parts = [log.read_part(ref, part) for ref in refs for part in ref.of_type(OUTPUT) if part.name == name]
    return pa.concat_tables(parts) if parts else None


def _columns(rows: pa.Table, time: Millis, partition: int, first: int) -> pa.Table:
    """The rows with their event time and their position."""
    times = pc.fill_null(rows[TIME], time)
    rows = rows.set_column(rows.schema.get_field_index(TIME), TIME, pc.cast(times, pa.timestamp("ms", "UTC")))
    rows = rows.set_column(rows.schema.get_field_index(TIME), TIME, rows[TIME].cast(pa.timestamp("us", "UTC")))
    numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
    return rows.append_column(TASK, pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)).append_column(
        ROW, numbers
    )


def sealed_frame(
    session: SparkSession,
    output: DerivedOutput,
    results: Sequence[TaskResult],
    time: Millis,
    locations: StateLocations,
) -> DataFrame | None:
    """The rows of an output that these tasks have sealed; None if there are none."""
    found = _tasks_with(output, results)
    if not found:
        return None
    rows = SealedRows(ship(output), tuple(found), time, locations)
    return session.range(0, len(found), 1, len(found)).mapInArrow(rows.read, frame_schema(output.columns))


def sealed_table(output: DerivedOutput, results: Sequence[TaskResult], time: Millis, log: Log) -> pa.Table | None:
    """The same in this process."""
    found = _tasks_with(output, results)
    tables = [table for partition, refs in found for table in _rows_of_task(output, partition, refs, time, log)]
    return pa.concat_tables(tables) if tables else None


def _is_of(output: DerivedOutput, part: Part) -> bool:
    return is_part_of(output, part) or part.name == deletions_of(output.name)


def _tasks_with(output: DerivedOutput, results: Sequence[TaskResult]) -> list[tuple[int, tuple[SegmentRef, ...]]]:
    """The partitions whose tasks have sealed rows of an output, and the segments with them."""
    found = []
    for done in results:
        if isinstance(done, TaskDone) and done.task.startswith(f"{output.subtopology}_"):
            refs = (*done.segments, *done.volatile)
            own = tuple(ref for ref in refs if any(_is_of(output, part) for part in ref.parts))
            if own:
                found.append((TaskId.parse(done.task).partition, own))
    return found
