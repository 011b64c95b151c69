"""Cells: the envelope every stored value is in.

A value carries its format number and has room for a timestamp and an expiry from the first release on, so that adding
either to a store changes no stored byte. Format 1 is

    0x01 | timestamp, 8 bytes big-endian | expires, 8 bytes big-endian | payload

both in milliseconds since 1970; no timestamp is the smallest number there is, no expiry is 0.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import DamagedObject
from holdfast.stores.bytecolumns import (
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
    with_nulls,
)
from holdfast.stores.components import fixed_numbers

FORMAT = 1
NEVER = 0
NO_TIMESTAMP = -(2**63)
HEADER_BYTES = 17

_HEADER = struct.Struct(">Bqq")
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class Cell:
    """One stored value."""

    payload: bytes
    timestamp: int = NO_TIMESTAMP
    expires: int = NEVER


class Cells(NamedTuple):
    """A column of stored values, taken apart; null in all three where there was none."""

    payloads: pa.BinaryArray
    timestamps: pa.Int64Array
    expires: pa.Int64Array


def pack(cell: Cell) -> bytes:
    """A cell as bytes.

    >>> pack(Cell(b"abc", timestamp=7)).hex()
    '0100000000000000070000000000000000616263'
    """
    return _HEADER.pack(FORMAT, cell.timestamp, cell.expires) + cell.payload


def unpack(data: bytes) -> Cell:
    if len(data) < HEADER_BYTES or data[0] != FORMAT:
        raise _damaged(data)
    _, timestamp, expires = _HEADER.unpack_from(data)
    return Cell(data[HEADER_BYTES:], timestamp, expires)


def pack_many(
    payloads: pa.BinaryArray, timestamps: pa.Int64Array | None = None, expires: pa.Int64Array | None = None
) -> pa.BinaryArray:
    """A column of cells; a null payload gives a null cell, a null timestamp or expiry none."""
    payloads = as_type(payloads, pa.binary())
    rows = len(payloads)
    total = rows * HEADER_BYTES + int(lengths_of(payloads).sum(dtype=np.int64))
    if total > LARGEST:
        raise TooManyBytes(total)
    headers = np.empty(rows, dtype=np.dtype([("format", "u1"), ("timestamp", ">i8"), ("expires", ">i8")]))
    headers["format"] = FORMAT
    headers["timestamp"] = _numbers(timestamps, NO_TIMESTAMP)
    headers["expires"] = _numbers(expires, NEVER)
    return pc.binary_join_element_wise(
        from_matrix(headers.view(np.uint8).reshape(rows, HEADER_BYTES)), payloads, _NOTHING
    )


def unpack_many(cells: pa.BinaryArray) -> Cells:
    """The parts of a column of cells."""
    cells = as_type(cells, pa.binary())
    offsets = offsets_of(cells)
    starts, stops = offsets[:-1], offsets[1:]
    if cells.null_count == 0:
        _check(cells, starts, stops)
        return Cells(
            cut(cells, starts + np.int32(HEADER_BYTES), stops),
            pa.array(numbers_at(cells, starts + np.int32(1), ">i8")),
            pa.array(numbers_at(cells, starts + np.int32(9), ">i8")),
        )
    there = cells.is_valid().to_numpy(zero_copy_only=False)
    nulls = ~there
    _check(cells, starts[there], stops[there])
    timestamps, expires = np.zeros((2, len(cells)), dtype=np.int64)
    timestamps[there] = numbers_at(cells, starts[there] + np.int32(1), ">i8")
    expires[there] = numbers_at(cells, starts[there] + np.int32(9), ">i8")
    payloads = cut(cells, np.where(there, starts + np.int32(HEADER_BYTES), stops), stops)
    return Cells(
        retyped(payloads, pa.binary(), nulls),
        with_nulls(timestamps, pa.int64(), nulls),
        with_nulls(expires, pa.int64(), nulls),
    )


def _numbers(column: pa.Int64Array | None, default: int) -> npt.NDArray[np.int64] | int:
    if column is None:
        return default
    column = as_type(column, pa.int64())
    return fixed_numbers(column.fill_null(default) if column.null_count else column)


def _check(cells: pa.BinaryArray, starts: npt.NDArray[np.int32], stops: npt.NDArray[np.int32]) -> None:
    short = stops - starts < HEADER_BYTES
    if short.any():
        raise _damaged(bytes_of(cells)[starts[short][0] : stops[short][0]].tobytes())
    other = bytes_of(cells)[starts] != FORMAT
    if other.any():
        raise _damaged(bytes_of(cells)[starts[other][0] : stops[other][0]].tobytes())


def _damaged(data: bytes) -> DamagedObject:
    if data and data[0] != FORMAT:
        return DamagedObject(
            f"a stored value has format {data[0]} and this release reads {FORMAT}. Use the release that wrote it, or "
            "run verify."
        )
    return DamagedObject(f"a stored value has {len(data)} bytes and the smallest has {HEADER_BYTES}. Run verify.")
