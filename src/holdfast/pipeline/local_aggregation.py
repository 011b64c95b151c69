"""The rows of an aggregation's tasks without Spark: one per key, or per key and pane, as Spark's aggregation has them.

Each record becomes a row of partial results, and the reducers themselves merge the rows of a key. So every aggregate
that can be merged works here. Unusable and late records are rows of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.local_records import positions_of, times_of, values_of
from holdfast.pipeline.task_columns import DEAD, LATE, MICROS, ROWS, TIME, TaskColumns
from holdfast.pipeline.windowed_task import panes_of
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.layouts.windowed_rows import Times
from holdfast.topology.aggregates import Aggregate, Function, count, max
from holdfast.topology.aggregation import Aggregation
from holdfast.topology.collecting import items_of_records
from holdfast.topology.plain_frames import local_session
from holdfast.topology.reducers import Reducer, bind
from holdfast.topology.row_merging import Groups, reduced, rows_of
from holdfast.topology.windowing import WindowedAggregation
from holdfast.topology.windows import SessionWindows, TimeWindows, Windows

if TYPE_CHECKING:
    from holdfast.pipeline.driver import Step
    from holdfast.topology.topology import SubTopology


PartialSql = Callable[[Aggregate, Reducer, str, tuple[str, ...], tuple[str, ...]], list[str]]

_OWN = "$"
"""Before the names of our own columns, beside those of the user's aggregates."""


class LocalAggregation:
    """The rows of one aggregation, with the columns of the plan with dead letters."""

    def __init__(self, subtopology: SubTopology, columns: TaskColumns, sql: PartialSql) -> None:
        """`sql` has the Spark expressions of partial results, for aggregates that only Spark can begin."""
        assert isinstance(subtopology.operator, Aggregation)
        self._operator, self._columns, self._sql = subtopology.operator, columns, sql
        self._key, self._stream = subtopology.key, subtopology.stream
        of_times = tuple(bind(_OWN + name, max(name), "bigint") for name in columns.times)
        self._reducers = (*self._operator.reducers, bind(_OWN + ROWS, count(), None), *of_times)

    def rows(self, records: pa.Table, dead: pa.Array, step: Step) -> pa.Table:
        """The rows of a version's records; `dead` has the letters of unusable ones."""
        usable = dead.is_null()
        letters, records = dead.drop_null(), records.filter(usable)
        key = [whole(records[field.name]) for field in self._key.fields]
        rows = self._partials(records)
        late = self._late(records, step)
        groups, ordered = self._groups(key, records, late)
        rows = reduced(self._reducers, rows.take(ordered), groups)
        of_group = ordered.take(pa.array(np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]][: len(groups)])))
        columns = {name: column.take(of_group) for name, column in zip(self._columns.keys, key, strict=True)}
        columns |= self._as_partials(rows)
        if self._columns.pane is not None:
            columns[self._columns.pane] = self._panes(records).take(of_group)
        if self._columns.record is not None:
            columns[self._columns.record] = of_group
        if late is not None:
            columns[LATE] = late.take(of_group)
        columns[DEAD] = pa.nulls(len(of_group), pa.string())
        return _with_letters(pa.table(columns), letters, self._columns.rows)

    def _partials(self, records: pa.Table) -> pa.Table:
        """One row per record."""
        times = times_of(self._stream, records)
        order = [times[MICROS], *positions_of(self._stream, records).values()] if MICROS in times else []
        aggregates = [aggregate for _, aggregate in self._operator.aggregates]
        inputs = [aggregate.column for aggregate in aggregates if aggregate.column is not None]
        values = iter(values_of(records, inputs))
        partials: list[pa.Array] = []
        for aggregate, reducer in zip(aggregates, self._operator.reducers, strict=True):
            value = None if aggregate.column is None else next(values)
            found = of_records(aggregate, reducer, value, order, records.num_rows)
            partials += self._on_spark(aggregate, reducer, value) if found is None else found
        one = pa.repeat(pa.scalar(1, pa.int64()), records.num_rows)
        return rows_of(self._reducers, [*partials, one, *(times[name] for name in self._columns.times)])

    def _on_spark(self, aggregate: Aggregate, reducer: Reducer, value: pa.Array | None) -> list[pa.Array]:
        from pyspark.sql import functions as F

        given = pa.table({"n": pa.array(range(len(value or ())), pa.int64()), "x": value})
        sql = self._sql(aggregate, reducer, "x", (), ())
        frame = local_session().createDataFrame(given).groupBy("n").agg(*(F.expr(each) for each in sql)).orderBy("n")
        return [whole(column) for column in frame.toArrow().columns[1:]]

    def _groups(self, key: list[pa.Array], records: pa.Table, late: pa.Array | None) -> tuple[Groups, pa.Array]:
        """The group of each record, and the records in the order of their groups."""
        numbers = encode_keys(self._key, key).dictionary_encode().indices.to_numpy().astype(np.int64)
        if self._columns.pane is not None:
            panes = self._panes(records).dictionary_encode()
            numbers = numbers * (len(panes.dictionary) + 1) + panes.indices.to_numpy()
        if self._columns.record is not None:
            numbers = np.arange(len(numbers))
        if late is not None:
            alone = late.is_valid().to_numpy(zero_copy_only=False)
            above = numbers.max(initial=0) + 1
            numbers[alone] = above + np.arange(alone.sum())
        ordered = np.argsort(numbers, kind="stable")
        return numbers[ordered], pa.array(ordered)

    def _panes(self, records: pa.Table) -> pa.Array:
        assert isinstance(self._operator, WindowedAggregation)
        return panes_of(self._operator.windows, times_of(self._stream, records)[TIME])

    def _late(self, records: pa.Table, step: Step) -> pa.Array | None:
        """The records that may be late as structs, null for others; None if nobody takes late records."""
        if not self._columns.late:
            return None
        assert isinstance(self._operator, WindowedAggregation)
        shown = records.select([name for name in records.column_names if name not in self._stream.hidden])
        if not records.num_rows:
            return pa.nulls(0, pa.struct(list(shown.schema)))
        structs = shown.to_struct_array().combine_chunks()
        times = times_of(self._stream, records)[TIME].to_numpy()
        late = may_be_late(self._operator.windows, times, step.event)
        return pc.if_else(pa.array(late), structs, pa.scalar(None, structs.type))

    def _as_partials(self, rows: pa.Table) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        names = iter(self._columns.partials)
        for reducer in self._operator.reducers:
            partials = reducer.as_partials([whole(rows[field.name]) for field in reducer.fields])
            found |= {next(names): column for column in partials}
        own = [*self._columns.times, *([ROWS] if self._columns.rows == ROWS else [])]
        return found | {name: whole(rows[_OWN + name]) for name in own}


