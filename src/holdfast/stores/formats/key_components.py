"""The components of a key: one value or a whole column as ordered bytes, and back, for each group of types.

A key is a sequence of components; the docstring of `keys` has their bytes. The functions for one value and for a column
are side by side here because their results must never differ.
"""

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadKey, DamagedObject
from holdfast.stores.formats import scalars
from holdfast.stores.formats.byte_columns import (
    Bytes,
    Offsets,
    as_type,
    bytes_of,
    cut,
    numbers_at,
    offsets_of,
    retyped,
    with_nulls,
)
from holdfast.stores.formats.types import Field, Schema

_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_U64 = struct.Struct(">Q")
_F64 = struct.Struct(">d")
_NAN_BITS = 0x7FF8000000000000
_END = b"\x00\x00"
_ESCAPED = b"\x00\xff"


def damaged(why: str) -> DamagedObject:
    return DamagedObject(
        f"a stored key can't be read: {why}. Check that the store's key type is the one it was written with."
    )


def other_parts(given: int, schema: Schema, what: str = "key") -> BadKey:
    """The refusal of a key, or of the prefix of one, with another number of parts than the store's.

    >>> str(other_parts(1, Schema.of(game="string", player="string")))
    "a key of 1 part was given, and the store's key has 2: game string, player string."
    """
    parts = "1 part" if given == 1 else f"{given} parts"
    return BadKey(f"a {what} of {parts} was given, and the store's key has {len(schema.fields)}: {schema}.")


class Component(Protocol):
    @property
    def field(self) -> Field: ...

    def encode(self, value: object) -> bytes: ...

    def encode_beginning(self, value: object) -> bytes:
        """The common prefix of all values that begin with this one."""

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        """The value at a position, and the position after it."""

    def encode_column(self, column: pa.Array) -> Bytes | pa.BinaryArray:
        """A matrix if all values have the same width, otherwise an array."""

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        """The values at a position of each key, and the positions after them."""


class _Fixed(ABC):
    """A component of fixed width."""

    field: Field

    @property
    @abstractmethod
    def width(self) -> int:
        """How many bytes it has."""

    @abstractmethod
    def encode(self, value: object) -> bytes: ...

    def encode_beginning(self, value: object) -> bytes:
        return self.encode(value)

    def _check(self, data: bytes, place: int) -> None:
        if len(data) < place + self.width:
            raise damaged(f"{self.field.name} needs {self.width} bytes and {max(0, len(data) - place)} are left")

    def _places(self, at: Offsets, stops: Offsets) -> Offsets:
        after: Offsets = at + np.int32(self.width)
        if (after > stops).any():
            raise damaged(f"{self.field.name} needs {self.width} bytes and fewer are left")
        return after


@dataclass(frozen=True)
class NumberComponent(_Fixed):
    """Integers, dates and timestamps: 8 bytes, big-endian, sign bit flipped."""

    field: Field
    width = 8

    def encode(self, value: object) -> bytes:
        return _U64.pack(scalars.whole_number(self.field, value, BadKey) + _SIGN)

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        self._check(data, place)
        number = _U64.unpack_from(data, place)[0] - _SIGN
        return scalars.from_whole_number(self.field, number), place + 8

    def encode_column(self, column: pa.Array) -> Bytes:
        numbers = fixed_numbers(column).astype(np.int64, copy=False).view(np.uint64) ^ np.uint64(_SIGN)
        return numbers.byteswap().view(np.uint8).reshape(len(column), 8)

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        after = self._places(at, stops)
        numbers = (numbers_at(keys, at, ">u8") ^ np.uint64(_SIGN)).view(np.int64)
        return with_nulls(numbers.astype(numpy_type(self.field), copy=False), self.field.field_type.arrow, None), after


