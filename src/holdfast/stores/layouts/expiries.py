"""The expiry index as columns.

    0x03 | expires, 8 bytes big-endian, sign bit flipped | own key  →  empty cell

In the order of the keys the entries that are over come first. `kinds.expiry` has the same for one row at a time.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.formats.byte_columns import as_type, cut, from_matrix, numbers_at, offsets_of

INDEX: Final = b"\x03"
ROW_BYTES: Final = 9
"""What a row of the index has before the entry's own key."""

_SIGN = np.uint64(1 << 63)
_NOTHING = pa.scalar(b"", pa.binary())


def expiry_rows(expires: npt.NDArray[np.int64], keys: pa.BinaryArray) -> pa.BinaryArray:
    """The places of a column of entries in the index.

    >>> expiry_rows(np.array([1]), pa.array([b"\\x01ann"]))[0].as_py().hex(" ")
    '03 80 00 00 00 00 00 00 01 01 61 6e 6e'
    """
    headers = np.empty(len(expires), dtype=np.dtype([("area", "u1"), ("expires", ">u8")]))
    headers["area"], headers["expires"] = INDEX[0], expires.astype(np.int64).view(np.uint64) ^ _SIGN
    matrix = headers.view(np.uint8).reshape(len(headers), ROW_BYTES)
    return pc.binary_join_element_wise(from_matrix(matrix), as_type(keys, pa.binary()), _NOTHING)


def split_expiry_rows(rows: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], pa.BinaryArray]:
    """When the entries that a column of such rows stands for are over, and their own keys.

    >>> expires, keys = split_expiry_rows(expiry_rows(np.array([1]), pa.array([b"\\x01ann"])))
    >>> expires.tolist(), keys.to_pylist()
    ([1], [b'\\x01ann'])
    """
    offsets = offsets_of(rows)
    starts = offsets[:-1]
    flipped = numbers_at(rows, starts + np.int32(1), ">u8").astype(np.uint64)
    expires: npt.NDArray[np.int64] = (flipped ^ _SIGN).view(np.int64)
    return expires, cut(rows, starts + np.int32(ROW_BYTES), offsets[1:])
