"""Cells: the envelope of every stored value.

A cell has a format number, a timestamp and an expiry. A store that starts to use one of them changes no stored byte.
Formats 1 and 2 are

    0x01 |                              timestamp, 8 bytes big-endian | expires, 8 bytes big-endian | payload
    0x02 | schema, 2 bytes big-endian | timestamp, 8 bytes big-endian | expires, 8 bytes big-endian | payload

Both times are in milliseconds since 1970; no timestamp is the smallest integer, no expiry is 0. The schema is the
number of the schema the payload was written in. Format 1 has schema 1 and format 2 any later one, so every cell has one
encoding, and a store whose schema never changed needs no bytes for it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import RESTORE_AGAIN, DamagedObject, TopologyError
from holdfast.stores.formats.byte_columns import (
    as_type,
    bytes_of,
    cut,
    from_matrix,
    join_rows,
    numbers_at,
    offsets_of,
    retyped,
    spread,
    valid_of,
    with_nulls,
)
from holdfast.stores.formats.key_components import fixed_numbers

FORMAT = 1
NUMBERED_FORMAT = 2
FIRST_SCHEMA = 1
LAST_SCHEMA = 2**16 - 1
NEVER = 0
NO_TIMESTAMP = -(2**63)
HEADER_BYTES = 17
NUMBERED_HEADER_BYTES = 19

_HEADER = struct.Struct(">Bqq")
_NUMBERED_HEADER = struct.Struct(">BHqq")
_COLUMNS = [("timestamp", ">i8"), ("expires", ">i8")]
_HEADERS = np.dtype([("format", "u1"), *_COLUMNS])
_NUMBERED_HEADERS = np.dtype([("format", "u1"), ("schema", ">u2"), *_COLUMNS])


@dataclass(frozen=True, slots=True)
class Cell:
    """One stored value."""

    payload: bytes
    timestamp: int = NO_TIMESTAMP
    expires: int = NEVER
    schema: int = FIRST_SCHEMA


class Cells(NamedTuple):
    """The parts of a column of cells; all four are null for a null cell."""

    payloads: pa.BinaryArray
    timestamps: pa.Int64Array
    expires: pa.Int64Array
    schemas: pa.UInt16Array


def pack(cell: Cell) -> bytes:
    """A cell as bytes.

    >>> pack(Cell(b"abc", timestamp=7)).hex()
    '0100000000000000070000000000000000616263'
    """
    if cell.schema == FIRST_SCHEMA:
        return _HEADER.pack(FORMAT, cell.timestamp, cell.expires) + cell.payload
    _check_schema(cell.schema)
    return _NUMBERED_HEADER.pack(NUMBERED_FORMAT, cell.schema, cell.timestamp, cell.expires) + cell.payload


def unpack(data: bytes) -> Cell:
    if len(data) >= HEADER_BYTES and data[0] == FORMAT:
        _, timestamp, expires = _HEADER.unpack_from(data)
        return Cell(data[HEADER_BYTES:], timestamp, expires)
    if len(data) < NUMBERED_HEADER_BYTES or data[0] != NUMBERED_FORMAT:
        raise _damaged(data)
    _, schema, timestamp, expires = _NUMBERED_HEADER.unpack_from(data)
    if schema <= FIRST_SCHEMA:
        raise _damaged(data)
    return Cell(data[NUMBERED_HEADER_BYTES:], timestamp, expires, schema)


def pack_many(
    payloads: pa.BinaryArray,
    timestamps: pa.Int64Array | None = None,
    expires: pa.Int64Array | None = None,
    *,
    schema: int = FIRST_SCHEMA,
) -> pa.BinaryArray:
    """A column of cells of one schema. A null payload gives a null cell; a null timestamp or expiry means none."""
    payloads = as_type(payloads, pa.binary())
    rows = len(payloads)
    if schema == FIRST_SCHEMA:
        headers = np.empty(rows, dtype=_HEADERS)
        headers["format"] = FORMAT
    else:
        _check_schema(schema)
        headers = np.empty(rows, dtype=_NUMBERED_HEADERS)
        headers["format"], headers["schema"] = NUMBERED_FORMAT, schema
    width = headers.dtype.itemsize
    headers["timestamp"] = _numbers(timestamps, NO_TIMESTAMP)
    headers["expires"] = _numbers(expires, NEVER)
    return join_rows(from_matrix(headers.view(np.uint8).reshape(rows, width)), payloads)


def unpack_many(cells: pa.BinaryArray) -> Cells:
    """The parts of a column of cells of any schemas."""
    cells = as_type(cells, pa.binary())
    offsets = offsets_of(cells)
    there = valid_of(cells)
    starts, stops = offsets[:-1], offsets[1:]
    if there is not None:
        starts, stops = starts[there], stops[there]
    schemas = _checked_schemas(cells, starts, stops)
    if schemas is None:
        begins = starts + np.int32(HEADER_BYTES)
        schemas = np.full(len(starts), FIRST_SCHEMA, dtype=np.uint16)
    else:
        header = np.where(schemas == FIRST_SCHEMA, HEADER_BYTES, NUMBERED_HEADER_BYTES)
        begins = starts + header.astype(np.int32)
    timestamps = numbers_at(cells, begins - np.int32(16), ">i8")
    expires = numbers_at(cells, begins - np.int32(8), ">i8")
    if there is None:
        return Cells(cut(cells, begins, stops), pa.array(timestamps), pa.array(expires), pa.array(schemas))
    nulls = ~there
    all_begins = offsets[1:].copy()  # a null's payload is empty
    all_begins[there] = begins
    return Cells(
        retyped(cut(cells, all_begins, offsets[1:]), pa.binary(), nulls),
        with_nulls(spread(timestamps, there), pa.int64(), nulls),
        with_nulls(spread(expires, there), pa.int64(), nulls),
        with_nulls(spread(schemas, there), pa.uint16(), nulls),
    )


def all_begin_with(beginning: bytes, found: Sequence[bytes]) -> bool:
    """Whether all cells begin with these bytes. It is enough to check the smallest and the largest.

    >>> all_begin_with(b"a", [b"ab", b"a", b"ac"]), all_begin_with(b"a", [b"ab", b"ba", b"ac"])
    (True, False)
    """
    return not found or (min(found).startswith(beginning) and max(found).startswith(beginning))


def _numbers(column: pa.Int64Array | None, default: int) -> npt.NDArray[np.int64] | int:
    if column is None:
        return default
    column = as_type(column, pa.int64())
    return fixed_numbers(column.fill_null(default) if column.null_count else column)


def _checked_schemas(
    cells: pa.BinaryArray, starts: npt.NDArray[np.int32], stops: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint16] | None:
    """The schema of each cell, None if all have the first; raises for bytes that aren't a cell."""
    lengths = stops - starts
    _raise_if_any(cells, starts, stops, lengths < HEADER_BYTES)
    formats = bytes_of(cells)[starts]
    numbered = formats != FORMAT
    if not numbered.any():
        return None
    _raise_if_any(cells, starts, stops, numbered & ((formats != NUMBERED_FORMAT) | (lengths < NUMBERED_HEADER_BYTES)))
    schemas = np.full(len(starts), FIRST_SCHEMA, dtype=np.uint16)
    schemas[numbered] = numbers_at(cells, starts[numbered] + np.int32(1), ">u2")
    _raise_if_any(cells, starts, stops, numbered & (schemas <= FIRST_SCHEMA))
    return schemas


