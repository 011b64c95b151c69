"""Fast conversion of Arrow columns to Python values, for a processor's events.

Row by row, pyarrow takes microseconds per value. Column by column, numpy takes tens of nanoseconds for numbers and
times, which most events consist of.
"""

from collections.abc import Callable, Sequence
from datetime import UTC
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import USER_ERRORS, BadValue, shown
from holdfast.stores.formats.arrow_values import python_values
from holdfast.stores.formats.types import Schema
from holdfast.topology.events import EventShape

_UTC_MICROS = pa.timestamp("us", "UTC")
_YEAR_1, _YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The range of Python's datetime, in microseconds since 1970."""


_OUTSIDE = (
    "A {} is outside the years 1 to 9999, the range of Python's datetime. Filter out such records with where(), or "
    "cast the column to a bigint with with_column()."
)


def values_of(column: pa.Array) -> list[Any]:
    """A column's values; timestamps are aware and in UTC, or naive where the column has no time zone; maps are dicts.

    >>> values_of(pa.array([1, None])), values_of(pa.array([0], pa.timestamp("us", "Europe/Bern")))
    ([1, None], [datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)])
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _moments(column, aware=kind.tz is not None)
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return list(column.to_numpy().tolist())
    try:
        if pa.types.is_nested(kind):
            return list(column.to_pylist(maps_as_pydicts="strict"))
        return list(column.to_pylist())  # with `maps_as_pydicts` it takes ten times as long
    except (OverflowError, ValueError, KeyError) as error:
        raise BadValue(_why_not(kind, error)) from error


def _why_not(kind: pa.DataType, error: OverflowError | ValueError | KeyError) -> str:
    """Why a column of this type has a value that Python does not."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f"A text isn't UTF-8: {shown(error.object)} ({error.reason}, at byte {error.start}). Filter out such "
            "records with where(), or cast the column to binary with with_column()."
        )
    if isinstance(error, KeyError):
        return (
            f"A map has a key more than once, and a dict can't: {error.args[0]} Filter out such records with where(), "
            "or keep the map's entries with with_column('name', 'map_entries(...)')."
        )
    if _has_moments(kind):
        return _OUTSIDE.format("date or time")
    return f"A value of type {kind} is none that Python has: {error}. Filter out such records with where()."


def _has_moments(kind: pa.DataType) -> bool:
    """
    >>> _has_moments(pa.list_(pa.struct([("at", pa.date32())]))), _has_moments(pa.map_(pa.string(), pa.int32()))
    (True, False)
    """
    if pa.types.is_nested(kind):
        return any(_has_moments(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def events_of(
    shape: EventShape, columns: Sequence[pa.Array], rows: int, failed: dict[int, str] | None = None
) -> list[object]:
    """One event per row. A row that can't become one raises; with `failed`, its reason is there and its event None."""
    make = shape.maker()
    if not columns:
        return [make() for _ in range(rows)]
    lists = [_column_values(shape, n, column, failed) for n, column in enumerate(columns)]
    try:
        return list(map(make, *lists))
    except USER_ERRORS:  # a user's class may have a constructor of its own
        return _each(partial(_event, shape), list(zip(*lists, strict=True)), failed)


def _column_values(shape: EventShape, n: int, column: pa.Array, failed: dict[int, str] | None) -> list[Any]:
    values = _checked_values(column, failed, texts=shape.texts)
    wanted = shape.converted[n] if shape.converted else None
    if wanted is None:
        return values
    # The type allows this null: records with other nulls are dead letters.
    try:
        return [None if value is None else msgspec.convert(value, wanted) for value in values]
    except msgspec.ValidationError:
        return _each(partial(_converted, wanted=wanted, column=shape.columns[n]), values, failed)


def _checked_values(column: pa.Array, failed: dict[int, str] | None, *, texts: bool) -> list[Any]:
    try:
        return values_of(column)
    except BadValue:
        if texts:
            return python_values(column)
        return _each(lambda place: values_of(column.slice(place, 1))[0], range(len(column)), failed)


def _each(convert: Callable[[Any], object], items: Sequence[Any], failed: dict[int, str] | None) -> list[Any]:
    """Converts items one by one, to find those that can't be. Without `failed` the first of them raises."""
    found: list[Any] = []
    for place, item in enumerate(items):
        try:
            found.append(convert(item))
        except BadValue as error:
            if failed is None:
                raise
            failed.setdefault(place, str(error))
            found.append(None)
    return found


def _event(shape: EventShape, values: Sequence[Any]) -> object:
    try:
        return shape.maker()(*values)
    except USER_ERRORS as error:
        record = dict(zip(shape.columns, values, strict=True))
        raise BadValue(f"The record {shown(record)} can't become an event: {type(error).__name__}: {error}.") from error


def keys_of(columns: Sequence[pa.Array], failed: dict[int, str] | None = None, *, texts: bool = False) -> list[Any]:
    """One key per row: the value itself, or a tuple where there are several columns.

    A row without one in Python raises; with `failed`, its reason is there. With `texts` it is a text.
    """
    lists = [_checked_values(column, failed, texts=texts) for column in columns]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _moments(column: pa.Array, *, aware: bool) -> list[Any]:
    micros = column.cast(_UTC_MICROS if aware else pa.timestamp("us"))
    ticks = micros.view(pa.int64())
    ends = pc.min_max(ticks)
    if ends["min"].as_py() is not None and (ends["min"].as_py() < _YEAR_1 or ends["max"].as_py() > _YEAR_9999):
        raise BadValue(_OUTSIDE.format("timestamp"))
    naive = micros.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype("datetime64[us]", copy=False).tolist()
    if not aware:
        return list(naive)
    if column.null_count:
        return [None if moment is None else moment.replace(tzinfo=UTC) for moment in naive]
    return [moment.replace(tzinfo=UTC) for moment in naive]


def _converted(value: object, wanted: Any, column: str) -> object:
    if value is None:
        return None
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise BadValue(f"The column {column!r} has {shown(value)}, which can't become {wanted}: {error}.") from error


def output_table(schema: Schema, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Forwarded rows as columns.

    >>> output_table(Schema.of(player="string", n="int"), [("ann", 3)]).to_pylist()
    [{'player': 'ann', 'n': 3}]
    """
    arrow = schema.arrow
    columns = []
    for place, (column, values) in enumerate(zip(arrow, zip(*rows, strict=True), strict=True)):
        try:
            columns.append(pa.array(values, column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _misfit(column, place, rows, error) from error
    return pa.table(columns, schema=arrow)


def _misfit(column: pa.Field, place: int, rows: Sequence[tuple[object, ...]], error: Exception) -> BadValue:
    """The error with the row, which the conversion of a whole column does not know."""
    for row in rows:
        try:
            pa.array([row[place]], column.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return BadValue(
                f"The forwarded row {shown(row)} has {shown(row[place])} as {column.name}, which must be "
                f"{column.type}. Forward a value of that type, or change it in stream.process(..., output=...)."
            )
    return BadValue(f"The forwarded column {column.name} can't be {column.type}: {error}.")
