"""What a stream's DataFrame says of its columns, as Spark's own names of types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import TopologyError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.aggregates import Aggregate


def input_type(frame: DataFrame, aggregate: Aggregate) -> str | None:
    if aggregate.column is None:
        return None
    column = aggregate.column
    chosen = frame.selectExpr(column) if isinstance(column, str) else frame.select(column)
    return chosen.schema.fields[0].dataType.simpleString()


def type_of(frame: DataFrame, column: str) -> str:
    if column in frame.columns:
        return frame.schema[column].dataType.simpleString()
    hint = did_you_mean(column, frame.columns)
    raise TopologyError(f"The stream has no column {column!r}. {hint}It has {', '.join(frame.columns)}.")
