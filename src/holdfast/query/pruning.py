"""Conditions of a SQL statement as ranges of stored keys, and as a mask of rows.

A key of several columns is encoded one column after the other, so conditions help as far as they go along the key:
equal values of the first columns, then a range of the next one. The ranges may have more rows than the conditions let
through, never fewer; the mask is exact.
"""

from collections.abc import Sequence
from itertools import product
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadKey
from holdfast.query.tables import StoreTable
from holdfast.sql.messages import Condition
from holdfast.stores.formats.keys import encode_key, prefix_range
from holdfast.stores.formats.types import Field
from holdfast.stores.layouts.blocks import ALL_KEYS, ALWAYS, KeyRange, TimeRange
from holdfast.stores.spec import SESSION

_MOST_RANGES: Final = 10_000
"""More equal keys than this are read as a whole range."""
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "timestamp")
_PRUNED: Final = (*_NUMBERS, "boolean", "string", "binary")
_MASKS = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}

Value = str | int | bool | bytes


def indexed(table: StoreTable) -> list[str]:
    """The columns of a table on which conditions save reads."""
    keys = [name for name, field in _key_fields(table) if field.type in _PRUNED]
    return [*keys, *table.time_names]


def key_ranges(table: StoreTable, conditions: Sequence[Condition]) -> list[KeyRange]:
    """The ranges of keys that may meet all conditions, in order."""
    equal: list[list[Value]] = []
    low: Value | None = None
    high: Value | None = None
    for name, _ in _key_fields(table):
        of_column = [each for each in conditions if each.column == name]
        values = _equal_values(of_column)
        if values is not None and len(values) * _count(equal) <= _MOST_RANGES:
            equal.append(values)
            continue
        lows = [each.values[0] for each in of_column if each.op in (">", ">=", "=")]
        highs = [each.values[0] for each in of_column if each.op in ("<", "<=", "=")]
        if values:
            lows, highs = [*lows, min(values)], [*highs, max(values)]
        low, high = max(lows, default=None), min(highs, default=None)
        break
    try:
        return [found for prefix in product(*equal) if (found := _range(table, prefix, low, high)) is not None]
    except (BadKey, ValueError, OverflowError):
        return [ALL_KEYS]  # a constant that can't be a key: the mask finds that no row has it


def times_of(table: StoreTable, conditions: Sequence[Condition]) -> TimeRange:
    """The starts of windows, or the ends of sessions, that may meet all conditions, in milliseconds."""
    if not table.is_windowed:
        return ALWAYS
    start, end = table.time_names
    column = end if table.spec.kind == SESSION else start
    lows = [min(_micros(each)) for each in conditions if each.column == column and each.op in (">", ">=", "=", "in")]
    highs = [max(_micros(each)) for each in conditions if each.column == column and each.op in ("<", "<=", "=", "in")]
    first = max(lows) // 1_000 if lows else None
    return TimeRange(first, min(highs) // 1_000 if highs else None)


def masked(batch: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """The rows that meet all conditions."""
    for each in conditions:
        column = batch[each.column]
        values = pa.array(each.values, column.type)
        mask = pc.is_in(column, value_set=values) if each.op == "in" else _MASKS[each.op](column, values[0])
        batch = batch.filter(mask)
    return batch


def _range(table: StoreTable, prefix: Sequence[Value], low: Value | None, high: Value | None) -> KeyRange | None:
    """The keys that begin with these values and are between two of the next column, both included.

    If the next column is a text and the last of the key, texts that begin with the upper one are included too.
    """
    schema = table.own_schema
    given = [_stored(table, n, value) for n, value in enumerate(prefix)]
    if len(given) == len(schema.fields):
        key = encode_key(schema, given)
        return key, key + b"\x00"
    start, stop = prefix_range(schema, given, partial=False)
    if low is not None:
        start = prefix_range(schema, [*given, _stored(table, len(given), low)], partial=False)[0]
    if high is not None:
        stop = prefix_range(schema, [*given, _stored(table, len(given), high)], partial=False)[1]
    return None if stop is not None and start >= stop else (start, stop)


def _key_fields(table: StoreTable) -> list[tuple[str, Field]]:
    return list(zip(table.key_names, table.spec.key.fields, strict=True))


def _stored(table: StoreTable, place: int, value: Value) -> object:
    """A constant as a value of the key: timestamps are datetimes there."""
    if table.spec.key.fields[place].type != "timestamp":
        return value
    return pa.scalar(value, pa.timestamp("us", "UTC")).as_py()


def _equal_values(conditions: Sequence[Condition]) -> list[Value] | None:
    """The only values that a column can have; None if there are other conditions, or none."""
    found: set[Value] | None = None
    for each in conditions:
        if each.op in ("=", "in"):
            found = set(each.values) if found is None else found & set(each.values)
    return None if found is None else sorted(found)


def _count(equal: Sequence[Sequence[Value]]) -> int:
    count = 1
    for values in equal:
        count *= len(values)
    return count


def _micros(condition: Condition) -> list[int]:
    return [value for value in condition.values if isinstance(value, int)]