def _raise_if_any(
    cells: pa.BinaryArray, starts: npt.NDArray[np.int32], stops: npt.NDArray[np.int32], wrong: npt.NDArray[np.bool_]
) -> None:
    if wrong.any():
        raise _damaged(bytes_of(cells)[starts[wrong][0] : stops[wrong][0]].tobytes())


def _check_schema(number: int) -> None:
    if not FIRST_SCHEMA <= number <= LAST_SCHEMA:
        raise TopologyError(f"schema number {number} is not possible. Use one from {FIRST_SCHEMA} to {LAST_SCHEMA}.")


def _damaged(data: bytes) -> DamagedObject:
    if data and data[0] not in (FORMAT, NUMBERED_FORMAT):
        return DamagedObject(
            f"a stored value has format {data[0]} and this release reads {FORMAT} and {NUMBERED_FORMAT}. Use the "
            f"release that wrote it. If there is none: {RESTORE_AGAIN}"
        )
    smallest = NUMBERED_HEADER_BYTES if data and data[0] == NUMBERED_FORMAT else HEADER_BYTES
    if len(data) >= smallest:
        return DamagedObject(f"a stored value of format {NUMBERED_FORMAT} has schema {data[2]}. {RESTORE_AGAIN}")
    return DamagedObject(f"a stored value has {len(data)} bytes and the smallest has {smallest}. {RESTORE_AGAIN}")
