"""Keys as bytes that sort like their values.

Engines order bytes. Ranges, prefixes and windows can be scanned only if bytes and values have the same order. A key is
the byte 0x01 (this format) and its components, one after the other:

    integers, date, timestamps   8 bytes, big-endian, sign bit flipped (days, microseconds since 1970)
    boolean                      1 byte
    decimal                      the number without its point: 8 bytes for up to 18 digits, 16 for more, big-endian,
                                 sign bit flipped. The scale is that of the type
    float, double                8 bytes: the IEEE bits, all flipped if negative, otherwise only the sign; -0.0 is 0.0,
                                 and there is one NaN, greater than every number
    string (UTF-8), binary       last component: unchanged. Before others: 0x00 becomes 0x00FF, and 0x0000 ends it, so
                                 that "a" sorts before "a\\0" and both before "aa", whatever comes next

Keys beginning with 0x00 belong to the engines.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast, get_args, get_origin

import numpy as np
import pyarrow as pa

from holdfast.errors import BadKey, TopologyError
from holdfast.stores.formats.byte_columns import (
    Bytes,
    as_type,
    bytes_of,
    from_matrix,
    join_rows,
    lengths_of,
    offsets_of,
)
from holdfast.stores.formats.key_components import Component, component_of, damaged, key_column, other_parts
from holdfast.stores.formats.types import Field, FieldType, Schema

FORMAT = b"\x01"
MAX_KEY_BYTES = 64 * 1024
LONGEST_KEY = MAX_KEY_BYTES // 2 - 64
"""The maximum of a key's text and bytes together. Encoding at most doubles them; the rest is for other columns."""

_KEY_TYPES: dict[Any, str] = {
    str: "string",
    bytes: "binary",
    bool: "boolean",
    int: "bigint",
    float: "double",
    dt.datetime: "timestamp",
    dt.date: "date",
}


def key_schema(python: Any) -> Schema:
    """The schema of a Python key type: one of str, bytes, int, float, bool, date, datetime, or a tuple of those.

    >>> print(key_schema(str))
    key string
    >>> print(key_schema(tuple[str, int]))
    key_1 string, key_2 bigint
    """
    if get_origin(python) is not tuple:
        return Schema((Field("key", _key_type(python)),))
    parts = get_args(python)
    if not parts or Ellipsis in parts:
        raise TopologyError(f"{python} is not a key type: a tuple names the type of each part, as in tuple[str, int].")
    return Schema(tuple(Field(f"key_{n}", _key_type(part)) for n, part in enumerate(parts, start=1)))


def decimal(precision: int, scale: int = 0) -> type[Decimal]:
    """The type of a key that is a decimal, with the digits of the stream's column: `key=hf.decimal(12, 2)`.

    >>> print(key_schema_of((str, decimal(12, 2))))
    key_1 string, key_2 decimal(12,2)
    """
    return cast(type[Decimal], FieldType.parse(f"decimal({precision},{scale})"))


def key_schema_of(key: Any) -> Schema:
    """The same for what a user declares as a key: a type, several types or a schema."""
    if isinstance(key, Schema):
        return key
    if isinstance(key, tuple | list):
        if not key:
            raise TopologyError("key=() names no types. Name at least one, such as key=(str, int).")
        return key_schema(tuple[tuple(key)])  # type: ignore[misc]
    return key_schema(key)


def encode_key(schema: Schema, values: Sequence[object]) -> bytes:
    """One key.

    >>> encode_key(key_schema(tuple[str, int]), ["ann", -1]).hex(" ")
    '01 61 6e 6e 00 00 7f ff ff ff ff ff ff ff'
    """
    return key_encoder(schema)(values)


@lru_cache(maxsize=256)
def key_encoder(schema: Schema) -> Callable[[Sequence[object]], bytes]:
    """`encode_key` for keys of one schema, whose components are looked up once."""
    encoders = [component.encode for component in _components(schema)]

    def encode(values: Sequence[object]) -> bytes:
        if len(values) != len(encoders):
            raise other_parts(len(values), schema)
        key = FORMAT + b"".join([encoder(value) for encoder, value in zip(encoders, values, strict=True)])
        if len(key) > MAX_KEY_BYTES:
            raise _too_long(len(key))
        return key

    return encode


def decode_key(schema: Schema, data: bytes) -> tuple[object, ...]:
    """The values of a stored key.

    >>> decode_key(key_schema(tuple[str, int]), bytes.fromhex("01616e6e00007fffffffffffffff"))
    ('ann', -1)
    """
    if data[:1] != FORMAT:
        raise damaged(f"it begins with {data[:1].hex() or 'nothing'}, and format 1 begins with 01")
    values: list[object] = []
    place = 1
    for component in _components(schema):
        value, place = component.decode(data, place)
        values.append(value)
    if place != len(data):
        raise damaged(f"{len(data) - place} bytes are left after the last component of {schema}")
    return tuple(values)


