"""Expiry: when entries expire, and the index of entries that have to be removed one by one.

    0x03 | expires, 8 bytes big-endian, sign bit flipped | own key  →  empty cell

The index is in the order of expiry. An expired entry is hidden from every reader, by the wall clock of the version,
whether its bytes are still there or not.
"""

from datetime import timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadValue
from holdfast.settings.units import format_duration
from holdfast.stores.access import Now
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import NEVER, Cells
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.layouts.areas import EXPIRY_AREA, flip_signs, numbered_keys, split_numbered_keys, unflip_signs
from holdfast.stores.spec import StoreSpec

AT_MOST: Final = 10_000
"""How many expired entries a version removes before its first record. The others stay, hidden, until a later one."""

_NO_NUMBER = pa.scalar(None, pa.int64())
_NO_BYTES = pa.scalar(None, pa.binary())


def index_key(expires: int, key: bytes) -> bytes:
    """The row of an entry in the expiry index.

    >>> index_key(1, b"\\x01ann").hex(" ")
    '03 80 00 00 00 00 00 00 01 01 61 6e 6e'
    """
    return EXPIRY_AREA + time_bytes(expires) + key


def due_second(expires: int) -> int:
    """The end of the second in which an entry expires.

    >>> due_second(1_001), due_second(2_000)
    (2000, 2000)
    """
    return -(-expires // 1_000) * 1_000


def index_keys(expires: npt.NDArray[np.int64], keys: pa.BinaryArray) -> pa.BinaryArray:
    return numbered_keys(EXPIRY_AREA, flip_signs(expires), keys)


def split_index_keys(rows: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], pa.BinaryArray]:
    """The times of expiry and the own keys in a column of index rows."""
    expires, keys = split_numbered_keys(rows)
    return unflip_signs(expires), keys


def expires_of(cell: bytes) -> int:
    """When a cell expires."""
    return cells.unpack(cell).expires


def visible(cells: Cells, now: Now) -> Cells:
    """The cells with null in place of expired ones."""
    expired = pc.and_(pc.not_equal(cells.expires, NEVER), pc.less_equal(cells.expires, now.wall))
    if not pc.any(expired).as_py():
        return cells
    return cells._replace(
        payloads=pc.if_else(expired, _NO_BYTES, cells.payloads),
        timestamps=pc.if_else(expired, _NO_NUMBER, cells.timestamps),
        expires=pc.if_else(expired, _NO_NUMBER, cells.expires),
    )


def expiry(spec: StoreSpec, now: Now, rows: int) -> pa.Array | None:
    """When rows that are written now expire; None in a store without a TTL."""
    return pa.array(np.full(rows, now.wall + spec.ttl_ms)) if spec.ttl_ms else None


def shorter_ttl(ttl_ms: int | None, of_store: int) -> int:
    """The TTL of an entry: its own, or else the store's. 0 means none, and an own TTL can't exceed the store's."""
    if ttl_ms is not None and ttl_ms > of_store > 0:
        raise BadValue(
            f"ttl={_words(ttl_ms)} is longer than the store's own of {_words(of_store)}, after which its entries "
            "expire. Give the entry a shorter one, or the store a longer one."
        )
    return of_store if ttl_ms is None else ttl_ms


def _words(millis: int) -> str:
    return format_duration(timedelta(milliseconds=millis))
