"""An aggregate's row as one value of a codec that knows nothing of columns: MessagePack, JSON, Avro, or a user's own.

The value is a dict from column to value, hidden columns too, in the order of the layout, None for null. Its type is a
TypedDict made from the layout, so a codec of a user's that is given its type reads dates and decimals as what they are.

What a format has no form of its own for is written so that it comes back:

    MessagePack   dates and times without a zone as ISO text, decimals as their digits
    JSON          the same, times as ISO text, bytes as base64, NaN and the infinities as "NaN", "Infinity", "-Infinity"
    Avro          a record of unions with null, null first: dates in days and times in microseconds since 1970, decimals
                  as the bytes of the unscaled number, as Avro's logical types of these names have them. Avro's names
                  don't allow what columns may be called, and stand in no byte: the fields are f0, f1 ...
"""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypedDict, cast

import msgspec

from holdfast.errors import BadValue, TopologyError, shown
from holdfast.stores.codecs.avro import Plain
from holdfast.stores.codecs.names import users_own
from holdfast.stores.formats import scalars
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.schema.text import NULL, FieldShape, OneOf, Record, Scalar

Row = dict[str, object]

_TIMES: dict[str, Any] = {
    "timestamp": Annotated[dt.datetime, msgspec.Meta(tz=True)],
    "timestamp_ntz": Annotated[dt.datetime, msgspec.Meta(tz=False)],
}
_NO_NUMBER: Any = Literal["NaN", "Infinity", "-Infinity"]
_REALS = ("float", "double")
_WHOLE = ("date", "timestamp", "timestamp_ntz")
_AVRO = {"string": "str", "binary": "bytes", "float": "float", "double": "float", "boolean": "bool", "decimal": "bytes"}


class Form(Protocol):
    """Rows of one layout as bytes, one by one. What it raises says why; who calls says which row of which store."""

    def write(self, row: Row) -> bytes: ...

    def read(self, data: bytes) -> Row: ...


def form_of(codec: str, schema: Schema) -> Form:
    """The form of a layout in the codec of an id.

    >>> form_of("json/1", Schema.of(plays="bigint", best="double")).write({"plays": 2, "best": float("nan")})
    b'{"plays":2,"best":"NaN"}'
    """
    match codec:
        case "msgpack/1":
            return _MessagePack(schema)
        case "json/1":
            return _Json(schema)
        case "avro/1":
            return _Avro(schema)
    if ":" in codec:
        return _Own(codec, schema)
    raise TopologyError(f"there is no codec {codec!r} for rows in this release. Use the release that wrote it.")


def row_type(schema: Schema, *, reals: Any = float) -> Any:
    """The type of a layout's rows.

    >>> row_type(Schema.of(n="bigint", day="date")).__annotations__
    {'n': int | None, 'day': datetime.date | None}
    """
    types = {field.name: _type(field, reals) | None for field in schema.fields}
    return cast(Any, TypedDict)("Row", types)


def _type(field: Field, reals: Any) -> Any:
    kind = field.field_type
    return reals if kind.name in _REALS else _TIMES.get(kind.name, kind.python)


class _MessagePack:
    def __init__(self, schema: Schema) -> None:
        self._decimals = _named(schema, "decimal")
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], Row] = msgspec.msgpack.Decoder(row_type(schema)).decode

    def write(self, row: Row) -> bytes:
        return self._encode(_in_digits(row, self._decimals) if self._decimals else row)

    def read(self, data: bytes) -> Row:
        return self._decode(data)


class _Json:
    def __init__(self, schema: Schema) -> None:
        self._decimals = _named(schema, "decimal")
        self._reals = _named(schema, *_REALS)
        self._encode = msgspec.json.Encoder().encode
        self._decode: Callable[[bytes], Row] = msgspec.json.Decoder(row_type(schema, reals=float | _NO_NUMBER)).decode

    def write(self, row: Row) -> bytes:
        if self._decimals:
            row = _in_digits(row, self._decimals)
        for name in self._reals:
            real = cast(float | None, row[name])
            if real is not None and not math.isfinite(real):
                row = {**row, name: "NaN" if math.isnan(real) else "Infinity" if real > 0 else "-Infinity"}
        return self._encode(row)

    def read(self, data: bytes) -> Row:
        row = self._decode(data)
        for name in self._reals:
            if isinstance(row[name], str):
                row[name] = float(cast(str, row[name]))
        return row


def _in_digits(row: Row, names: tuple[str, ...]) -> Row:
    """The same with decimals as plain digits: msgspec would write some of them as 1E-7."""
    return row | {name: None if row[name] is None else format(cast(Decimal, row[name]), "f") for name in names}


class _Avro:
    def __init__(self, schema: Schema) -> None:
        shapes = [OneOf((NULL, Scalar(_AVRO.get(field.field_type.name, "int")))) for field in schema.fields]
        self._plain = Plain(Record(tuple(FieldShape(f"f{n}", shape) for n, shape in enumerate(shapes))))
        self._names = {f"f{n}": field.name for n, field in enumerate(schema.fields)}
        changed = {f"f{n}": _as_numbers(field) for n, field in enumerate(schema.fields)}
        self._changed = [(own, *both) for own, both in changed.items() if both is not None]

    def write(self, row: Row) -> bytes:
        plain = {own: row[name] for own, name in self._names.items()}
        for own, number, _ in self._changed:
            if plain[own] is not None:
                plain[own] = number(plain[own])
        return self._plain.write(plain)

    def read(self, data: bytes) -> Row:
        plain = self._plain.read(data)
        for own, _, value in self._changed:
            if plain[own] is not None:
                plain[own] = value(plain[own])
        return {name: plain[own] for own, name in self._names.items()}


def _as_numbers(field: Field) -> tuple[Callable[[object], object], Callable[[Any], object]] | None:
    """How a value becomes what Avro writes of it, and back; None where it is the same."""
    if field.field_type.name in _WHOLE:
        return partial(scalars.whole_number, field, error=BadValue), partial(scalars.from_whole_number, field)
    if field.field_type.name != "decimal":
        return None

    def written(value: object) -> bytes:
        number = scalars.unscaled(field, value, BadValue)
        return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)

    def read(data: bytes) -> Decimal:
        return scalars.from_unscaled(field, int.from_bytes(data, "big", signed=True))

    return written, read


class _Own:
    """A user's codec. It isn't taken at its word: what it wrote is read back, since merges go on from what it reads."""

    def __init__(self, place: str, schema: Schema) -> None:
        self._type = row_type(schema)
        self._codec = users_own(place, self._type)

    def write(self, row: Row) -> bytes:
        data: object = self._codec.encode(dict(row))
        if not isinstance(data, bytes) or not data:
            raise BadValue(f"it gave {shown(data)}, which are no bytes, or none at all")
        if not _same(row, back := self.read(data)):
            raise BadValue(f"it reads back as {shown(back)}")
        return data

    def read(self, data: bytes) -> Row:
        row: Row = msgspec.convert(self._codec.decode(data), self._type)
        return row


def _same(one: Row, other: Row) -> bool:
    """Equal, a NaN being equal to a NaN."""
    pairs = [(value, other[name]) for name, value in one.items()]
    return all(value == found or (value != value and found != found) for value, found in pairs)


def _named(schema: Schema, *types: str) -> tuple[str, ...]:
    return tuple(field.name for field in schema.fields if field.field_type.name in types)