def prefix_range(
    schema: Schema, prefix_values: Sequence[object], *, partial: bool | None = None
) -> tuple[bytes, bytes | None]:
    """The start and stop of a scan over the keys that begin with these components.

    The last value may be only the beginning of a text or of bytes. That is the default for the key's last component;
    for an earlier component, pass `partial=True`.

    >>> prefix_range(key_schema(str), ["ab"])
    (b'\\x01ab', b'\\x01ac')
    >>> prefix_range(key_schema(tuple[str, int]), ["ab"])
    (b'\\x01ab\\x00\\x00', b'\\x01ab\\x00\\x01')
    >>> prefix_range(key_schema(tuple[str, int]), ["ab"], partial=True)
    (b'\\x01ab', b'\\x01ac')
    """
    components = _components(schema)
    given = len(prefix_values)
    if given > len(components):
        raise other_parts(given, schema, "prefix")
    beginning = given == len(components) if partial is None else partial
    start = FORMAT
    for n, (component, value) in enumerate(zip(components, prefix_values, strict=False), start=1):
        start += component.encode_beginning(value) if n == given and beginning else component.encode(value)
    return start, after_prefix(start)


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest bytes greater than all bytes with this prefix; None if there are none.

    >>> after_prefix(b"a\\xff"), after_prefix(b"\\xff")
    (b'b', None)
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def encode_keys(schema: Schema, columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """`encode_key` for whole columns."""
    components = _components(schema)
    if len(columns) != len(components):
        raise BadKey(f"{len(columns)} key columns were given, and the store's key has {len(components)}: {schema}.")
    typed = [key_column(part.field, column) for part, column in zip(components, columns, strict=True)]
    rows = len(typed[0])
    pieces: list[pa.Array | pa.Scalar] = []
    lead, run = FORMAT, list[Bytes]()
    for n, (component, column) in enumerate(zip(components, typed, strict=True), start=1):
        encoded = component.encode_column(column)
        if isinstance(encoded, np.ndarray):
            run.append(encoded)
        else:
            pieces += [_fixed(rows, lead, run), encoded]
            lead, run = b"\x00\x00" if n < len(components) else b"", []
    if run or lead:
        pieces.append(_fixed(rows, lead, run))
    keys = pieces[0] if len(pieces) == 1 else join_rows(*pieces)
    longest = int(lengths_of(keys).max(initial=0))
    if longest > MAX_KEY_BYTES:
        raise _too_long(longest)
    return keys


def decode_keys(schema: Schema, keys: pa.Array) -> list[pa.Array]:
    """The columns of stored keys."""
    keys = as_type(keys, pa.binary())
    if keys.null_count:
        raise BadKey(f"{keys.null_count} of {len(keys)} keys are null, but stored keys never are. Leave them out.")
    offsets = offsets_of(keys)
    at, stops = offsets[:-1], offsets[1:]
    if (at == stops).any() or (bytes_of(keys)[at] != FORMAT[0]).any():
        raise damaged("it doesn't begin with 01, the byte of format 1")
    at = at + np.int32(1)
    columns = []
    for component in _components(schema):
        column, at = component.decode_column(keys, at, stops)
        columns.append(column)
    if (at != stops).any():
        raise damaged(f"bytes are left after the last component of {schema}")
    return columns


@lru_cache(maxsize=256)
def _components(schema: Schema) -> tuple[Component, ...]:
    if not schema.fields:
        raise TopologyError("a key has no fields. Name at least one.")
    last = len(schema.fields) - 1
    return tuple(component_of(field, last=n == last) for n, field in enumerate(schema.fields))


def _fixed(rows: int, lead: bytes, run: Sequence[Bytes]) -> pa.Array | pa.Scalar:
    """Constant bytes and the fixed-width components after them, as one part of every row."""
    if not run:
        return pa.scalar(lead, pa.binary())
    matrix = np.empty((rows, len(lead) + sum(part.shape[1] for part in run)), dtype=np.uint8)
    matrix[:, : len(lead)] = np.frombuffer(lead, dtype=np.uint8)
    place = len(lead)
    for part in run:
        matrix[:, place : place + part.shape[1]] = part
        place += part.shape[1]
    return from_matrix(matrix)


def _key_type(python: Any) -> str:
    if isinstance(python, FieldType):
        return str(python)
    if python is Decimal:
        raise TopologyError(
            "Decimal alone is not a key type: how many digits it has decides how a key is stored, and in which "
            "partition. Write hf.decimal(12, 2), with the digits of the column."
        )
    name = _KEY_TYPES.get(python)
    if name is None:
        known = ", ".join([*(each.__name__ for each in _KEY_TYPES), "hf.decimal(12, 2)"])
        raise TopologyError(
            f"{getattr(python, '__name__', python)} is not a key type. Use one of {known}, or a tuple of them."
        )
    return name


def _too_long(size: int) -> BadKey:
    return BadKey(
        f"a key takes {size:,} bytes, and {MAX_KEY_BYTES:,} is the limit. Use a shorter key, such as a hash of it."
    )
