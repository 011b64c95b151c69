"""The partition of a key: Spark's own hash, in Python.

Spark shuffles by `pmod(hash(key columns), partitions)`. `hash` is its variant of Murmur3 with seed 42; each column's
hash is the seed of the next. Queries must find the same partition, so this module computes the same numbers, for one
key or for whole columns. A test compares it with Spark for every key type. Specific to Spark:

- integers up to 32 bits and dates hash as one 32-bit word, bigint and timestamps as two: 5 and 5L hash differently;
- each of the last 1 to 3 bytes of a text is mixed in as a signed word of its own, unlike in Murmur3;
- -0.0 hashes like 0.0, and all NaNs hash alike;
- a decimal hashes as its number without the point: of up to 18 digits as a bigint, of more as the fewest big-endian
  bytes of its two's complement.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import BadKey
from holdfast.stores.formats import scalars
from holdfast.stores.formats.byte_columns import bytes_of, from_offsets, lengths_of, offsets_of
from holdfast.stores.formats.key_components import component_of, decimal_words, fixed_numbers, key_column, other_parts
from holdfast.stores.formats.types import Field, Schema

SEED = 42
_MASK = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_F32, _F64 = struct.Struct("<f"), struct.Struct("<d")
_I32, _I64 = struct.Struct("<i"), struct.Struct("<q")
_ONE_WORD = ("boolean", "tinyint", "smallint", "int", "date")
_NAN_32, _NAN_64 = 0x7FC00000, 0x7FF8000000000000
Words = npt.NDArray[np.uint32]


def partition_of(schema: Schema, values: Sequence[object], partitions: int) -> int:
    """The partition of one key.

    >>> partition_of(Schema.of(player="string"), ["ann"], 4)
    2
    """
    return partitioner(schema)(values, partitions)


@lru_cache(maxsize=256)
def partitioner(schema: Schema) -> Callable[[Sequence[object], int], int]:
    """`partition_of` for keys of one schema, whose fields are looked at once."""
    _check(schema)
    hashers = [_hasher(field) for field in schema.fields]

    def partition(values: Sequence[object], partitions: int) -> int:
        if len(values) != len(hashers):
            raise other_parts(len(values), schema)
        hashed = SEED
        for hasher, value in zip(hashers, values, strict=True):
            hashed = hasher(value, hashed)
        return _signed(hashed) % partitions

    return partition


def partitions_of(schema: Schema, columns: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.int32]:
    """`partition_of` for whole columns."""
    _check(schema)
    if len(columns) != len(schema.fields):
        raise BadKey(f"{len(columns)} key columns were given, and the store's key has {len(schema.fields)}: {schema}.")
    typed = [key_column(field, column) for field, column in zip(schema.fields, columns, strict=True)]
    hashed = np.full(len(typed[0]), SEED, dtype=np.uint32)
    for field, column in zip(schema.fields, typed, strict=True):
        hashed = _hash_column(field, column, hashed)
    return np.mod(hashed.view(np.int32), np.int32(partitions))


@lru_cache(maxsize=256)
def _check(schema: Schema) -> None:
    """Rejects fields that can't be in a key, with the same error as their encoding."""
    for field in schema.fields:
        component_of(field, last=True)


def _hasher(field: Field) -> Callable[[object, int], int]:
    """From a value of this field and a seed to a hash."""

    def hash_text(value: object, seed: int) -> int:
        return _hash_bytes(scalars.text_or_bytes(field, value, BadKey), seed)

    def hash_float(value: object, seed: int) -> int:
        real = scalars.real_number(field, value, BadKey) + 0.0
        return _finish(_mix(seed, _NAN_32 if real != real else _I32.unpack(_F32.pack(real))[0]), 4)

    def hash_double(value: object, seed: int) -> int:
        real = scalars.real_number(field, value, BadKey) + 0.0
        return _hash_long(_NAN_64 if real != real else _I64.unpack(_F64.pack(real))[0], seed)

    def hash_word(value: object, seed: int) -> int:
        return _finish(_mix(seed, scalars.whole_number(field, value, BadKey)), 4)

    def hash_long(value: object, seed: int) -> int:
        return _hash_long(scalars.whole_number(field, value, BadKey), seed)

    def hash_decimal(value: object, seed: int) -> int:
        number = scalars.unscaled(field, value, BadKey)
        if field.field_type.fits_long:
            return _hash_long(number, seed)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return _hash_bytes(number.to_bytes(size, "big", signed=True), seed)

    match field.field_type.name:
        case "string" | "binary":
            return hash_text
        case "decimal":
            return hash_decimal
        case "float":
            return hash_float
        case "double":
            return hash_double
        case name:
            return hash_word if name in _ONE_WORD else hash_long


