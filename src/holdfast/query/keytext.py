"""Keys as text: how a key is written in a URL, and in the `key` of an answer.

A key of one component is written as it is: `alice`, `42`, `2026-01-31`. A key of several components is a JSON array:
`["alice", 42]`. The key in an answer, percent-encoded, is always valid in a URL and finds the same entry. Only the
store's key schema decides which texts are valid: `42` is a string in one store and a number in the next. A text that
isn't valid gets an error with the schema and a valid example.
"""

import base64
import binascii
import datetime as dt
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import BadKey
from holdfast.stores.formats.scalars import from_text, from_unscaled, unscaled
from holdfast.stores.formats.types import Field, Schema

_INTS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_FLOATS = ("float", "double")
_NUMBER = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|NaN|-?Infinity")
_PLAIN = re.compile(r"-?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})")
_INTEGER = re.compile(r"-?[0-9]{1,19}")


class _Written(str):
    """A number in JSON that isn't a whole one, as it is written: all its digits may count."""

    __slots__ = ()


_decode = msgspec.json.Decoder(float_hook=_Written).decode
decode_keys = msgspec.json.Decoder(list[Any], float_hook=_Written).decode
"""Reads a JSON array of keys, for `parse_json_key`."""

_EXAMPLES: dict[str, object] = {
    "string": "alice",
    "binary": "aGVsbG8=",
    "tinyint": 7,
    "smallint": 42,
    "int": 42,
    "bigint": 42,
    "float": 1.5,
    "double": 1.5,
    "boolean": True,
    "date": "2026-01-31",
    "timestamp": "2026-01-31T12:00:00Z",
    "timestamp_ntz": "2026-01-31T12:00:00",
}

_HINTS = {
    "binary": "base64, with either alphabet",
    "date": "an ISO date",
    "timestamp": "an ISO time with a zone; in a URL write + as %2B, or use Z",
    "timestamp_ntz": "an ISO time without a zone",
    "boolean": "true or false",
    "float": "a number, NaN, Infinity or -Infinity",
    "double": "a number, NaN, Infinity or -Infinity",
}


class BadKeyText(BadKey):
    """A text that is not a key of the store. Has an example of one."""

    def __init__(self, schema: Schema, fact: str) -> None:
        self.schema = str(schema)
        self.example = example(schema)
        self.what_to_do = f"Give {_expectation(schema)}, such as {self.example}"
        if len(schema.fields) > 1:
            self.what_to_do += " (percent-encoded in a URL)"
        self.what_to_do += "."
        super().__init__(f"{fact} The key is ({self.schema}). {self.what_to_do}")
        self.fact = f"{fact} The key is ({self.schema})."


def example(schema: Schema) -> str:
    """A text that is a key of this schema.

    >>> example(Schema.of(player="string", level="int"))
    '["alice",42]'
    >>> example(Schema.of(_all="string", player="string"))
    '["all","alice"]'
    """
    # The group of a leaderboard of all rows has one key.
    values = ["all" if field.name == "_all" else _example_of(field) for field in schema.fields]
    return _text(values[0] if len(values) == 1 else values)


def _example_of(field: Field) -> object:
    kind = field.field_type
    if kind.name == "decimal":
        return render_scalar(from_unscaled(field, 10 ** min(kind.scale, kind.precision - 1)))
    return _EXAMPLES[field.type]


def parse_key(schema: Schema, text: str, *, whole: bool = True) -> tuple[object, ...]:
    """The key's values, read from the text of a URL. With `whole=False` the first few components are enough.

    >>> parse_key(Schema.of(player="string"), "42")
    ('42',)
    >>> parse_key(Schema.of(player="string", level="int"), '["alice", 7]')
    ('alice', 7)
    """
    if len(schema.fields) == 1:
        return key_parser(schema)(text)
    try:
        parts = _decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise BadKeyText(schema, f"{text[:200]!r} is not a JSON array.") from None
    return _parse_components(schema, parts, text, whole=whole)


def _parse_components(schema: Schema, parts: object, shown: str, *, whole: bool = True) -> tuple[object, ...]:
    if not isinstance(parts, list):
        raise BadKeyText(schema, f"{shown[:200]!r} is not a JSON array.")
    wanted = len(schema.fields)
    if not (len(parts) == wanted or (not whole and 1 <= len(parts) < wanted)):
        raise BadKeyText(schema, f"{shown[:200]!r} has {len(parts)} components, not {wanted}.")
    return tuple(
        _parse(schema, field, _component_text(schema, field, part), part)
        for field, part in zip(schema.fields, parts, strict=False)
    )


def key_parser(schema: Schema) -> Callable[[str], tuple[object, ...]]:
    """`parse_key` for whole keys of one schema."""
    if len(schema.fields) > 1:
        return partial(parse_key, schema)
    (field,) = schema.fields
    parse = _parser(field)

    def parsed(text: str) -> tuple[object, ...]:
        try:
            return (parse(text),)
        except (ValueError, OverflowError, binascii.Error):
            raise _misfit(schema, field, text) from None

    return parsed


def parse_json_key(schema: Schema, key: object) -> tuple[object, ...]:
    """The key's values, read from JSON as `render_key` writes it. `decode_keys` has kept all digits of its numbers.

    >>> parse_json_key(Schema.of(player="string", level="int"), ["alice", 7])
    ('alice', 7)
    >>> parse_json_key(Schema.of(price="decimal(20,2)"), *decode_keys("[9007199254740993.01]"))
    (Decimal('9007199254740993.01'),)
    """
    if len(schema.fields) > 1:
        return _parse_components(schema, key, _shown(key))
    return (_parse(schema, schema.fields[0], _component_text(schema, schema.fields[0], key), key),)


