"""The recency index of a store with `max_entries`: its entries in the order they were last touched.

    0x01 | key              →  cell of: seq, u64 big-endian | value
    0x04 | seq | key        →  empty cell
    0x05 | "count"          →  cell of: number of entries, u64 big-endian

What was touched later has the larger `seq`, on every replica. A table numbers what a version touched and kept from the
version, shifted left by 24 bits, on. With more than 2^24 of them it would run into the numbers of the next version, so
that is the largest `max_entries`. A processor's store goes on from the largest `seq` there is. The first row of the
index is the entry to go next, unless others are over (see `expiries`).
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.formats.byte_columns import as_type, cut, from_matrix, numbers_at, offsets_of
from holdfast.stores.formats.cells import Cell, pack, unpack

INDEX_START: Final = b"\x04"
INDEX_STOP: Final = b"\x05"
COUNT_KEY: Final = b"\x05count"

TOUCH_BITS: Final = 24
MOST_ENTRIES: Final = 1 << TOUCH_BITS
SEQ_BYTES: Final = 8
_INDEX_HEADER_BYTES: Final = 1 + SEQ_BYTES

_U64 = struct.Struct(">Q")
_NOTHING = pa.scalar(b"", pa.binary())

Seqs = npt.NDArray[np.uint64]


def first_seq(version: int) -> int:
    """The seq of a table's first entry of a version.

    >>> first_seq(2)
    33554432
    """
    return version << TOUCH_BITS


def index_key(seq: int, key: bytes) -> bytes:
    """The place of one entry in the index.

    >>> index_key(2, b"\\x01ann").hex(" ")
    '04 00 00 00 00 00 00 00 02 01 61 6e 6e'
    """
    return INDEX_START + _U64.pack(seq) + key


def with_seq(seq: int, value: bytes) -> bytes:
    """A cell's payload."""
    return _U64.pack(seq) + value


def split_seq(payload: bytes) -> tuple[int, bytes]:
    """A payload's seq and value.

    >>> split_seq(with_seq(7, b"ann"))
    (7, b'ann')
    """
    return _U64.unpack_from(payload)[0], payload[SEQ_BYTES:]


def count_cell(entries: int) -> bytes:
    """How many entries there are, as it is stored under COUNT_KEY."""
    return pack(Cell(_U64.pack(entries)))


def counted(cell: bytes | None) -> int:
    """The number in a count cell; a store without one is empty.

    >>> counted(count_cell(12)), counted(None)
    (12, 0)
    """
    return 0 if cell is None else int(_U64.unpack(unpack(cell).payload)[0])


def index_keys(seqs: Seqs, keys: pa.BinaryArray) -> pa.BinaryArray:
    """The places of a column of entries in the index."""
    headers = np.empty(len(seqs), dtype=np.dtype([("area", "u1"), ("seq", ">u8")]))
    headers["area"], headers["seq"] = INDEX_START[0], seqs
    return _after(headers, keys)


def entry_keys(index: pa.BinaryArray) -> pa.BinaryArray:
    """The keys of the entries that a column of index rows stands for.

    >>> entry_keys(pa.array([index_key(2, b"\\x01ann")])).to_pylist()
    [b'\\x01ann']
    """
    offsets = offsets_of(index)
    return cut(index, offsets[:-1] + np.int32(_INDEX_HEADER_BYTES), offsets[1:])


def with_seqs(seqs: Seqs, values: pa.BinaryArray) -> pa.BinaryArray:
    """A column of payloads."""
    return _after(seqs.astype(np.dtype([("seq", ">u8")])), values)


def split_seqs(payloads: pa.BinaryArray) -> tuple[Seqs, pa.BinaryArray]:
    """The seqs of a column of payloads, 0 where there is none, and the values, null where there is none."""
    payloads = as_type(payloads, pa.binary())
    offsets = offsets_of(payloads)
    starts, stops = offsets[:-1], offsets[1:]
    there = payloads.is_valid().to_numpy(zero_copy_only=False)
    seqs = np.zeros(len(payloads), dtype=np.uint64)
    seqs[there] = numbers_at(payloads, starts[there], ">u8")
    values = cut(payloads, np.where(there, starts + np.int32(SEQ_BYTES), stops), stops)
    return seqs, pc.if_else(payloads.is_valid(), values, pa.scalar(None, pa.binary())) if not there.all() else values


def _after(headers: npt.NDArray[np.void], column: pa.BinaryArray) -> pa.BinaryArray:
    """Each row of fixed width, then that of the column."""
    matrix = headers.view(np.uint8).reshape(len(headers), headers.dtype.itemsize)
    return pc.binary_join_element_wise(from_matrix(matrix), column, _NOTHING)
