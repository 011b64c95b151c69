"""The types of keys and row values, under Spark's names.

A type is written as Spark's `simpleString` does (`bigint`, `decimal(10,2)`), so that the app's file has readable
schemas. This module alone maps types: from the text to the Arrow type of a column and the Python type of a value.
"""

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache

import msgspec
import pyarrow as pa

from holdfast.errors import TopologyError

_TYPES: dict[str, tuple[pa.DataType, type]] = {
    "string": (pa.string(), str),
    "binary": (pa.binary(), bytes),
    "tinyint": (pa.int8(), int),
    "smallint": (pa.int16(), int),
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "boolean": (pa.bool_(), bool),
    "date": (pa.date32(), dt.date),
    "timestamp": (pa.timestamp("us", "UTC"), dt.datetime),
    "timestamp_ntz": (pa.timestamp("us"), dt.datetime),
}
_OTHER_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_LONG_DIGITS = 18
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")

NAMES = (*_TYPES, "decimal(p,s)")
"""All types, for messages."""


@dataclass(frozen=True)
class FieldType:
    """One type.

    >>> FieldType.parse("bigint").arrow
    DataType(int64)
    >>> str(FieldType.parse("decimal(10, 2)")), FieldType.parse("decimal(10,2)").python
    ('decimal(10,2)', <class 'decimal.Decimal'>)
    """

    name: str
    precision: int = 0
    scale: int = 0

    @classmethod
    def parse(cls, text: str) -> "FieldType":
        return _parse(text)

    @classmethod
    def of_arrow(cls, arrow: pa.DataType) -> "FieldType":
        """The type of an Arrow column, as Spark would name it.

        >>> str(FieldType.of_arrow(pa.timestamp("us", "Europe/Bern")))
        'timestamp'
        """
        if pa.types.is_decimal128(arrow):
            return cls("decimal", arrow.precision, arrow.scale)
        if pa.types.is_timestamp(arrow):
            return cls("timestamp" if arrow.tz else "timestamp_ntz")
        if pa.types.is_large_string(arrow):
            return cls("string")
        if pa.types.is_large_binary(arrow):
            return cls("binary")
        for name, (known, _) in _TYPES.items():
            if known == arrow:
                return cls(name)
        raise TopologyError(f"Arrow type {arrow} has no store type. Cast the column to one of {', '.join(NAMES)}.")

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name

    @cached_property
    def arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale) if self.name == "decimal" else _TYPES[self.name][0]

    @property
    def python(self) -> type:
        return Decimal if self.name == "decimal" else _TYPES[self.name][1]

    @property
    def fits_long(self) -> bool:
        """Whether a decimal without its point fits 64 bits, whatever its digits. Spark hashes and stores it as such."""
        return self.precision <= _LONG_DIGITS

    @property
    def bits(self) -> int | None:
        """The width of an integer type; None for other types."""
        return _BITS.get(self.name)

    @property
    def is_variable(self) -> bool:
        """Whether values differ in length, as text and bytes do."""
        return self.name in ("string", "binary")


@lru_cache(maxsize=1024)
def _parse(text: str) -> FieldType:
    plain = text.strip().lower()
    plain = _OTHER_NAMES.get(plain, plain)
    if plain in _TYPES:
        return FieldType(plain)
    if match := _DECIMAL.fullmatch(plain):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return FieldType("decimal", precision, scale)
        raise TopologyError(f"{text!r} is not a decimal type. Use 1 to 38 digits, and a scale of at most as many.")
    raise TopologyError(f"{text!r} is not a type of keys and rows. Use one of {', '.join(NAMES)}.")


class Field(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A named, typed part of a key or a row. The type is stored as text.

    >>> Field("score", "long")
    Field(name='score', type='bigint')
    """

    name: str
    type: str
    hidden_in: str = ""
    """The aggregate whose merges need this column, if users don't see it; otherwise empty."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "type", str(FieldType.parse(self.type)))

    @property
    def field_type(self) -> FieldType:
        return _parse(self.type)


class Schema(msgspec.Struct, frozen=True):
    """The fields of a key or of a row, in order.

    >>> print(Schema.of(player="string", day="date"))
    player string, day date
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TopologyError(f"a schema names {', '.join(twice)} more than once. Give every field its own name.")

    @classmethod
    def of(cls, **types: str) -> "Schema":
        return cls(tuple(Field(name, type_) for name, type_ in types.items()))

    @classmethod
    def of_arrow(cls, arrow: pa.Schema) -> "Schema":
        return cls(tuple(Field(field.name, str(FieldType.of_arrow(field.type))) for field in arrow))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([(field.name, field.field_type.arrow) for field in self.fields])

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self.fields)
