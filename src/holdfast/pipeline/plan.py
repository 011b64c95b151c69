"""A batch as DataFrame work: pre-aggregation in the JVM, an exchange by key, one Python task a partition.

The records that can't be used ride along: a record without a key, without an event time or too far ahead has itself as
JSON in the column `_dead`, which is null for all others and is grouped by like a key. So one job reads the source
once and yields both. It also leaves the exchange as it should be: Spark's hash passes over nulls, so
`hash(key, null) = hash(key)`, and every live row is where `repartition(n, *key)` would have put it. `_own` lets the
task check just that, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.stores.keys import MAX_KEY_BYTES
from holdfast.stores.types import Field
from holdfast.topology.aggregates import Aggregate, Function
from holdfast.topology.reducers import Reducer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.stores.types import Schema
    from holdfast.topology.stream import Stream, Table
    from holdfast.words import Millis

LONGEST_KEY = MAX_KEY_BYTES // 2 - 64
"""Text and bytes of a key together. Encoding at most doubles them, and the other components have room in the rest."""

OWN, DEAD, ROWS, TIME = "_own", "_dead", "_rows", "_time"


@dataclass(frozen=True)
class BatchTime:
    """The clock a batch runs by: chosen once in the driver, the same for every task."""

    wall: Millis
    max_ahead_millis: int


def pre_aggregate(
    batch: DataFrame, table: Table, partitions: int, time: BatchTime, *, shuffle: bool = False
) -> DataFrame:
    """One row a key of the batch: `_own`, `_dead`, `_rows`, `_time`, the key's columns, the partial aggregates.

    The aggregation's own exchange is the one by key, unless the plan turns out otherwise: then `shuffle` adds one.
    """
    stream = table.stream
    frame = batch
    for step in stream.steps:
        frame = step(frame)
    # From here on the expressions are ours: sums must fail on overflow, also for a user who has ANSI mode off.
    frame.sparkSession.conf.set("spark.sql.ansi.enabled", "true")
    keys = [field.name for field in table.spec.key.fields]
    dead = _dead(stream, table.spec.key, frame.columns, time)
    named = [F.col(f"`{key}`").alias(f"k{n}") for n, key in enumerate(keys)]
    inputs = _inputs(table, stream)
    event_time = F.unix_millis(_instant(stream)) if stream.timestamp else F.lit(None).cast("bigint")
    prepared = frame.select(*named, dead.alias(DEAD), event_time.alias(TIME), *inputs)
    groups = [f"k{n}" for n in range(len(keys))]
    partials = [
        expression.alias(f"p{n}")
        for n, expression in enumerate(_all_partials(table.aggregates, table.reducers, len(stream.position)))
    ]
    grouped = prepared.groupBy(*groups, DEAD).agg(F.count(F.lit(1)).alias(ROWS), F.max(TIME).alias(TIME), *partials)
    if shuffle:
        grouped = grouped.repartition(partitions, *groups)
    own = F.expr(f"pmod(hash({', '.join(groups)}), {partitions})")
    return grouped.select(own.alias(OWN), DEAD, ROWS, TIME, *groups, *[f"p{n}" for n in range(len(partials))])


def is_by_key(frame: DataFrame, table: Table, partitions: int) -> bool:
    """Whether the physical plan ends hash-partitioned by the key (and `_dead`) in this order, into `partitions`.

    A `groupBy` alone may reuse another partitioning. The plan asked is the one that will run, so asking costs nothing.
    """
    columns = [*[f"k{n}" for n in range(len(table.spec.key.fields))], DEAD]
    plan = frame._jdf.queryExecution().executedPlan()
    partitioning = plan.outputPartitioning()
    if partitioning.getClass().getSimpleName() != "HashPartitioning" or partitioning.numPartitions() != partitions:
        return False
    expressions = partitioning.expressions()
    names = []
    for n in range(expressions.size()):
        expression = expressions.apply(n)
        names.append(expression.name() if hasattr(expression, "name") else "")
    return names == columns


def _dead(stream: Stream, key: Schema, columns: list[str], time: BatchTime) -> Column:
    """Null for a good record, else JSON: why it can't be used, and the record."""
    keys = key.names
    key_missing = reduce(or_, [F.col(f"`{name}`").isNull() for name in keys])
    record = F.struct(*[F.col(f"`{column}`") for column in columns])
    reason = F.when(key_missing, F.lit(f"no key: one of {', '.join(keys)} is null"))
    if long := [F.octet_length(F.col(f"`{f.name}`")) for f in key.fields if f.field_type.is_variable]:
        reason = reason.when(
            reduce(add, long) > F.lit(LONGEST_KEY), F.lit(f"the key is longer than {LONGEST_KEY} bytes")
        )
    if stream.timestamp is not None:
        moment = _instant(stream)
        limit = time.wall + time.max_ahead_millis
        reason = reason.when(moment.isNull(), F.lit(f"no event time: {stream.timestamp} is null")).when(
            F.unix_millis(moment) > F.lit(limit),
            F.lit(f"event time is more than {time.max_ahead_millis} ms ahead of the clock"),
        )
    return F.when(reason.isNotNull(), F.to_json(F.struct(reason.alias("reason"), record.alias("record"))))


def _instant(stream: Stream) -> Column:
    return F.col(f"`{stream.timestamp}`").cast("timestamp")


def _inputs(table: Table, stream: Stream) -> list[Column]:
    """The columns the aggregates read: x0, x1 ... for their inputs, t for the exact time, s0 ... for the position."""
    inputs = [
        (F.expr(column) if isinstance(column, str) else column).alias(f"x{n}")
        for n, (_, aggregate) in enumerate(table.aggregates)
        if (column := aggregate.column) is not None
    ]
    if any(aggregate.needs_time for _, aggregate in table.aggregates):
        inputs.append(F.unix_micros(_instant(stream)).alias("t"))
        inputs += [F.col(f"`{column}`").alias(f"s{n}") for n, column in enumerate(stream.position)]
    return inputs


def _all_partials(
    aggregates: tuple[tuple[str, Aggregate], ...], reducers: tuple[Reducer, ...], positions: int
) -> list[Column]:
    return [
        partial
        for n, ((_, aggregate), reducer) in enumerate(zip(aggregates, reducers, strict=True))
        for partial in _partials(aggregate, reducer.partials, f"x{n}", positions)
    ]


def _partials(aggregate: Aggregate, fields: tuple[Field, ...], column: str, positions: int) -> list[Column]:
    match aggregate.function:
        case Function.COUNT:
            return [F.count(F.lit(1) if aggregate.column is None else F.col(column))]
        case Function.SUM:
            return [F.sum(column).cast(fields[0].type)]
        case Function.MIN:
            return [F.min(column)]
        case Function.MAX:
            return [F.max(column)]
        case Function.MEAN:
            exact = fields[0].field_type.name == "decimal"
            return [F.sum(column if exact else F.col(column).cast("double")).cast(fields[0].type), F.count(column)]
        case Function.FIRST | Function.LAST:
            order = F.struct("t", *[f"s{n}" for n in range(positions)], column)
            picked = F.max(order) if aggregate.function is Function.LAST else F.min(order)
            return [picked.getField(name) for name in ("t", *[f"s{n}" for n in range(positions)], column)]
