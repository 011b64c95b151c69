"""Stored values as JSON.

An aggregate's row becomes an object of its columns, without the hidden ones that only its merges need. A value of a
Python type is shown by its newest schema in the app file or, where only code could convert it, as it was written. In
both, values that JSON can't hold are written by `keytext.render_scalar`. A value that can't be read is an error that
names its key, never a guess.
"""

import base64
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from holdfast.errors import TopologyError
from holdfast.query.keytext import render_scalar
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.arrow_values import python_values
from holdfast.stores.formats.types import Schema
from holdfast.stores.schema.without_code import AsWritten
from holdfast.stores.spec import RowValues, StoreSpec


class Renderer(Protocol):
    """From a value's payload, and the schema it was written in, to its JSON."""

    def __call__(self, payload: bytes, schema: int | None = None) -> object: ...


def renderer(spec: StoreSpec) -> Renderer:
    """From a value's payload to its JSON, for one store."""
    try:
        codec = codec_of(spec)
    except TopologyError:
        return _render_bytes
    if isinstance(spec.value, RowValues) and spec.value.shown == spec.columns and _is_plain(spec.columns):
        return lambda payload, schema=None: codec.decode(payload, schema)  # 1.2 us less
    return lambda payload, schema=None: to_json(spec.value.visible(codec.decode(payload, schema)))


def _is_plain(columns: Schema) -> bool:
    """Whether JSON writes the values of these columns as they are."""
    return all(field.field_type.python in _PLAIN for field in columns.fields)


def answered(rendered: object) -> dict[str, object]:
    """A rendered value as the members of an answer. A value that isn't of the newest schema is marked.

    >>> answered(3), answered(AsWritten({"cents": 50}, schema=1))
    ({'value': 3}, {'value': {'cents': 50}, 'schema': 1, 'upcast': False})
    """
    if isinstance(rendered, AsWritten):
        return {"value": rendered.value, "schema": rendered.schema, "upcast": False}
    return {"value": rendered}


_PLAIN = frozenset((int, str, bool, type(None)))
"""Types whose values JSON writes as they are."""


def to_json(value: object) -> object:
    """A decoded value as what `msgspec.json` writes without loss.

    >>> to_json({"at": [1.5, float("nan")], 7: b"hello"})
    {'at': [1.5, 'NaN'], '7': 'aGVsbG8='}
    """
    if type(value) in _PLAIN:
        return value  # most values of most rows: 0.05 us instead of 0.6
    match value:
        case AsWritten():
            return AsWritten(to_json(value.value), value.schema)
        case Mapping():
            return {_member(name): to_json(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json(item) for item in value]
        case msgspec.msgpack.Ext():
            return {"ext": value.code, "data": base64.b64encode(value.data).decode()}
        case _:
            return render_scalar(value)


def _member(name: object) -> str:
    rendered = to_json(name)
    return rendered if isinstance(rendered, str) else msgspec.json.encode(rendered).decode()


def _render_bytes(payload: bytes, schema: int | None = None) -> object:
    """A codec that this process doesn't have: the bytes themselves."""
    return base64.b64encode(payload).decode()


def rows_of(table: pa.Table) -> list[list[Any]]:
    """The rows of a table as they are in JSON.

    DuckDB's sums of whole numbers are decimals of 38 digits without a fraction: those of 64 bits are numbers here.

    >>> rows_of(pa.table({"sum": pa.array([4, 2**63], pa.decimal128(38, 0))}))
    [[4], ['9223372036854775808']]
    """
    columns = [
        [to_json(_narrowed(value) if _is_whole(column.type) else value) for value in python_values(column)]
        for column in table.columns
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _is_whole(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(type_)) and type_.scale == 0


def _narrowed(value: Any) -> Any:
    """A whole number that fits 64 bits as one; others, and a missing value, as they are."""
    return int(value) if value is not None and -(2**63) <= value < 2**63 else value