def _hash_long(value: int, seed: int) -> int:
    return _finish(_mix(_mix(seed, value), value >> 32), 8)


def _hash_bytes(data: bytes, seed: int) -> int:
    hashed = seed
    for word in struct.unpack(f"<{len(data) // 4}I{len(data) % 4}b", data):
        word = (word & _MASK) * _C1 & _MASK  # as `_mix`, without a call per word
        hashed ^= (word << 15 | word >> 17) * _C2 & _MASK
        hashed = ((hashed << 13 | hashed >> 19) * 5 + 0xE6546B64) & _MASK
    return _finish(hashed, len(data))


def _mix(hashed: int, word: int) -> int:
    word = (word & _MASK) * _C1 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    hashed ^= word * _C2 & _MASK
    hashed = (hashed << 13 | hashed >> 19) & _MASK
    return (hashed * 5 + 0xE6546B64) & _MASK


def _finish(hashed: int, length: int) -> int:
    hashed ^= length
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    return hashed ^ hashed >> 16


def _signed(hashed: int) -> int:
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _hash_column(field: Field, column: pa.Array, seeds: Words) -> Words:
    name = field.field_type.name
    if name in ("string", "binary"):
        return _hash_texts(column, seeds)
    if name == "boolean":
        return _finish_all(_mix_all(seeds, column.cast(pa.uint8()).to_numpy().astype(np.uint32)), 4)
    if name == "decimal" and not field.field_type.fits_long:
        return _hash_texts(_shortest(column), seeds)
    numbers = decimal_words(column)[0] if name == "decimal" else fixed_numbers(column)
    if name in ("float", "double"):
        numbers = numbers + numbers.dtype.type(0)  # one zero
        bits = numbers.view(np.uint32 if name == "float" else np.uint64)
        bits[np.isnan(numbers)] = _NAN_32 if name == "float" else _NAN_64
        numbers = bits
    if name in ("float", *_ONE_WORD):
        return _finish_all(_mix_all(seeds, numbers.astype(np.uint32)), 4)
    words = numbers.view(np.uint64) if name != "decimal" else numbers
    low, high = words.astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    return _finish_all(_mix_all(_mix_all(seeds, low), high), 8)


def _shortest(column: pa.Array) -> pa.BinaryArray:
    """Decimals without their points, as the fewest big-endian bytes of their two's complement."""
    low, high = decimal_words(column)
    rows = np.column_stack([high, low]).byteswap().view(np.uint8).reshape(len(column), 16)
    sign = np.where(rows[:, :1] >= 128, np.uint8(255), np.uint8(0))
    # A first byte that only repeats the sign of the next one is left out.
    repeats = (rows[:, :-1] == sign) & ((rows[:, 1:] >= 128) == (sign > 0))
    first = np.cumprod(repeats, axis=1, dtype=np.uint8).sum(axis=1, dtype=np.int32)
    data = rows[np.arange(16) >= first[:, None]]
    offsets = np.concatenate([[0], np.cumsum(16 - first)]).astype(np.int32)
    return from_offsets(offsets, data)


def _hash_texts(column: pa.Array, seeds: Words) -> Words:
    """Hashes the first words of all texts, then the second words of all texts that have one, and so on."""
    lengths, starts = lengths_of(column), offsets_of(column)[:-1].astype(np.int64)
    data = bytes_of(column)
    hashed = seeds.copy()
    whole = lengths // 4
    windows = np.ndarray((max(0, len(data) - 3),), dtype="<u4", buffer=data, strides=(1,)) if len(data) > 3 else None
    for n in range(int(whole.max(initial=0))):
        left = np.nonzero(whole > n)[0]
        assert windows is not None
        hashed[left] = _mix_all(hashed[left], windows[starts[left] + 4 * n])
    signed = data.view(np.int8)
    for n in range(3):
        left = np.nonzero(lengths - 4 * whole > n)[0]
        byte = signed[starts[left] + 4 * whole[left] + n]
        hashed[left] = _mix_all(hashed[left], byte.astype(np.int32).view(np.uint32))
    return _finish_all(hashed, lengths.view(np.uint32))


def _mix_all(hashed: Words, words: Words) -> Words:
    words = words * np.uint32(_C1)
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    hashed = hashed ^ (words * np.uint32(_C2))
    hashed = (hashed << np.uint32(13)) | (hashed >> np.uint32(19))
    return hashed * np.uint32(5) + np.uint32(0xE6546B64)


def _finish_all(hashed: Words, length: int | npt.NDArray[Any]) -> Words:
    hashed = hashed ^ (np.uint32(length) if isinstance(length, int) else length)
    hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashed ^ (hashed >> np.uint32(16))
