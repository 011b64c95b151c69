"""The recency index of a store with `max_entries`: its entries in the order in which they were last touched.

    0x01 | key              →  cell of: seq, u64 big-endian | value
    0x04 | seq | key        →  empty cell
    0x05 | "count"          →  cell of: number of entries, u64 big-endian

An entry that was touched later has the larger `seq`, on every replica. A table numbers the entries that a version
touched and kept, starting from the version shifted left by 24 bits. More than 2^24 entries would collide with the
numbers of the next version, so that is the largest `max_entries`. A processor's store continues from its largest `seq`.
The first row of the index is the next entry to be evicted, unless others have expired (`expiry`).
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.formats.byte_columns import as_type, cut, numbers_at, offsets_of
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.layouts.areas import NOTE_AREA, RECENCY_AREA, join, numbered_keys

COUNT_KEY: Final = NOTE_AREA + b"count"

TOUCH_BITS: Final = 24
MOST_ENTRIES: Final = 1 << TOUCH_BITS
SEQ_BYTES: Final = 8

_U64 = struct.Struct(">Q")

Seqs = npt.NDArray[np.uint64]


def first_seq(version: int) -> int:
    """The seq of a table's first entry of a version.

    >>> first_seq(2)
    33554432
    """
    return version << TOUCH_BITS


def index_key(seq: int, key: bytes) -> bytes:
    """The row of an entry in the recency index.

    >>> index_key(2, b"\\x01ann").hex(" ")
    '04 00 00 00 00 00 00 00 02 01 61 6e 6e'
    """
    return RECENCY_AREA + _U64.pack(seq) + key


def index_keys(seqs: Seqs, keys: pa.BinaryArray) -> pa.BinaryArray:
    return numbered_keys(RECENCY_AREA, seqs, keys)


def with_seq(seq: int, value: bytes) -> bytes:
    """The payload of a cell."""
    return _U64.pack(seq) + value


def split_seq(payload: bytes) -> tuple[int, bytes]:
    """The seq and the value of a payload.

    >>> split_seq(with_seq(7, b"ann"))
    (7, b'ann')
    """
    return _U64.unpack_from(payload)[0], payload[SEQ_BYTES:]


def with_seqs(seqs: Seqs, values: pa.BinaryArray) -> pa.BinaryArray:
    """A column of payloads."""
    return join(seqs.astype(np.dtype([("seq", ">u8")])), values)


def split_seqs(payloads: pa.BinaryArray) -> tuple[Seqs, pa.BinaryArray]:
    """The seqs and the values of a column of payloads; 0 and null where there is no payload."""
    payloads = as_type(payloads, pa.binary())
    offsets = offsets_of(payloads)
    starts, stops = offsets[:-1], offsets[1:]
    there = payloads.is_valid().to_numpy(zero_copy_only=False)
    seqs = np.zeros(len(payloads), dtype=np.uint64)
    seqs[there] = numbers_at(payloads, starts[there], ">u8")
    values = cut(payloads, np.where(there, starts + np.int32(SEQ_BYTES), stops), stops)
    return seqs, pc.if_else(payloads.is_valid(), values, pa.scalar(None, pa.binary())) if not there.all() else values


def count_cell(entries: int) -> bytes:
    """The number of entries, as it is stored under COUNT_KEY."""
    return pack(Cell(_U64.pack(entries)))


def counted(cell: bytes | None) -> int:
    """The number in a count cell; a store without one is empty.

    >>> counted(count_cell(12)), counted(None)
    (12, 0)
    """
    return 0 if cell is None else int(_U64.unpack(unpack(cell).payload)[0])
