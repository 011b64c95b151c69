"""When entries expire, and the index of those that have to be removed one by one.

    0x03 | expires, 8 bytes big-endian, sign bit flipped | own key  →  empty cell

In the order of the keys the entries that have expired come first. An entry that has expired is hidden from every
reader, by the wall clock of the version, whether its bytes are there or not.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadValue
from holdfast.settings.units import format_duration
from holdfast.stores.access import Now
from holdfast.stores.formats import cells
from holdfast.stores.formats.byte_columns import as_type, cut, from_matrix, numbers_at, offsets_of
from holdfast.stores.formats.cells import FORMAT, HEADER_BYTES, NEVER, Cells
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.layouts.base import Batch
from holdfast.stores.spec import StoreSpec

AT_MOST: Final = 10_000
"""How many expired entries a version removes before its first record; those left wait, hidden."""

INDEX: Final = b"\x03"
ROW_BYTES: Final = 9
"""What a row of the index has before the entry's own key."""

_SIGN = np.uint64(1 << 63)
_NOTHING = pa.scalar(b"", pa.binary())
_NO_NUMBER = pa.scalar(None, pa.int64())
_NO_BYTES = pa.scalar(None, pa.binary())
_U64 = struct.Struct(">Q")
_NEVER = bytes(8)
_FORMAT_1 = bytes([FORMAT])


def index_key(expires: int, key: bytes) -> bytes:
    """An entry's row in the expiry index.

    >>> index_key(1, b"\\x01ann").hex(" ")
    '03 80 00 00 00 00 00 00 01 01 61 6e 6e'
    """
    return INDEX + time_bytes(expires) + key


def expires_of(cell: bytes) -> int:
    """When a cell is over.

    >>> expires_of(cells.pack(cells.Cell(b"", expires=7)))
    7
    """
    return cells.unpack(cell).expires


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


class ExpiryClock:
    """Tells whether a cell shows at one moment, from its bytes as they are: every cell that is read is asked."""

    def __init__(self, wall: int) -> None:
        self._wall = _U64.pack(max(wall, 0))

    def shows(self, cell: bytes) -> bool:
        expires = cell[9:17] if cell[:1] == _FORMAT_1 and len(cell) >= HEADER_BYTES else _U64.pack(expires_of(cell))
        return expires == _NEVER or expires > self._wall


def shown(shows: Callable[[bytes], bool], keys: Sequence[bytes], found: Sequence[bytes]) -> Iterator[Batch]:
    """What is left of a batch without what is over."""
    show = list(map(shows, found))
    if any(show):
        yield list(compress(keys, show)), list(compress(found, show))


def visible(cells: Cells, now: Now) -> Cells:
    """Cells without those that have expired: null, as if it had never been."""
    gone = pc.and_(pc.not_equal(cells.expires, NEVER), pc.less_equal(cells.expires, now.wall))
    if not pc.any(gone).as_py():
        return cells
    return cells._replace(
        payloads=pc.if_else(gone, _NO_BYTES, cells.payloads),
        timestamps=pc.if_else(gone, _NO_NUMBER, cells.timestamps),
        expires=pc.if_else(gone, _NO_NUMBER, cells.expires),
    )


def expiry(spec: StoreSpec, now: Now, rows: int) -> pa.Array | None:
    """When rows written now expire; None in a store without a TTL."""
    return pa.array(np.full(rows, now.wall + spec.ttl_ms)) if spec.ttl_ms else None


def shorter_ttl(ttl_ms: int | None, of_store: int) -> int:
    """An entry's TTL in a store that has one: its own if it is no longer, the store's if it has none."""
    if ttl_ms is not None and ttl_ms > of_store:
        raise BadValue(
            f"ttl={_words(ttl_ms)} is longer than the store's own of {_words(of_store)}, after which its entries go. "
            "Give a shorter one, or the store a longer one."
        )
    return of_store if ttl_ms is None else ttl_ms


def _words(millis: int) -> str:
    return format_duration(timedelta(milliseconds=millis))
