"""How a processor runs on Spark: a shuffle by key, and each partition sorted by event time.

The shuffle uses the key's types in Python: a column of type int is hashed as bigint, its type in a store, so that a
query finds the task that has the key. Unusable records are JSON in the column `_dead`, as in `aggregation_plan`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql import functions as F

from holdfast.pipeline.clock_columns import clocks_of, counted_sources, millis_of, times_of_branches
from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.local_records import LocalRows, dead_letters, in_order, positions_of, times_of
from holdfast.pipeline.lookup_plan import looked_up
from holdfast.pipeline.nulls import unusable_nulls
from holdfast.pipeline.planning import (
    BY_ROWS,
    NOTHING_SEALED,
    ROW_BY_ROW,
    Sealed,
    TaskRows,
    collect,
    columns_of_records,
    has_one_size,
    run_idle_tasks,
    with_tasks,
)
from holdfast.pipeline.processing_task import Code, ProcessingWork, RecordColumns, SharingWork
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskResult
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD, TIME
from holdfast.pipeline.unusable import Case, Expression, cases_of, dead_letter, not_utf8_inside, quoted, shown_of
from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.processing import Processing
from holdfast.topology.punctuation import fired
from holdfast.topology.stream import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.topology.outputs import DerivedOutput
    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class ProcessingPlanner:
    """Runs a processor in every version, also without records: entries expire by the clock in all tasks."""

    every_version: ClassVar[bool] = True
    by_key: ClassVar[bool] = True
    can_read_sealed: bool = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, Processing)
        self._subtopology = subtopology
        self._limits = limits
        self._operator = subtopology.operator
        self._code = ship(_code(self._operator, *self._operator.sharing))
        topology = subtopology.stream.topology
        self._tables = {name: topology.subtopology(name) for name in self._operator.tables}
        stream, frame = subtopology.stream, subtopology.stream.frame
        used = dict.fromkeys(column for each in self._operator.processors for column in each.event.columns)
        self._events = event = {column: f"c{n}" for n, column in enumerate(used)}
        inputs = [f"{quoted(column)} AS {name}" for column, name in event.items()]
        keys: list[str] = []
        for n, field in enumerate(subtopology.key.fields):
            if field.name in event and frame.schema[field.name].dataType.simpleString() == field.type:
                keys.append(event[field.name])
            else:
                keys.append(f"k{n}")
                inputs.append(f"CAST({quoted(field.name)} AS {field.type}) AS k{n}")
        self._order: list[str] = []
        if stream.timestamp is not None:
            instant = f"CAST({quoted(stream.timestamp)} AS timestamp)"
            inputs += [f"{millis_of(stream.timestamp)} AS {TIME}", f"unix_micros({instant}) AS t"]
            inputs += times_of_branches(stream)
            self._order.append("t")
        position = {column: f"s{n}" for n, column in enumerate(stream.position)}
        self._order += position.values()
        if len(stream.branches) > 1:
            position[SOURCE] = f"s{len(position)}"
        inputs += [f"{quoted(column)} AS {name}" for column, name in position.items()]
        self._sql = inputs
        clocks = clocks_of(stream)
        times = [*([TIME] if stream.timestamp else []), *(name for _, name in clocks)]
        self._carried = tuple(dict.fromkeys((*event.values(), *keys, DEAD, *times, *position.values())))
        if stream.timestamp is not None:
            position[stream.timestamp] = TIME
        first, *others = (tuple(event[column] for column in e.event.columns) for e in self._operator.processors)
        self._columns = RecordColumns(
            event=first,
            sharing=tuple(others),
            keys=tuple(keys),
            time=TIME if stream.timestamp else None,
            clocks=clocks,
            position=tuple(position.items()),
            sources=counted_sources(stream),
            hidden=stream.hidden,
        )
        checked = {field.name for field in subtopology.key.fields}
        texts = {name: frame.schema[name].dataType for name in event if name not in checked}
        nulls = [case for each in self._operator.processors for case in unusable_nulls(each.event, frame.schema)]
        self._unfit = [*nulls, *not_utf8_inside(texts)]
        # Keys have a maximum length, so only the other columns can make a record large.
        bounded = all(has_one_size(frame.schema[column].dataType) for column in event)
        self.arrow: Mapping[str, str] = BY_ROWS if bounded else ROW_BY_ROW

    @cached_property
    def _inputs(self) -> list[Column]:
        return [F.expr(sql) for sql in self._sql]

    def used(self) -> list[Expression]:
        return [*columns_of_records(self._subtopology), *map(quoted, self._events)]

    def unusable(self, wall: Millis) -> list[Case]:
        fields, timestamp = self._subtopology.key.fields, self._subtopology.stream.timestamp
        return [*cases_of(fields, timestamp, wall, self._limits.max_ahead_millis), *self._unfit]

    def planned(self, records: DataFrame, step: Step, sealed: Sealed) -> TaskRows:
        frame, work = self._partitioned(records, step.wall), self.work(step, sealed)
        return TaskRows(frame, self._columns.keys, work, columns=self._carried)

    def saw(self, plan: Hashable, results: Sequence[TaskResult]) -> None:
        return None

    def of_sealed(self, output: DerivedOutput, step: Step, time: Millis) -> None:
        return None

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        with steps.labels("plan").time():
            rows = self.planned(records, step, locations.sealed)
        with steps.labels("tasks").time():
            # Spark runs no task where it knows that a frame is empty.
            return collect(with_tasks(rows.selected, rows.work, locations)) or run_idle_tasks(
                records.sparkSession, self._limits.partitions, rows.work, locations
            )

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return run_idle_tasks(session, self._limits.partitions, self.work(step, locations.sealed), locations)

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        stream, columns = self._subtopology.stream, self._columns
        rows = {name: whole(records[column]) for column, name in self._events.items()}
        for name, field in zip(columns.keys, self._subtopology.key.fields, strict=True):
            rows[name] = whole(records[field.name]).cast(field.field_type.arrow)
        rows |= times_of(stream, records)
        rows |= positions_of(stream, records)
        rows |= {name: whole(records[column]) for column, name in columns.position if column == SOURCE}
        dead = dead_letters(self.unusable(step.wall), records, stream.hidden)
        return LocalRows(in_order(rows, dead, self._order, self._carried), columns.keys)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> ProcessingWork:
        first, *others = (self._work_of(each, step, sealed) for each in self._operator.processors)
        return ProcessingWork(
            subtopology=self._subtopology.number,
            version=step.version,
            now=step.now,
            punctuations=first.punctuations,
            name=first.name,
            key=self._subtopology.key,
            stores=first.stores,
            outputs=first.outputs,
            columns=self._columns,
            limits=self._limits,
            code=self._code,
            on_error=self._operator.on_error,
            tables=first.tables,
            sharing=tuple(others),
        )

    def _work_of(self, each: Processing, step: Step, sealed: Sealed) -> SharingWork:
        return SharingWork(
            name=each.name or self._subtopology.name,
            stores=each.own_stores(self._subtopology),
            outputs=each.forwards,
            punctuations=fired(each.punctuators, step.before, step.now),
            tables=tuple((attribute, looked_up(self._tables[name], sealed)) for attribute, name in each.global_tables),
        )

    def _partitioned(self, records: DataFrame, wall: Millis) -> DataFrame:
        """The records, partitioned by key and in order."""
        letter = dead_letter(self.unusable(wall), shown_of(records, self._subtopology.stream.hidden))
        frame = records.select(*self._inputs, letter.alias(DEAD))
        frame = frame.repartition(self._limits.partitions, *self._columns.keys)
        return frame.sortWithinPartitions(*self._order) if self._order else frame


def _code(first: Processing, *others: Processing) -> Code:
    return Code(first.processor, first.event, tuple(Code(each.processor, each.event) for each in others))