@dataclass(frozen=True)
class DecimalComponent(_Fixed):
    """Decimals: the number without its point, as many digits as the type has. Big-endian, sign bit flipped.

    8 bytes for up to 18 digits, and 16 for more. Arrow has 16 bytes per decimal, the lower 8 first.
    """

    field: Field

    @property
    def width(self) -> int:
        return 8 if self.field.field_type.fits_long else 16

    def encode(self, value: object) -> bytes:
        number = scalars.unscaled(self.field, value, BadKey)
        return (number + (1 << (8 * self.width - 1))).to_bytes(self.width, "big")

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        self._check(data, place)
        after = place + self.width
        number = int.from_bytes(data[place:after], "big") - (1 << (8 * self.width - 1))
        return scalars.from_unscaled(self.field, number), after

    def encode_column(self, column: pa.Array) -> Bytes:
        low, high = decimal_words(column)
        words = [low ^ np.uint64(_SIGN)] if self.width == 8 else [high ^ np.uint64(_SIGN), low]
        return np.column_stack(words).byteswap().view(np.uint8).reshape(len(column), self.width)

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        after = self._places(at, stops)
        first = (numbers_at(keys, at, ">u8") ^ np.uint64(_SIGN)).astype(np.uint64)
        if self.width == 8:
            low, high = first, (first.view(np.int64) >> np.int64(63)).view(np.uint64)
        else:
            low, high = numbers_at(keys, at + np.int32(8), ">u8").astype(np.uint64), first
        data = pa.py_buffer(np.ascontiguousarray(np.column_stack([low, high])))
        return pa.Array.from_buffers(self.field.field_type.arrow, len(at), [None, data]), after


@dataclass(frozen=True)
class Truth(_Fixed):
    """Booleans: 1 byte."""

    field: Field
    width = 1

    def encode(self, value: object) -> bytes:
        return bytes([scalars.whole_number(self.field, value, BadKey)])

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        self._check(data, place)
        return data[place] != 0, place + 1

    def encode_column(self, column: pa.Array) -> Bytes:
        return column.cast(pa.uint8()).to_numpy().reshape(len(column), 1)  # type: ignore[no-any-return]

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        after = self._places(at, stops)
        return with_nulls(bytes_of(keys)[at] != 0, pa.bool_(), None), after


@dataclass(frozen=True)
class Real(_Fixed):
    """Floats and doubles: the IEEE bits of the double, changed to sort; one zero, one NaN, the NaN last."""

    field: Field
    width = 8

    def encode(self, value: object) -> bytes:
        number = scalars.real_number(self.field, value, BadKey) + 0.0  # -0.0 + 0.0 is 0.0
        bits = _NAN_BITS if number != number else _U64.unpack(_F64.pack(number))[0]
        return _U64.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        self._check(data, place)
        bits = _U64.unpack_from(data, place)[0]
        return _F64.unpack(_U64.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0], place + 8

    def encode_column(self, column: pa.Array) -> Bytes:
        numbers = fixed_numbers(column).astype(np.float64) + 0.0
        bits = numbers.view(np.uint64)
        bits[np.isnan(numbers)] = _NAN_BITS
        negative = (bits >> np.uint64(63)).astype(bool)
        ordered = bits ^ np.where(negative, np.uint64(_ALL), np.uint64(_SIGN))
        return ordered.byteswap().view(np.uint8).reshape(len(column), 8)

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        after = self._places(at, stops)
        ordered = numbers_at(keys, at, ">u8")
        positive = (ordered >> np.uint64(63)).astype(bool)
        numbers = (ordered ^ np.where(positive, np.uint64(_SIGN), np.uint64(_ALL))).view(np.float64)
        return with_nulls(numbers.astype(numpy_type(self.field), copy=False), self.field.field_type.arrow, None), after


@dataclass(frozen=True)
class Rest:
    """Text or bytes as the last component: unchanged."""

    field: Field

    def encode(self, value: object) -> bytes:
        return scalars.text_or_bytes(self.field, value, BadKey)

    def encode_beginning(self, value: object) -> bytes:
        return self.encode(value)

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        return _value(self.field, data[place:]), len(data)

    def encode_column(self, column: pa.Array) -> pa.BinaryArray:
        return column.view(pa.binary())

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        return _typed(self.field, cut(keys, at, stops)), stops


