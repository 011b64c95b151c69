"""An aggregation's batch as DataFrame work: an exchange by key, one Python task per partition, and three plans for it.

Most batches have no record that can't be used: one without a key, without an event time or too far ahead. The two fast
ways count on that. Such a record loses its key there; the task that meets a row without one says so, and the batch is
computed once more, the careful plan. There the record rides along as JSON in the column `_dead`, which is null for
all others and is grouped by like a key, so that one job reads the source once and yields both. It leaves the exchange
as it should be: Spark's hash passes over nulls, so `hash(key, null) = hash(key)`, and every live row is where
`repartition(n, *key)` would have put it. The task checks just that, row by row.

What a batch needs no column for has none: turning a JVM row into Arrow costs by the cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.grouping import can_group
from holdfast.pipeline.task_columns import DEAD, ROWS, TIME, BatchPlan, TaskColumns
from holdfast.stores.formats.keys import MAX_KEY_BYTES
from holdfast.stores.formats.types import Field
from holdfast.topology.aggregates import Aggregate, Function

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.topology.stream import Table
    from holdfast.words import Millis

LONGEST_KEY = MAX_KEY_BYTES // 2 - 64
"""Text and bytes of a key together. Encoding at most doubles them, and the other components have room in the rest."""


def columns_of(table: Table) -> dict[BatchPlan, TaskColumns]:
    """The columns of a table's tasks, by the plans it can take."""
    partials = tuple(f"p{n}" for n in range(sum(len(reducer.partials) for reducer in table.reducers)))
    counting, at = ROWS, 0
    for (_, aggregate), reducer in zip(table.aggregates, table.reducers, strict=True):
        if aggregate.function is Function.COUNT and aggregate.column is None:
            counting = partials[at]
        at += len(reducer.partials)
    careful = TaskColumns(
        keys=tuple(f"k{n}" for n in range(len(table.spec.key.fields))),
        partials=partials,
        rows=counting,
        time=TIME if table.stream.timestamp else None,
        bounded=not any(field.field_type.is_variable for reducer in table.reducers for field in reducer.partials),
    )
    columns = {BatchPlan.WITH_DEAD_LETTERS: careful, BatchPlan.GROUPED: replace(careful, dead=False)}
    if can_group(table.spec.key, table.reducers):
        inputs = tuple(None if a.column is None else f"x{n}" for n, (_, a) in enumerate(table.aggregates))
        columns[BatchPlan.RAW] = replace(careful, dead=False, inputs=inputs)
    return columns


class TablePlan:
    """The plan of one table. Its expressions are made once; each is a few calls into the JVM, and a batch is short."""

    def __init__(self, table: Table, partitions: int, max_ahead_millis: int) -> None:
        self._table = table
        self._partitions = partitions
        self._max_ahead_millis = max_ahead_millis
        self.columns = columns_of(table)
        self.keys = self.columns[BatchPlan.WITH_DEAD_LETTERS].keys
        self._key = [F.expr(f"{quoted(f.name)} AS k{n}") for n, f in enumerate(table.spec.key.fields)]
        self._time = self._time_inputs()
        self._values = {plan: _value_inputs(table, plan) for plan in self.columns}
        self._aggregates = self._partial_aggregates()

    def rows(self, batch: DataFrame, wall: Millis, plan: BatchPlan, *, shuffle: bool = False) -> DataFrame:
        """The batch's rows, each where its key belongs: one per key, or by the raw plan one per record.

        The aggregation's own exchange is the one by key, unless the plan turns out otherwise: then `shuffle` adds one.
        """
        frame = batch
        for step in self._table.stream.steps:
            frame = step(frame)
        with _ansi(frame.sparkSession):
            frame = frame.select(*self._columns(wall + self._max_ahead_millis, plan))
            if plan is BatchPlan.RAW:
                return frame.repartition(self._partitions, *self.keys)
            frame = frame.groupBy(*self._groups(plan)).agg(*self._aggregates)
        return frame.repartition(self._partitions, *self.keys) if shuffle else frame

    def is_by_key(self, frame: DataFrame, plan: BatchPlan) -> bool:
        """Whether the physical plan ends hash-partitioned by the key (and `_dead`) in this order.

        A `groupBy` alone may reuse another partitioning. The plan asked is the one that will run, so it is made once.
        """
        partitioning = frame._jdf.queryExecution().executedPlan().outputPartitioning()
        by = ", ".join(self.keys if plan is BatchPlan.RAW else self._groups(plan))
        # Attributes print as name#id; the ids differ from plan to plan.
        found = [part.partition("#")[0] for part in str(partitioning.toString()).partition("(")[2].split(", ")]
        named = ", ".join(found[:-1])
        return (
            partitioning.getClass().getSimpleName() == "HashPartitioning"
            and partitioning.numPartitions() == self._partitions
            and named == by
        )

    def _groups(self, plan: BatchPlan) -> tuple[str, ...]:
        return (*self.keys, DEAD) if plan is BatchPlan.WITH_DEAD_LETTERS else self.keys

    def _columns(self, limit: int, plan: BatchPlan) -> list[Column]:
        """What a batch is computed from. A record that can't be used has a column of its own, or else no key."""
        fields, timestamp = self._table.spec.key.fields, self._table.stream.timestamp
        cases = _cases(fields, timestamp, limit, self._max_ahead_millis)
        good = f"NOT ({' OR '.join(condition for condition, _ in cases)})"
        if plan is BatchPlan.WITH_DEAD_LETTERS:
            dead = F.expr(f"{dead_letter(fields, timestamp, limit, self._max_ahead_millis)} AS {DEAD}")
            # Not even the sum over many equal ones may leave its range.
            values = [F.when(F.expr(good), value).alias(name) for name, value in self._values[plan].items()]
            return [*self._key, dead, *self._time, *values]
        key = [F.expr(f"CASE WHEN {good} THEN {quoted(f.name)} END AS k{n}") for n, f in enumerate(fields)]
        return [*key, *self._time, *(value.alias(name) for name, value in self._values[plan].items())]

    def _time_inputs(self) -> list[Column]:
        stream = self._table.stream
        if stream.timestamp is None:
            return []
        instant = f"CAST({quoted(stream.timestamp)} AS timestamp)"
        inputs = [F.expr(f"unix_millis({instant}) AS {TIME}")]
        if any(aggregate.needs_time for _, aggregate in self._table.aggregates):
            inputs.append(F.expr(f"unix_micros({instant}) AS t"))
            inputs += [F.expr(f"{quoted(column)} AS s{n}") for n, column in enumerate(stream.position)]
        return inputs

    def _partial_aggregates(self) -> list[Column]:
        positions = [f"s{n}" for n in range(len(self._table.stream.position))]
        partials = [
            partial
            for n, ((_, aggregate), reducer) in enumerate(
                zip(self._table.aggregates, self._table.reducers, strict=True)
            )
            for partial in _partials(aggregate, reducer.partials, f"x{n}", positions)
        ]
        columns = [F.expr(f"{sql} AS p{n}") for n, sql in enumerate(partials)]
        named = self.columns[BatchPlan.WITH_DEAD_LETTERS]
        if named.rows == ROWS:
            columns.append(F.expr(f"count(1) AS {ROWS}"))
        if named.time is not None:
            columns.append(F.expr(f"max({TIME}) AS {TIME}"))
        return columns


