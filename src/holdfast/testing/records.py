"""Records of a test: what stands in for a streaming DataFrame, and Python rows as columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import BadValue, TopologyError, did_you_mean, shown
from holdfast.topology.events import fields_of
from holdfast.topology.plain_frames import PlainFrame, arrow_schema
from holdfast.topology.processor import parse_output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def records(columns: str | StructType) -> PlainFrame:
    """Stands in for a streaming DataFrame: `app.stream(records("player string, at timestamp"), key="player")`.

    The text has the columns' types as Spark names them. For arrays, maps and structs give a `StructType`.

    >>> records("player string, points bigint").columns
    ['player', 'points']
    """
    if isinstance(columns, str):
        return PlainFrame.of_arrow(parse_output(columns, "columns").arrow)
    return PlainFrame(columns)


def as_table(frame: DataFrame | PlainFrame, rows: Iterable[object], source: str) -> pa.Table:
    """Python rows as columns. A column that a row doesn't have is null."""
    schema = arrow_schema(frame)
    given = [_checked(row, schema, source) for row in rows]
    columns = [_column(field, [row.get(field.name) for row in given], source) for field in schema]
    return pa.table(columns, schema=schema)


def several(records: Iterable[object] | object, source: str) -> Iterable[object]:
    """The records that a test gives: several, or a single one by itself.

    >>> several({"player": "ann"}, "games")
    [{'player': 'ann'}]
    """
    if fields_of(records) is not None:
        return [records]
    if isinstance(records, str | bytes) or not isinstance(records, Iterable):
        raise _not_a_record(records, source)
    return records


def _not_a_record(value: object, source: str) -> TopologyError:
    return TopologyError(
        f"pipe({source!r}): {shown(value)} is not a record. Pass mappings, dataclasses or Structs with the columns of "
        f"the source: driver.pipe({source!r}, [{{...}}, {{...}}])."
    )


def _checked(row: object, schema: pa.Schema, source: str) -> Mapping[str, Any]:
    found = fields_of(row)
    if found is None:
        raise _not_a_record(row, source)
    for name in found:
        if name not in schema.names:
            raise TopologyError(
                f"pipe({source!r}): the record {shown(found)} has {name!r}, and the source has no such column. "
                f"{did_you_mean(name, schema.names)}It has {', '.join(schema.names)}."
            )
    return found


def _column(field: pa.Field, values: list[Any], source: str) -> pa.Array:
    try:
        for value in values:
            _check_whole(value, field.type)
        if pa.types.is_timestamp(field.type):
            values = [_moment(value) for value in values]
        elif pa.types.is_decimal(field.type):
            values = [_decimal(value) for value in values]
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadValue(
            f"pipe({source!r}): a value of the column {field.name!r} can't be {field.type}: {error}. Values are "
            f"{shown(values)}."
        ) from error


def _check_whole(value: Any, kind: pa.DataType) -> None:
    """Raises for a fraction where a whole number is needed: Arrow would cut it off.

    >>> _check_whole({"n": [2.0, None]}, pa.struct({"n": pa.list_(pa.int32())}))
    >>> _check_whole([1.9], pa.list_(pa.int32()))
    Traceback (most recent call last):
        ...
    ValueError: 1.9 is not a whole number
    """
    if pa.types.is_integer(kind):
        if isinstance(value, float | Decimal) and value // 1 != value:
            raise ValueError(f"{value} is not a whole number")
    elif pa.types.is_list(kind) and isinstance(value, list | tuple):
        for each in value:
            _check_whole(each, kind.value_type)
    elif pa.types.is_map(kind) and isinstance(value, Mapping | list | tuple):
        for key, each in value.items() if isinstance(value, Mapping) else value:
            _check_whole(key, kind.key_type)
            _check_whole(each, kind.item_type)
    elif pa.types.is_struct(kind) and isinstance(value, Mapping):
        for field in kind.fields:
            _check_whole(value.get(field.name), field.type)


def _decimal(value: Any) -> Any:
    """An exact number, also given as text.

    >>> _decimal("12.50"), _decimal(None)
    (Decimal('12.50'), None)
    >>> _decimal(0.1)
    Traceback (most recent call last):
        ...
    TypeError: 0.1 is a float, which is not exact. Write Decimal("0.1") or "0.1"
    """
    if isinstance(value, float):
        raise TypeError(f'{value} is a float, which is not exact. Write Decimal("{value}") or "{value}"')
    try:
        return Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a decimal number") from None


def _moment(value: Any) -> Any:
    """A time, also given as text or in milliseconds since 1970. Without a time zone it is UTC."""
    if isinstance(value, str):
        return dt.datetime.fromisoformat(value)
    if isinstance(value, int | float):
        return round(value * 1000)  # Arrow has times that datetime has not
    return value