def render_key(schema: Schema, values: Sequence[object]) -> object:
    """The key in an answer: a JSON value, or a list of them for a key of several components.

    >>> render_key(Schema.of(day="date"), (dt.date(2026, 1, 31),))
    '2026-01-31'
    """
    rendered = [render_scalar(value) for value in values]
    return rendered[0] if len(schema.fields) == 1 else rendered


def key_text(schema: Schema, values: Sequence[object]) -> str:
    """The key in a URL, before percent-encoding. `parse_key` reads it back."""
    return _text(render_key(schema, values))


def render_scalar(value: object) -> object:
    """One value in JSON, where JSON alone would lose something.

    Decimals, dates and times are strings, bytes are base64. JSON has no NaN and no infinities, so they are the strings
    "NaN", "Infinity" and "-Infinity", which Spark's `to_json` and Protocol Buffers write too: null would look like a
    missing value.

    >>> render_scalar(float("-inf")), render_scalar(b"hello")
    ('-Infinity', 'aGVsbG8=')
    """
    match value:
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            text = value.isoformat()
            return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text
        case dt.date():
            return value.isoformat()
        case None | bool() | int() | str():
            return value
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)  # plain digits, all of them
        case _:
            return str(value)


def _text(rendered: object) -> str:
    return rendered if isinstance(rendered, str) else msgspec.json.encode(rendered).decode()


def _expectation(schema: Schema) -> str:
    if len(schema.fields) > 1:
        return "a JSON array of its components"
    kind = schema.fields[0].type
    hint = "plain digits, no exponent" if schema.fields[0].field_type.name == "decimal" else _HINTS.get(kind)
    return f"{'an' if kind == 'int' else 'a'} {kind}" + (f" ({hint})" if hint else "")


def _component_text(schema: Schema, field: Field, part: object) -> str:
    """A component of a JSON array as the text it would be alone, if its JSON type is one the field can be."""
    match part:
        case _Written():
            if field.type in _FLOATS or field.field_type.name == "decimal":
                return str(part)
        case bool() if field.type == "boolean":
            return "true" if part else "false"
        case int() if (field.type in _INTS or field.type in _FLOATS) and not isinstance(part, bool):
            return str(part)
        case int() if field.field_type.name == "decimal" and not isinstance(part, bool):
            return str(part)
        case str() if field.type in _FLOATS and part in ("NaN", "Infinity", "-Infinity"):
            return part
        case str() if field.type not in _INTS and field.type not in _FLOATS and field.type != "boolean":
            return part
    raise _misfit(schema, field, part)


def _parse(schema: Schema, field: Field, text: str, shown: object) -> object:
    try:
        return _parser(field)(text)
    except (ValueError, OverflowError, binascii.Error):
        raise _misfit(schema, field, shown) from None


def _parser(field: Field) -> Callable[[str], object]:
    if field.field_type.name == "decimal":
        return partial(_parse_decimal, field)
    if field.type in _MOMENTS:
        return partial(_parse_moment, field)
    return _PARSERS.get(field.type) or partial(_parse_int, bits=_INTS[field.type])


def _misfit(schema: Schema, field: Field, shown: object) -> BadKeyText:
    return BadKeyText(schema, f"{_shown(shown)[:200]!r} is not a valid {field.type} for {field.name!r}.")


def _shown(part: object) -> str:
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)


def _parse_string(text: str) -> str:
    text.encode()  # a lone surrogate is a ValueError here, not somewhere below
    return text


def _parse_int(text: str, bits: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(text)
    return value


def _parse_double(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    value = float(text)
    if math.isinf(value) and "Infinity" not in text:
        raise ValueError(text)
    return value


def _parse_float(text: str) -> float:
    """The nearest 32-bit number: 0.1 in a URL is the 0.1 that Spark's `float` column holds."""
    value: float = struct.unpack("<f", struct.pack("<f", _parse_double(text)))[0]
    return value


def _parse_decimal(field: Field, text: str) -> Decimal:
    """All digits count: a text with more of them than the type has isn't a key."""
    if not _PLAIN.fullmatch(text):
        raise ValueError(text)
    try:
        return from_unscaled(field, unscaled(field, Decimal(text), BadKey))
    except BadKey:
        raise ValueError(text) from None


def _parse_boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _parse_bytes(text: str) -> bytes:
    # A + in a query string arrives as a space, which base64 has no other use for.
    standard = text.replace("-", "+").replace("_", "/").replace(" ", "+").rstrip("=")
    return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def _parse_moment(field: Field, text: str) -> object:
    """A date or time; one that Python doesn't have stays the text that answers have."""
    try:
        return _MOMENTS[field.type](text)
    except ValueError:
        from_text(field, text)
        return text


def _parse_timestamp(text: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError(text)
    return value.astimezone(dt.UTC)


def _parse_timestamp_ntz(text: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError(text)
    return value


_PARSERS: dict[str, Callable[[str], object]] = {
    "string": _parse_string,
    "binary": _parse_bytes,
    "float": _parse_float,
    "double": _parse_double,
    "boolean": _parse_boolean,
}

_MOMENTS: dict[str, Callable[[str], dt.date]] = {
    "date": dt.date.fromisoformat,
    "timestamp": _parse_timestamp,
    "timestamp_ntz": _parse_timestamp_ntz,
}