def may_be_late(windows: Windows, times: Times, event: int | None) -> npt.NDArray[np.bool_]:
    """Which records may be late, as `windowed_plan` asks Spark."""
    match windows:
        case _ if event is None:
            late = np.zeros(len(times), dtype=bool)
        case TimeWindows(size_ms=size, every_ms=every):
            late = times - np.mod(times, np.int64(every)) + np.int64(size + windows.grace_ms) <= event
        case SessionWindows(gap_ms=gap):
            late = times + np.int64(gap + windows.grace_ms) < event
        case _:
            late = times + np.int64(windows.size_ms + 1 + windows.grace_ms) <= event
    return late


def of_records(
    aggregate: Aggregate, reducer: Reducer, value: pa.Array | None, order: list[pa.Array], number: int
) -> list[pa.Array] | None:
    """The partial results of single records, as `aggregation_plan` has Spark compute them; None if only Spark can."""
    if value is None:
        return [pa.repeat(pa.scalar(1, pa.int64()), number)]
    present = value.is_valid().cast(pa.int64())
    match aggregate.function:
        case Function.COUNT:
            return [present]
        case Function.MEAN:
            return [value.cast(reducer.partials[0].field_type.arrow, safe=False), present]
        case Function.FIRST | Function.LAST:
            return [*order, value]
        case Function.SUM | Function.MIN | Function.MAX:
            return [value.cast(reducer.partials[0].field_type.arrow)]
        case Function.COLLECT:
            return [pa.array(items_of_records(order, value), pa.string())]
        case _:
            return None


def _with_letters(rows: pa.Table, letters: pa.Array, counting: str) -> pa.Table:
    """The rows and, after them, one row per dead letter."""
    empty = {field.name: pa.nulls(len(letters), field.type) for field in rows.schema}
    empty[DEAD] = letters
    empty[counting] = pa.repeat(pa.scalar(1, pa.int64()), len(letters))
    return pa.concat_tables([rows, pa.table(empty)])