def dead_letter(
    fields: Sequence[Field],
    timestamp: str | None,
    limit: int,
    max_ahead_millis: int,
    unusable: Sequence[tuple[str, str]] = (),
) -> str:
    """SQL that is null for a good record, else JSON: why it can't be used, and the record.

    A good record has a key, an event time up to `limit`, in milliseconds, and none of the conditions in `unusable`,
    which says for each why.
    """
    keep_nulls = "map('ignoreNullFields', 'false')"
    whens = [
        f"WHEN {condition} THEN to_json(struct({_text(reason)} AS reason, struct(*) AS record), {keep_nulls})"
        for condition, reason in (
            *_cases(fields, timestamp, limit, max_ahead_millis),
            *unusable,
        )
    ]
    return f"CASE {' '.join(whens)} END"


def _cases(fields: Sequence[Field], timestamp: str | None, limit: int, max_ahead_millis: int) -> list[tuple[str, str]]:
    """When a record can't be used, as SQL that is never null, and why."""
    missing = " OR ".join(f"{quoted(field.name)} IS NULL" for field in fields)
    names = ", ".join(field.name for field in fields)
    cases = [(missing, f"no key: one of {names} is null")]
    if sizes := [f"octet_length({quoted(field.name)})" for field in fields if field.field_type.is_variable]:
        cases.append((f"{' + '.join(sizes)} > {LONGEST_KEY}", f"the key is longer than {LONGEST_KEY} bytes"))
    if timestamp is not None:
        cases.append((f"{quoted(timestamp)} IS NULL", f"no event time: {timestamp} is null"))
        ahead = f"event time is more than batch.max_ahead ({max_ahead_millis} ms) ahead of the clock"
        cases.append((f"unix_millis(CAST({quoted(timestamp)} AS timestamp)) > {limit}", ahead))
    return cases


@contextlib.contextmanager
def _ansi(session: SparkSession) -> Iterator[None]:
    """ANSI mode for expressions of ours: sums must fail on overflow, also for a user who has it off for theirs.

    The session lives as long as the query, so what was set before is put back.
    """
    before = session.conf.get("spark.sql.ansi.enabled")
    session.conf.set("spark.sql.ansi.enabled", "true")
    try:
        yield
    finally:
        session.conf.set("spark.sql.ansi.enabled", before or "true")


def _value_inputs(table: Table, plan: BatchPlan) -> dict[str, Column]:
    """The columns the aggregates read, as x0, x1 ... For a count in the task it is enough whether there is a value."""
    inputs = {}
    for n, (_, aggregate) in enumerate(table.aggregates):
        if (column := aggregate.column) is not None:
            value = F.expr(column) if isinstance(column, str) else column
            counted = plan is BatchPlan.RAW and aggregate.function is Function.COUNT
            inputs[f"x{n}"] = F.when(value.isNotNull(), True) if counted else value
    return inputs


def _partials(aggregate: Aggregate, fields: tuple[Field, ...], column: str, positions: list[str]) -> list[str]:
    """The SQL of what Spark aggregates before the exchange, in the order of the reducer's partials."""
    match aggregate.function:
        case Function.COUNT:
            return ["count(1)" if aggregate.column is None else f"count({column})"]
        case Function.SUM:
            return [f"CAST(sum({column}) AS {fields[0].type})"]
        case Function.MIN | Function.MAX:
            return [f"{aggregate.function.value}({column})"]
        case Function.MEAN:
            exact = fields[0].field_type.name == "decimal"
            added = column if exact else f"CAST({column} AS double)"
            return [f"CAST(sum({added}) AS {fields[0].type})", f"count({column})"]
        case Function.FIRST | Function.LAST:
            pick = "max" if aggregate.function is Function.LAST else "min"
            order = ["t", *positions, column]
            return [f"{pick}(struct({', '.join(order)})).{name}" for name in order]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
