"""The types of a stream's columns, under Spark's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.types import Field, Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.aggregates import Aggregate


def input_type(frame: DataFrame, aggregate: Aggregate) -> str | None:
    if aggregate.column is None:
        return None
    column = aggregate.column
    chosen = frame.selectExpr(column) if isinstance(column, str) else frame.select(column)
    return chosen.schema.fields[0].dataType.simpleString()


def key_of(frame: DataFrame, columns: Iterable[str]) -> Schema:
    """The key with these columns. Raises for a type that can't be in a key."""
    key = Schema(tuple(Field(column, type_of(frame, column)) for column in columns))
    encode_keys(key, [pa.array([], field.field_type.arrow) for field in key.fields])
    return key


def type_of(frame: DataFrame, column: str) -> str:
    if column in frame.columns:
        return frame.schema[column].dataType.simpleString()
    hint = did_you_mean(column, frame.columns)
    raise TopologyError(f"The stream has no column {column!r}. {hint}It has {', '.join(frame.columns)}.")
