"""The type under which events are kept: sliding windows of a user's function are computed again from their records.

An event of a class of the user's is kept as it is. Any other has the columns of the stream as attributes, and is kept
as an object of a class with the same fields, each with the Python type of its column, so that it is read as it was
written: a decimal as a `Decimal`, a struct as a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pyarrow as pa

from holdfast.stores.formats.types import FieldType
from holdfast.topology.plain_frames import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kept_type(frame: DataFrame, columns: Iterable[str], own: type | None) -> Any:
    """The type of events with these columns. `own` is the user's class, if the function names one."""
    if own is not None:
        return own
    schema = arrow_schema(frame)
    fields = [(column, python_type(schema.field(column).type) | None, None) for column in columns]
    made = msgspec.defstruct("Event", fields, frozen=True)
    made.__qualname__ = f"{kept_type.__name__}.<locals>.Event"
    return made


def python_type(kind: pa.DataType) -> Any:
    """The type of a column's values in Python.

    >>> python_type(pa.list_(pa.decimal128(10, 2)))
    list[decimal.Decimal | None]
    """
    if pa.types.is_map(kind):
        return dict[python_type(kind.key_type), python_type(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list[python_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = {field.name: python_type(field.type) | None for field in kind}
        made = TypedDict("Fields", fields)  # type: ignore[misc]
        made.__qualname__ = f"{python_type.__name__}.<locals>.Fields"
        return made
    return FieldType.of_arrow(kind).python
