"""The Spark expressions of an aggregation: what each aggregate reads of a record, and its partial results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.sketch_expressions import sketch_of
from holdfast.pipeline.task_columns import MICROS, BatchPlan
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.aggregates import SKETCHES, Aggregate, Function
from holdfast.topology.aggregation import Aggregation
from holdfast.topology.collecting import items_of
from holdfast.topology.reducers import Reducer

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.topology.stream import Stream


def order_of(stream: Stream, operator: Aggregation) -> tuple[str, ...]:
    """The columns by which first and last values are ordered; none if there are no such aggregates."""
    if not any(aggregate.needs_time for _, aggregate in operator.aggregates):
        return ()
    return (MICROS, *(f"s{n}" for n in range(len(stream.position))))


def inputs_of(operator: Aggregation, plan: BatchPlan) -> list[tuple[str | None, Expression | None, bool]]:
    """The column that each aggregate reads: x0, x1 ..., one per distinct input, or None for a count of rows.

    With the expression of its value, and whether only its presence counts: a count in the task needs no value.
    """
    inputs: list[tuple[str | None, Expression | None, bool]] = []
    names: dict[tuple[object, bool], str] = {}
    for _, aggregate in operator.aggregates:
        column = aggregate.column
        if column is None:
            inputs.append((None, None, False))
            continue
        counted = plan is BatchPlan.RAW and aggregate.function is Function.COUNT
        name = names.setdefault((column if isinstance(column, str) else id(column), counted), f"x{len(names)}")
        inputs.append((name, column, counted))
    return inputs


def value_of(column: Expression | None, counted: bool) -> Column:
    value = F.expr(column) if isinstance(column, str) else column
    assert value is not None
    return F.when(value.isNotNull(), True) if counted else value


def stored_texts(operator: Aggregation, position: Sequence[str]) -> dict[str, Expression]:
    """The texts that the rows of the aggregates keep: values, and positions of the first and last ones."""
    texts: dict[str, Expression] = {}
    for (name, aggregate), reducer in zip(operator.aggregates, operator.reducers, strict=True):
        column = aggregate.column
        if column is not None and _keeps_text(reducer):
            texts[column if isinstance(column, str) else name] = column
        if aggregate.function in (Function.FIRST, Function.LAST):
            order = zip(position, reducer.partials[1:-1], strict=True)
            texts |= {column: quoted(column) for column, field in order if field.type == "string"}
    return texts


def _keeps_text(reducer: Reducer) -> bool:
    if reducer.function in SKETCHES:
        return reducer.function is Function.FREQUENT and reducer.input == "string"
    if reducer.function is Function.COLLECT:
        return reducer.input == "string"
    return reducer.fields[0].type == "string"


def tied_with(operator: Aggregation, function: Function) -> tuple[str, ...]:
    """The columns whose values break ties of first or last values: those of all aggregates of this function."""
    inputs = zip(operator.aggregates, inputs_of(operator, BatchPlan.GROUPED), strict=True)
    names = (name for (_, aggregate), (name, _, _) in inputs if aggregate.function is function)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def partials_of(
    aggregate: Aggregate, reducer: Reducer, column: str | None, order: tuple[str, ...], tied: tuple[str, ...]
) -> list[str]:
    """The SQL of the partial aggregates before the shuffle, in the order of the reducer's partials."""
    fields = reducer.partials
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
            return [f"{pick}(struct({', '.join([*order, *tied])})).{name}" for name in [*order, str(column)]]
        case Function.APPROX_COUNT_DISTINCT | Function.APPROX_QUANTILE | Function.FREQUENT:
            return [sketch_of(reducer, str(column))]
        case Function.COLLECT:
            typed = list(zip(order, ("bigint", *reducer.position), strict=True))
            return [items_of(typed, str(column), reducer.input, int(reducer.parameters[0]))]
