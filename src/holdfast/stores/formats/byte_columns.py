"""Functions on whole columns of bytes, shared by the formats so that none of them makes a Python object per row.

An Arrow binary array is one buffer of bytes and one of offsets. Cutting a part out of every row takes new offsets and
one `take` (150M rows/s), and a fixed-width part is a numpy view of the same bytes.
"""

from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
LARGEST = 2**31 - 1


class TooManyBytes(HoldfastError):
    """One column has more bytes than the 32-bit offsets of a binary array can address."""

    category = ErrorCategory.INVALID

    def __init__(self, found: int) -> None:
        super().__init__(
            f"one column would hold {found:,} bytes, and {LARGEST:,} is the limit. Nothing was committed. Lower "
            "batch.segment_rows, so that a task processes fewer keys at a time."
        )


def as_type(column: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    """The column as one array of that type; values that don't fit and text that isn't UTF-8 raise pa.ArrowInvalid."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type != type_:
        column = column.cast(type_)
    if pa.types.is_string(type_):
        column.validate(full=True)  # 4 to 17 ms per million texts: text that is written can be read back
    return column


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table as one array, without a copy if it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def offsets_of(array: pa.Array) -> Offsets:
    """Where each row of a binary or string array begins in `bytes_of`, and where the last row ends."""
    buffer = array.buffers()[1]
    if buffer is None or (len(array) == 0 and buffer.size == 0):
        return np.zeros(1, dtype=np.int32)
    offsets = np.frombuffer(buffer, dtype=np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def bytes_of(array: pa.Array) -> Bytes:
    buffer = array.buffers()[2]
    return np.empty(0, dtype=np.uint8) if buffer is None else np.frombuffer(buffer, dtype=np.uint8)


def from_offsets(offsets: Offsets, data: Bytes | pa.Buffer) -> pa.BinaryArray:
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def from_matrix(matrix: Bytes) -> pa.BinaryArray:
    """Rows of one width as a binary array, without a copy."""
    rows, width = matrix.shape
    _check_size(rows * width)
    offsets = np.arange(0, rows * width + 1, width, dtype=np.int32) if width else np.zeros(rows + 1, dtype=np.int32)
    return from_offsets(offsets, matrix.reshape(-1))


def join_rows(*parts: pa.Array | pa.Scalar, null_as_empty: bool = False) -> pa.BinaryArray:
    """The parts of each row, one after the other. A null part makes the row null, unless it counts as empty.

    >>> join_rows(pa.scalar(b"a", pa.binary()), pa.array([b"b", None], pa.binary())).to_pylist()
    [b'ab', None]
    """
    arrays = [part for part in parts if isinstance(part, pa.Array)]
    constant = sum(len(part.as_py()) for part in parts if isinstance(part, pa.Scalar))
    ends = [offsets_of(array)[[0, -1]].tolist() for array in arrays]
    _check_size(constant * len(arrays[0]) + sum(stop - start for start, stop in ends))
    nulls = "replace" if null_as_empty else "emit_null"
    return pc.binary_join_element_wise(*parts, _empty(), null_handling=nulls, null_replacement=b"")


@cache
def _empty() -> pa.Scalar:
    """Made when it is first needed: pyarrow imports pandas for it, for which clients would wait a second."""
    return pa.scalar(b"", pa.binary())


def _check_size(total: int) -> None:
    if total > LARGEST:
        raise TooManyBytes(total)


def lengths_of(array: pa.Array) -> npt.NDArray[np.int32]:
    return np.diff(offsets_of(array))


def cut(array: pa.Array, starts: Offsets, stops: Offsets) -> pa.BinaryArray:
    """The bytes between two positions of each row. Positions are those in `bytes_of(array)`; nulls are ignored.

    >>> rows = pa.array([b"abc", b"defg"])
    >>> cut(rows, np.array([1, 4], np.int32), np.array([3, 7], np.int32)).to_pylist()
    [b'bc', b'efg']
    """
    rows = len(starts)
    # The parts and the gaps between them make an array of twice the rows; the parts are every other row of it.
    both = np.empty(2 * rows + 1, dtype=np.int32)
    both[0:-1:2] = starts
    both[1::2] = stops
    both[-1] = stops[-1] if rows else 0
    data = array.buffers()[2]
    parts = from_offsets(both, pa.py_buffer(b"") if data is None else data)
    return parts.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int64)))


def numbers_at(array: pa.Array, places: Offsets, dtype: str) -> npt.NDArray[Any]:
    """The number of that type at each position of `bytes_of(array)`, aligned or not."""
    kind = np.dtype(dtype)
    data = bytes_of(array)
    if not len(places):
        return np.empty(0, dtype=kind.newbyteorder("="))
    windows = np.ndarray((len(data) - kind.itemsize + 1,), dtype=kind, buffer=data, strides=(1,))
    return windows[places].astype(kind.newbyteorder("="))


def with_nulls(values: npt.NDArray[Any], type_: pa.DataType, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    """A fixed-width numpy array as an Arrow array of a type of the same width, with nulls."""
    if pa.types.is_boolean(type_):
        data = pa.py_buffer(np.packbits(values.astype(bool), bitorder="little"))
    else:
        data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type_, len(values), [_validity(nulls), data])


def retyped(array: pa.Array, type_: pa.DataType, nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A binary array as string or binary, with nulls. Text is checked to be UTF-8."""
    _, offsets, data = array.buffers()
    mask = _validity(nulls)
    result = pa.Array.from_buffers(type_, len(array), [mask, offsets, data], offset=array.offset if mask is None else 0)
    if pa.types.is_string(type_):
        result.validate(full=True)
    return result


def spread(values: npt.NDArray[Any], there: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """One value per row: these in the rows that are there, zero in the others."""
    rows = np.zeros(len(there), dtype=values.dtype)
    rows[there] = values
    return rows


def _validity(nulls: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if nulls is None or not nulls.any():
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def valid_of(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which rows aren't null; None if no row is null."""
    if array.null_count == 0:
        return None
    return cast(npt.NDArray[np.bool_], array.is_valid().to_numpy(zero_copy_only=False))
