"""Cells: the envelope every stored value is in.

A value carries its format number and has room for a timestamp and an expiry from the first release on, so that adding
either to a store changes no stored byte. Formats 1 and 2 are

    0x01 |                              timestamp, 8 bytes big-endian | expires, 8 bytes big-endian | payload
    0x02 | schema, 2 bytes big-endian | timestamp, 8 bytes big-endian | expires, 8 bytes big-endian | payload

Both times are in milliseconds since 1970; no timestamp is the smallest number there is, no expiry is 0. The schema is
the number of the schema the payload was written in. Format 1 is schema 1 and format 2 any later one, so a cell has one
form only, and a store whose values never had another schema pays nothing for those that did.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import RESTORE_AGAIN, DamagedObject, TopologyError
from holdfast.stores.formats.byte_columns import (
    LARGEST,
    TooManyBytes,
    as_type,
    bytes_of,
    cut,
    from_matrix,
    lengths_of,
    numbers_at,
    offsets_of,
    retyped,
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
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class Cell:
    """One stored value."""

    payload: bytes
    timestamp: int = NO_TIMESTAMP
    expires: int = NEVER
    schema: int = FIRST_SCHEMA


class Cells(NamedTuple):
    """A column of stored values, taken apart; null in all four where there was none."""

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
    """A column of cells of one schema; a null payload gives a null cell, a null timestamp or expiry none."""
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
    total = rows * width + int(lengths_of(payloads).sum(dtype=np.int64))
    if total > LARGEST:
        raise TooManyBytes(total)
    headers["timestamp"] = _numbers(timestamps, NO_TIMESTAMP)
    headers["expires"] = _numbers(expires, NEVER)
    return pc.binary_join_element_wise(from_matrix(headers.view(np.uint8).reshape(rows, width)), payloads, _NOTHING)


def unpack_many(cells: pa.BinaryArray) -> Cells:
    """The parts of a column of cells, of whatever schemas."""
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
        with_nulls(_spread(timestamps, there), pa.int64(), nulls),
        with_nulls(_spread(expires, there), pa.int64(), nulls),
        with_nulls(_spread(schemas, there), pa.uint16(), nulls),
    )


def all_begin_with(beginning: bytes, found: Sequence[bytes]) -> bool:
    """Whether all of these cells do. In order, the others are between the first and the last: two looks are enough.

    >>> all_begin_with(b"a", [b"ab", b"a", b"ac"]), all_begin_with(b"a", [b"ab", b"ba", b"ac"])
    (True, False)
    """
    return not found or (min(found).startswith(beginning) and max(found).startswith(beginning))


def _spread(values: npt.NDArray[Any], there: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    whole = np.zeros(len(there), dtype=values.dtype)
    whole[there] = values
    return whole


def _numbers(column: pa.Int64Array | None, default: int) -> npt.NDArray[np.int64] | int:
    if column is None:
        return default
    column = as_type(column, pa.int64())
    return fixed_numbers(column.fill_null(default) if column.null_count else column)


def _checked_schemas(
    cells: pa.BinaryArray, starts: npt.NDArray[np.int32], stops: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint16] | None:
    """The schema of each cell, None where all are of the first; an error for the first that is no cell."""
    lengths = stops - starts
    _refuse(cells, starts, stops, lengths < HEADER_BYTES)
    formats = bytes_of(cells)[starts]
    numbered = formats != FORMAT
    if not numbered.any():
        return None
    _refuse(cells, starts, stops, numbered & ((formats != NUMBERED_FORMAT) | (lengths < NUMBERED_HEADER_BYTES)))
    schemas = np.full(len(starts), FIRST_SCHEMA, dtype=np.uint16)
    schemas[numbered] = numbers_at(cells, starts[numbered] + np.int32(1), ">u2")
    _refuse(cells, starts, stops, numbered & (schemas <= FIRST_SCHEMA))
    return schemas


def _refuse(
    cells: pa.BinaryArray,
    starts: npt.NDArray[np.int32],
    stops: npt.NDArray[np.int32],
    wrong: npt.NDArray[np.bool_],
) -> None:
    if wrong.any():
        raise _damaged(bytes_of(cells)[starts[wrong][0] : stops[wrong][0]].tobytes())


def _check_schema(number: int) -> None:
    if not FIRST_SCHEMA <= number <= LAST_SCHEMA:
        raise TopologyError(f"a schema has a number from {FIRST_SCHEMA} to {LAST_SCHEMA}, not {number}.")


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
