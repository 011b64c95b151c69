"""How an aggregation runs on Spark: a shuffle by key, one Python task per partition, and three plans for them.

Most batches have no unusable record: one without a key, without an event time or too far ahead. The two fast plans rely
on that. They set the key of an unusable record to null; a task that gets a row without a key rejects the plan, and the
batch is computed again by the plan with dead letters. In that plan an unusable record is JSON in the column `_dead`,
which is null in all other rows. `_dead` is grouped by like a key, so one job yields both results and dead letters. Rows
still are in the right partition: Spark's hash ignores nulls, so `hash(key, null) = hash(key)`. The task checks the
partition of every row.

A batch has as few columns as possible: converting a JVM row to Arrow costs time per cell.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from holdfast import metrics
from holdfast.pipeline.aggregation_expressions import (
    inputs_of,
    order_of,
    partials_of,
    stored_texts,
    tied_with,
    value_of,
)
from holdfast.pipeline.aggregation_task import AggregationWork
from holdfast.pipeline.clock_columns import clocks_of, counted_sources, millis_of, source_number, times_of_branches
from holdfast.pipeline.driver import Step, steps
from holdfast.pipeline.grouping import can_group
from holdfast.pipeline.local_aggregation import LocalAggregation
from holdfast.pipeline.local_records import LocalRows, dead_letters, name_in
from holdfast.pipeline.plan_chooser import PlanChooser
from holdfast.pipeline.planning import (
    BY_BYTES,
    BY_ROWS,
    NOTHING_SEALED,
    Sealed,
    SealedTaskRows,
    TaskRows,
    collect,
    columns_of_records,
    in_short,
    is_partitioned_by,
    run_idle_tasks,
    with_tasks,
)
from holdfast.pipeline.raw_rows import RawRows
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import FastPlanRejected, TaskDone, TaskResult
from holdfast.pipeline.sealed import SealedInput
from holdfast.pipeline.shipping import ship
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD, MICROS, OF_SOURCE, ROWS, TIME, BatchPlan, TaskColumns, number_of
from holdfast.pipeline.unusable import Case, Expression, cases_of, dead_letter, is_unusable, not_utf8, quoted, shown_of
from holdfast.pipeline.worker import TaskWork
from holdfast.stores.access import Now
from holdfast.topology.aggregates import Function
from holdfast.topology.aggregation import Aggregation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.topology.outputs import DerivedOutput
    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis

logger = logging.getLogger(__name__)

_batches = metrics.counter("holdfast_table_batches", "Batches of a table, by plan.", ["store", "plan"])


class AggregationPlanner:
    """Runs an aggregation by the plan that suits its batches, or with dead letters if a task rejects that plan."""

    every_version: ClassVar[bool] = False
    by_key: ClassVar[bool] = True

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        self._subtopology = subtopology
        self._limits = limits
        assert isinstance(subtopology.operator, Aggregation)
        self._operator = subtopology.operator
        self._columns = self._columns_of(subtopology)
        self.arrow: Mapping[str, str] = BY_ROWS if self._columns[BatchPlan.WITH_DEAD_LETTERS].bounded else BY_BYTES
        self._chooser = PlanChooser(can_be_raw=BatchPlan.RAW in self._columns)

    def _columns_of(self, subtopology: SubTopology) -> dict[BatchPlan, TaskColumns]:
        return columns_of(subtopology, self._operator)

    @cached_property
    def _frames(self) -> AggregationFrames:
        return AggregationFrames(self._subtopology, self._limits.partitions, self._limits.max_ahead_millis)

    def used(self) -> list[Expression]:
        columns = (aggregate.column for _, aggregate in self._operator.aggregates)
        return [*columns_of_records(self._subtopology), *(column for column in columns if column is not None)]

    def unusable(self, wall: Millis) -> list[Case]:
        fields, timestamp = self._subtopology.key.fields, self._subtopology.stream.timestamp
        return [*cases_of(fields, timestamp, wall, self._limits.max_ahead_millis), *self._not_utf8]

    @cached_property
    def _not_utf8(self) -> list[Case]:
        return not_utf8(stored_texts(self._operator, self._subtopology.stream.position))

    def local(self, records: pa.Table, step: Step) -> LocalRows:
        columns = self._columns[BatchPlan.WITH_DEAD_LETTERS]
        dead = dead_letters(self.unusable(step.wall), records, self._subtopology.stream.hidden)
        return LocalRows(
            LocalAggregation(self._subtopology, columns, partials_of).rows(records, dead, step), columns.keys
        )

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TaskWork:
        work = self._work(step, BatchPlan.WITH_DEAD_LETTERS)
        return replace(work, columns=replace(work.columns, sources=()))  # a test driver counts records itself

    def run(self, records: DataFrame, step: Step, locations: StateLocations) -> list[TaskResult]:
        chosen = self._chooser.plan
        results = None if chosen is BatchPlan.WITH_DEAD_LETTERS else self._fast(records, step, locations, chosen)
        rejected = results is None and chosen is not BatchPlan.WITH_DEAD_LETTERS
        taken = BatchPlan.WITH_DEAD_LETTERS if results is None else chosen
        if results is None:
            results = self._by(records, step, locations, BatchPlan.WITH_DEAD_LETTERS)
        self.saw(taken, results, rejected=rejected)
        return results

    def saw(self, plan: Hashable, results: Sequence[TaskResult], *, rejected: bool = False) -> None:
        assert isinstance(plan, BatchPlan)
        _batches.labels(self._subtopology.name, plan.value).inc()
        done = [result for result in results if isinstance(result, TaskDone)]
        keys, dead = (sum(result.counts.get(name, 0) for result in done) for name in ("keys", "dead"))
        self._chooser.saw(sum(result.records for result in done) - dead, keys, dead_letters=rejected or dead > 0)

    def planned(self, records: DataFrame, step: Step, sealed: Sealed) -> TaskRows:
        plan = self._chooser.plan
        frame = self._frames.rows(records, step, plan, shuffle=plan is BatchPlan.WITH_DEAD_LETTERS)
        return TaskRows(frame, self._frames.keys, self._work(step, plan), plan)

    @cached_property
    def can_read_sealed(self) -> bool:
        return BatchPlan.RAW in self._columns and all(column is not None for column, _ in self._raw_names)

    @property
    def _raw_names(self) -> list[tuple[str | None, str]]:
        """The columns of raw rows that are columns of the stream, None for one that is an expression."""
        inputs = inputs_of(self._operator, BatchPlan.RAW)
        columns, stream = self._columns[BatchPlan.RAW], self._subtopology.stream
        names = {name: name_in(column) for name, column, _ in inputs if name is not None and column is not None}
        order = [(column, f"s{n}") for n, column in enumerate(stream.position)] if columns.order else []
        keys = zip(self._subtopology.key.names, columns.keys, strict=True)
        return [*((column, name) for name, column in names.items()), *keys, *order]

    def of_sealed(self, output: DerivedOutput, step: Step, time: Millis) -> SealedTaskRows | None:
        if self._chooser.plan is BatchPlan.WITH_DEAD_LETTERS:
            return None
        timestamp = self._subtopology.stream.timestamp
        of_time = MICROS if self._columns[BatchPlan.RAW].order else TIME
        rows = RawRows(
            tuple((column, name) for column, name in self._raw_names if column is not None),
            None if timestamp is None else (timestamp, of_time),
            tuple(case.check for case in self.unusable(step.wall) if case.check is not None),
        )
        sealed = SealedInput(ship(output), output.subtopology, time, rows)
        return SealedTaskRows(sealed, self._work(step, BatchPlan.RAW), BatchPlan.RAW)

    def _fast(
        self, records: DataFrame, step: Step, locations: StateLocations, plan: BatchPlan
    ) -> list[TaskResult] | None:
        """The results of a fast plan; None if a task rejected it."""
        try:
            results = self._by(records, step, locations, plan)
        except PySparkException as error:
            # An unusable record may be the cause, for example in a sum that overflows.
            logger.info("%s, %s: %s", self._subtopology.name, plan.value, in_short(str(error)))
            return None
        for result in results:
            if isinstance(result, FastPlanRejected):
                logger.info("%s, %s: %s", self._subtopology.name, plan.value, result.message)
                return None
        return results

    def run_idle(self, session: SparkSession, step: Step, locations: StateLocations) -> list[TaskResult]:
        return run_idle_tasks(session, self._limits.partitions, self._work(step, BatchPlan.GROUPED), locations)

    def _work(self, step: Step, plan: BatchPlan) -> AggregationWork:
        (store,) = self._subtopology.stores
        return AggregationWork(
            subtopology=self._subtopology.number,
            version=step.version,
            store=store,
            reducers=self._operator.reducers,
            columns=self._columns[plan],
            now=Now(step.wall, step.event),
            limits=self._limits,
        )

    def _by(self, records: DataFrame, step: Step, locations: StateLocations, plan: BatchPlan) -> list[TaskResult]:
        work = self._work(step, plan)
        with steps.labels("plan").time():
            tasks = with_tasks(self._frames.rows(records, step, plan), work, locations)
            if not self._frames.is_by_key(tasks, plan):
                tasks = with_tasks(self._frames.rows(records, step, plan, shuffle=True), work, locations)
        with steps.labels("tasks").time():
            return collect(tasks)


def columns_of(subtopology: SubTopology, operator: Aggregation) -> dict[BatchPlan, TaskColumns]:
    """The columns of the tasks in each possible plan."""
    partials = tuple(f"p{n}" for n in range(sum(len(reducer.partials) for reducer in operator.reducers)))
    counting, at = ROWS, 0
    for (_, aggregate), reducer in zip(operator.aggregates, operator.reducers, strict=True):
        if aggregate.function is Function.COUNT and aggregate.column is None:
            counting = partials[at]
        at += len(reducer.partials)
    with_dead_letters = TaskColumns(
        keys=tuple(f"k{n}" for n in range(len(subtopology.key.fields))),
        partials=partials,
        rows=counting,
        time=TIME if subtopology.stream.timestamp else None,
        clocks=clocks_of(subtopology.stream),
        sources=counted_sources(subtopology.stream),
        bounded=not any(field.field_type.is_variable for reducer in operator.reducers for field in reducer.partials),
    )
    columns = {BatchPlan.WITH_DEAD_LETTERS: with_dead_letters}
    columns[BatchPlan.GROUPED] = replace(with_dead_letters, dead=False)
    if can_group(subtopology.key, operator.reducers):
        inputs = tuple(name for name, _, _ in inputs_of(operator, BatchPlan.RAW))
        order = order_of(subtopology.stream, operator)
        columns[BatchPlan.RAW] = replace(with_dead_letters, dead=False, inputs=inputs, order=order)
    return columns


class AggregationFrames:
    """The DataFrames of one aggregation. Expressions are made once, since each takes several calls into the JVM."""

    def __init__(self, subtopology: SubTopology, partitions: int, max_ahead_millis: int) -> None:
        assert isinstance(subtopology.operator, Aggregation)
        self.operator = subtopology.operator
        self._stream = subtopology.stream
        self._fields = subtopology.key.fields
        self._partitions = partitions
        self._max_ahead_millis = max_ahead_millis
        self.columns = columns_of(subtopology, self.operator)
        self.keys = self.columns[BatchPlan.WITH_DEAD_LETTERS].keys
        self._key = [F.expr(f"{quoted(f.name)} AS k{n}") for n, f in enumerate(self._fields)]
        sources = counted_sources(self._stream)
        self._source = [F.expr(f"{source_number(sources)} AS {OF_SOURCE}")] if sources else []
        self._time = {plan: self._time_inputs(columns) for plan, columns in self.columns.items()}
        self._values = {
            plan: {name: value_of(column, counted) for name, column, counted in inputs_of(self.operator, plan) if name}
            for plan in self.columns
        }
        self._aggregates = self._partial_aggregates()
        self._not_utf8 = not_utf8(stored_texts(self.operator, self._stream.position))

    def rows(self, records: DataFrame, step: Step, plan: BatchPlan, *, shuffle: bool = False) -> DataFrame:
        """The batch's rows, partitioned by key: one per key, or in the raw plan one per record.

        Spark's aggregation shuffles by key itself, except where `is_by_key` is false: then `shuffle` adds a shuffle.
        """
        with _ansi(records.sparkSession):
            frame = records.select(*self._columns(records, step, plan))
            if plan is BatchPlan.RAW:
                return frame.repartition(self._partitions, *self.keys)
            frame = frame.groupBy(*self._groups(plan)).agg(*self._aggregates)
        return frame.repartition(self._partitions, *self.keys) if shuffle else frame

    def is_by_key(self, frame: DataFrame, plan: BatchPlan) -> bool:
        """Whether the physical plan ends hash-partitioned by the key (and `_dead`) in this order.

        A `groupBy` alone may reuse another partitioning.
        """
        return is_partitioned_by(frame, self._partitioned_by(plan), self._partitions)

    def _partitioned_by(self, plan: BatchPlan) -> tuple[str, ...]:
        return self.keys if plan is BatchPlan.RAW else self._groups(plan)

    def _groups(self, plan: BatchPlan) -> tuple[str, ...]:
        return (*self.keys, DEAD) if plan is BatchPlan.WITH_DEAD_LETTERS else self.keys

    def unusable(self, wall: Millis) -> list[Case]:
        return [*cases_of(self._fields, self._stream.timestamp, wall, self._max_ahead_millis), *self._not_utf8]

    def _columns(self, records: DataFrame, step: Step, plan: BatchPlan) -> list[Column]:
        """The input columns. An unusable record has a value in `_dead`, or no key in a plan without that column."""
        cases = self.unusable(step.wall)
        good = ~is_unusable(cases)
        if plan is BatchPlan.WITH_DEAD_LETTERS:
            # Otherwise a sum over many equal dead letters could overflow.
            values = [F.when(good, value).alias(name) for name, value in self._values[plan].items()]
            letter = dead_letter(cases, shown_of(records, self._stream.hidden))
            return [*self._key, letter.alias(DEAD), *self._time[plan], *self._source, *values]
        key = [F.when(good, F.expr(quoted(f.name))).alias(f"k{n}") for n, f in enumerate(self._fields)]
        return [
            *key,
            *self._time[plan],
            *self._source,
            *(value.alias(name) for name, value in self._values[plan].items()),
        ]

    def _time_inputs(self, columns: TaskColumns) -> list[Column]:
        stream = self._stream
        if stream.timestamp is None:
            return []
        inputs = [] if columns.order else [f"{millis_of(stream.timestamp)} AS {TIME}"]
        inputs += times_of_branches(stream)
        if order_of(stream, self.operator):
            inputs.append(f"unix_micros(CAST({quoted(stream.timestamp)} AS timestamp)) AS {MICROS}")
            inputs += [f"{quoted(column)} AS s{n}" for n, column in enumerate(stream.position)]
        return [F.expr(sql) for sql in inputs]

    def _partial_aggregates(self) -> list[Column]:
        order = order_of(self._stream, self.operator)
        inputs = inputs_of(self.operator, BatchPlan.GROUPED)
        partials = [
            partial
            for (_, aggregate), reducer, (column, _, _) in zip(
                self.operator.aggregates, self.operator.reducers, inputs, strict=True
            )
            for partial in partials_of(aggregate, reducer, column, order, tied_with(self.operator, aggregate.function))
        ]
        columns = [F.expr(f"{sql} AS p{n}") for n, sql in enumerate(partials)]
        named = self.columns[BatchPlan.WITH_DEAD_LETTERS]
        if named.rows == ROWS:
            columns.append(F.expr(f"count(1) AS {ROWS}"))
        columns += [F.expr(f"max({name}) AS {name}") for name in named.times]
        columns += [F.expr(f"count_if({OF_SOURCE} = {n}) AS {number_of(n)}") for n in range(len(named.sources))]
        return columns


@contextlib.contextmanager
def _ansi(session: SparkSession) -> Iterator[None]:
    """ANSI mode for our own expressions: sums must fail on overflow, whatever the user's setting, which is restored."""
    before = session.conf.get("spark.sql.ansi.enabled")
    session.conf.set("spark.sql.ansi.enabled", "true")
    try:
        yield
    finally:
        session.conf.set("spark.sql.ansi.enabled", before or "true")