@dataclass(frozen=True)
class EndedComponent:
    """Text or bytes before other components: escaped, with an end marker that sorts before everything."""

    field: Field

    def encode(self, value: object) -> bytes:
        return self.encode_beginning(value) + _END

    def encode_beginning(self, value: object) -> bytes:
        return scalars.text_or_bytes(self.field, value, BadKey).replace(b"\x00", _ESCAPED)

    def decode(self, data: bytes, place: int) -> tuple[object, int]:
        end = data.find(_END, place)
        if end < 0:
            raise damaged(f"{self.field.name} has no end")
        return _value(self.field, data[place:end].replace(_ESCAPED, b"\x00")), end + 2

    def encode_column(self, column: pa.Array) -> pa.BinaryArray:
        raw = column.view(pa.binary())
        return pc.replace_substring(raw, pattern=b"\x00", replacement=_ESCAPED) if _has_zero(raw) else raw

    def decode_column(self, keys: pa.BinaryArray, at: Offsets, stops: Offsets) -> tuple[pa.Array, Offsets]:
        rest = cut(keys, at, stops)
        # A 0x00 within the value is followed by 0xFF, so the first 0x0000 is the end.
        lengths: npt.NDArray[np.int32] = pc.find_substring(rest, pattern=_END).to_numpy()
        if (lengths < 0).any():
            raise damaged(f"{self.field.name} has no end")
        ends: Offsets = at + lengths
        raw = cut(keys, at, ends)
        if _has_zero(raw):
            raw = pc.replace_substring(raw, pattern=_ESCAPED, replacement=b"\x00")
        return _typed(self.field, raw), ends + np.int32(2)


def component_of(field: Field, *, last: bool) -> Component:
    match field.field_type.name:
        case "string" | "binary":
            return Rest(field) if last else EndedComponent(field)
        case "boolean":
            return Truth(field)
        case "float" | "double":
            return Real(field)
        case "decimal":
            return DecimalComponent(field)
        case _:
            return NumberComponent(field)


def key_column(field: Field, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in the field's Arrow type. Nulls are rejected."""
    try:
        typed = as_type(column, field.field_type.arrow)
    except pa.ArrowInvalid as error:
        raise BadKey(f"column {field.name} of type {column.type} doesn't fit {field.type}: {error}.") from error
    except pa.ArrowNotImplementedError as error:
        raise BadKey(f"column {field.name} is {column.type}, and the key's {field.name} is {field.type}.") from error
    if typed.null_count:
        raise BadKey(
            f"{typed.null_count} of {len(typed)} values of {field.name} are null. A key has no nulls: filter them."
        )
    return typed


def numpy_type(field: Field) -> np.dtype[Any]:
    """The numpy type of the buffer of an Arrow array of this fixed-width field."""
    names = {"tinyint": "i1", "smallint": "i2", "int": "i4", "date": "i4", "float": "f4", "double": "f8"}
    return np.dtype(names.get(field.type, "i8"))


def fixed_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """The numbers in a fixed-width array's buffer, dates and timestamps as integers, and anything for a null."""
    width = column.type.bit_width // 8
    kind = "f" if pa.types.is_floating(column.type) else "i"
    if len(column) == 0:
        return np.empty(0, dtype=f"{kind}{width}")
    return np.frombuffer(column.buffers()[1], dtype=f"{kind}{width}")[column.offset : column.offset + len(column)]


def decimal_words(column: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The lower and the upper 8 bytes of a column of decimals without their points."""
    if len(column) == 0:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
    words = np.frombuffer(column.buffers()[1], dtype="<u8").reshape(-1, 2)[column.offset : column.offset + len(column)]
    return words[:, 0], words[:, 1]


def _has_zero(raw: pa.BinaryArray) -> bool:
    offsets = offsets_of(raw)
    return not bytes_of(raw)[offsets[0] : offsets[-1]].all()


def _value(field: Field, raw: bytes) -> object:
    if field.type == "binary":
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise damaged(f"{field.name} isn't UTF-8") from error


def _typed(field: Field, raw: pa.BinaryArray) -> pa.Array:
    try:
        return retyped(raw, field.field_type.arrow)
    except pa.ArrowInvalid as error:
        raise damaged(f"{field.name} isn't UTF-8") from error
