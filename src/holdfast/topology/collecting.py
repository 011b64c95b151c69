"""The latest values of a key, as JSON: what a batch brings, and how it is merged with what the row keeps.

Both are a list of items such as `{"0": 1767225600000000, "1": 17, "v": "a"}`: the order of the record, which is its
event time and its source position, and its value. Spark leaves out parts of the order that are null. Dates are days
since 1970, whose order is that of the dates in all years.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.stores.formats.rows import DamagedRow
from holdfast.stores.formats.scalars import from_whole_number
from holdfast.stores.formats.types import Field

VALUE = "v"

Item = dict[str, Any]


def items_of(order: Sequence[tuple[str, str]], column: str, kind: str, limit: int) -> str:
    """The SQL of a batch's latest values, from the columns of the order and that of the values with their types.

    >>> items_of([("t", "bigint")], "x", "int", 5)
    "to_json(slice(sort_array(collect_list(IF(x IS NULL, NULL, named_struct('0', t, 'v', x))), false), 1, 5))"
    """
    parts = [f"'{n}', {_number_of(*each)}" for n, each in enumerate(order)]
    item = f"named_struct({', '.join(parts)}, '{VALUE}', {_number_of(column, kind)})"
    found = f"collect_list(IF({column} IS NULL, NULL, {item}))"
    return f"to_json(slice(sort_array({found}, false), 1, {limit}))"


def _number_of(column: str, kind: str) -> str:
    return f"unix_date({column})" if kind == "date" else column


def items_of_records(order: Sequence[pa.Array], values: pa.Array) -> list[str]:
    """The same for single records without Spark, one text each.

    >>> items_of_records([pa.array([7, 8])], pa.array(["a", None]))
    ['[{"0":7,"v":"a"}]', '[]']
    """
    texts = []
    numbers = [column.cast(pa.int32()) if pa.types.is_date32(column.type) else column for column in (*order, values)]
    for *place, value in zip(*(column.to_pylist() for column in numbers), strict=True):
        known = {str(n): part for n, part in enumerate(place) if part is not None}
        shown = str(value).replace("nan", "NaN") if value != value else value
        texts.append(_text([] if value is None else [{**known, VALUE: shown}]))
    return texts


def collected(old: pa.Array, new: pa.Array, kind: str, limit: int, width: int) -> list[pa.Array]:
    """The values of the latest items, earliest first, and the items. `width` is the length of an order.

    >>> old, new = pa.array(['[{"0":5,"v":"b"}]']), pa.array(['[{"0":7,"v":"c"},{"0":1,"v":"a"}]'])
    >>> results, _ = collected(old, new, "string", 2, 1)
    >>> results.to_pylist()
    ['["b","c"]']
    """
    dates = Field(VALUE, kind) if kind == "date" else None
    results: list[str] = []
    kept: list[str] = []
    for row, pair in enumerate(zip(old.to_pylist(), new.to_pylist(), strict=True)):
        items = [item for text in pair if text is not None for item in _parsed(row, text)]
        items.sort(key=lambda item: [*(_place(item.get(str(n))) for n in range(width)), _place(item[VALUE])])
        items = items[-limit:]
        values = [item[VALUE] for item in items]
        results.append(_text(values if dates is None else [from_whole_number(dates, days) for days in values]))
        kept.append(_text(items))
    return [pa.array(results, pa.string()), pa.array(kept, pa.string())]


def _place(value: Any) -> tuple[int, Any]:
    """Null is smallest, and NaN, a text in JSON, is larger than every number."""
    return (0, 0) if value is None else (2, value) if isinstance(value, str) else (1, value)


def _parsed(row: int, text: str) -> list[Item]:
    try:
        return msgspec.json.decode(text, type=list[Item])
    except msgspec.MsgspecError as error:
        raise DamagedRow(row, f"Its collected values can't be read: {error}.") from error


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
