"""Areas: the first byte of a stored key says what the key is for.

    0x01   entries under their own keys
    0x02   entries in slices, by time (`slices`)
    0x03   the expiry index (`expiry`)
    0x04   the recency index (`recency`)
    0x05   notes: numbers that the store keeps, such as the count of its entries or the progress of a rewrite
    0x06   windows that wait to be sent (`waiting`)

In slices and in the indexes, a number and the entry's own key follow the area:

    area | number, 8 bytes big-endian | own key

Numbers that can be negative have their sign bit flipped, so that stored keys are in the order of their numbers.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.formats.byte_columns import (
    LARGEST,
    TooManyBytes,
    as_type,
    cut,
    from_matrix,
    lengths_of,
    numbers_at,
    offsets_of,
)
from holdfast.stores.formats.keys import FORMAT

ENTRY_AREA: Final = FORMAT
SLICE_AREA: Final = b"\x02"
EXPIRY_AREA: Final = b"\x03"
RECENCY_AREA: Final = b"\x04"
NOTE_AREA: Final = b"\x05"
WAITING_AREA: Final = b"\x06"

PREFIX_BYTES: Final = 9
"""The length of an area with a number."""

_SIGN = np.uint64(1 << 63)
_NOTHING = pa.scalar(b"", pa.binary())
_PREFIX = np.dtype([("area", "u1"), ("number", ">u8")])


def flip_signs(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Signed numbers as unsigned ones in the same order."""
    return numbers.astype(np.int64).view(np.uint64) ^ _SIGN


def unflip_signs(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return (numbers ^ _SIGN).view(np.int64)


def numbered_keys(area: bytes, numbers: npt.NDArray[np.uint64], keys: pa.Array) -> pa.BinaryArray:
    """The stored keys of a column of own keys.

    >>> numbered_keys(RECENCY_AREA, np.array([2], np.uint64), pa.array([b"\\x01ann"]))[0].as_py().hex(" ")
    '04 00 00 00 00 00 00 00 02 01 61 6e 6e'
    """
    keys = as_type(keys, pa.binary())
    total = len(keys) * PREFIX_BYTES + int(lengths_of(keys).sum(dtype=np.int64))
    if total > LARGEST:
        raise TooManyBytes(total)
    prefixes = np.empty(len(keys), dtype=_PREFIX)
    prefixes["area"], prefixes["number"] = area[0], numbers
    return join(prefixes, keys)


def join(leads: npt.NDArray[np.void], column: pa.BinaryArray) -> pa.BinaryArray:
    """Bytes of a fixed width before each row of a column."""
    matrix = leads.view(np.uint8).reshape(len(leads), leads.dtype.itemsize)
    return pc.binary_join_element_wise(from_matrix(matrix), column, _NOTHING)


def split_numbered_keys(stored: pa.Array) -> tuple[npt.NDArray[np.uint64], pa.BinaryArray]:
    """The numbers and the own keys of a column of stored keys.

    >>> numbers, keys = split_numbered_keys(pa.array([b"\\x04" + bytes(7) + b"\\x02\\x01ann"]))
    >>> numbers.tolist(), keys.to_pylist()
    ([2], [b'\\x01ann'])
    """
    offsets = offsets_of(stored)
    starts = offsets[:-1]
    numbers: npt.NDArray[np.uint64] = numbers_at(stored, starts + np.int32(1), ">u8")
    return numbers, cut(stored, starts + np.int32(PREFIX_BYTES), offsets[1:])
