"""One value of each type as the number that is stored for it, and back.

Keys, rows and partitions share this step: a date is its days since 1970, a timestamp its microseconds, an integer
itself within its width. A value that doesn't fit is rejected here, with the field's name.
"""

import datetime as dt
import math
import re
import struct
from decimal import Context, Decimal, Inexact

import numpy as np
import pyarrow as pa

from holdfast.errors import BadKey, HoldfastError, shown
from holdfast.stores.formats.arrow_values import python_values
from holdfast.stores.formats.types import Field

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_NTZ = _EPOCH.replace(tzinfo=None)
_MICROSECOND = dt.timedelta(microseconds=1)
_F32 = struct.Struct("<f")
_EXACT = Context(prec=76, traps=[Inexact])
_DATE, _TIME = r"-?[0-9]{4,}-[0-9]{2}-[0-9]{2}", r"T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_TEXTS = {
    "date": re.compile(_DATE),
    "timestamp": re.compile(f"{_DATE}{_TIME}Z"),
    "timestamp_ntz": re.compile(f"{_DATE}{_TIME}"),
}
_INFINITE = ("infinity", "-infinity")
_KEYS = ("str", "bytes", "int", "float", "bool", "date", "datetime")


def whole_number(field: Field, value: object, error: type[HoldfastError]) -> int:
    """The integer stored for a value of an integer, boolean, date or timestamp field, or for such a text."""
    name = field.type
    bits = field.field_type.bits
    if bits is not None:
        if type(value) is not int:
            raise wrong(field, value, error)
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise error(
                f"{field.name}={value} doesn't fit a {name} of {bits} bits. Use a wider type or a smaller number."
            )
        return value
    if name == "boolean" and isinstance(value, bool):
        return int(value)
    if name == "date" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.toordinal() - _EPOCH_DAY
    if isinstance(value, dt.datetime) and name in ("timestamp", "timestamp_ntz"):
        aware = value.tzinfo is not None
        if aware and name == "timestamp":
            return (value - _EPOCH) // _MICROSECOND
        if not aware and name == "timestamp_ntz":
            return (value - _EPOCH_NTZ) // _MICROSECOND
        needs = "a time zone (say tzinfo=datetime.UTC)" if name == "timestamp" else "no time zone (drop tzinfo)"
        raise error(f"{field.name}={value!r}: a {name} has {needs}.")
    if isinstance(value, str) and name in _TEXTS:
        try:
            return from_text(field, value)
        except ValueError:
            pass  # a text as any other
    raise wrong(field, value, error)


def from_whole_number(field: Field, number: int) -> object:
    """The value of a stored integer. A date or time outside the years 1 to 9999, which Python doesn't have, is text."""
    try:
        return _from_whole_number(field.type, number)
    except (OverflowError, ValueError):
        width = pa.int32() if field.type == "date" else pa.int64()
        (text,) = python_values(pa.array([number], width).view(field.field_type.arrow))
        return text


def from_text(field: Field, text: str) -> int:
    """The integer of a date or time that Python doesn't have, from its text; a ValueError for any other text.

    >>> from_text(Field("day", "date"), "10000-01-01")
    2932897
    """
    if not (text in _INFINITE or _TEXTS[field.type].fullmatch(text)):
        raise ValueError(text)
    bits, unit = (32, "D") if field.type == "date" else (64, "us")
    if text in _INFINITE:
        number = 1 - (1 << bits - 1) if text.startswith("-") else (1 << bits - 1) - 1
    else:
        number = int(np.array(text.removesuffix("Z"), f"datetime64[{unit}]").astype(np.int64))
    if not -(1 << bits - 1) <= number < 1 << bits - 1 or from_whole_number(field, number) != text:
        raise ValueError(text)
    return number


def moment_number(field: Field, text: str) -> int:
    """The integer of any date or time, from its ISO text."""
    try:
        value = (dt.date if field.type == "date" else dt.datetime).fromisoformat(text)
    except ValueError:
        return from_text(field, text)
    return whole_number(field, value, BadKey)


def _from_whole_number(name: str, number: int) -> object:
    match name:
        case "boolean":
            return bool(number)
        case "date":
            return dt.date.fromordinal(number + _EPOCH_DAY)
        case "timestamp":
            return _EPOCH + number * _MICROSECOND
        case "timestamp_ntz":
            return _EPOCH_NTZ + number * _MICROSECOND
        case _:
            return number


def real_number(field: Field, value: object, error: type[HoldfastError]) -> float:
    """The double stored for a value of a float or double field. A float is rounded to its 32 bits, as Spark does."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(field, value, error)
    try:
        number = float(value)
        if field.type == "float" and math.isfinite(number):
            number = float(_F32.unpack(_F32.pack(number))[0])
    except OverflowError as overflow:
        raise error(f"{field.name}={value} is too large for a {field.type}. Use a wider type.") from overflow
    return number


def text_or_bytes(field: Field, value: object, error: type[HoldfastError]) -> bytes:
    if field.type == "string" and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as broken:
            raise error(
                f"{field.name}={value!r} can't be written as UTF-8: {broken.reason}. Clean the text."
            ) from broken
    if field.type == "binary" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise wrong(field, value, error)


def unscaled(field: Field, value: object, error: type[HoldfastError]) -> int:
    """The integer stored for a decimal. A value with more digits than the type has is rejected, not rounded."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise wrong(field, value, error)
    kind = field.field_type
    if value and value.adjusted() < kind.precision - kind.scale:
        try:
            shifted = _EXACT.scaleb(value, kind.scale)
            if shifted == (number := int(shifted)):
                return number
        except Inexact:
            pass  # it has more digits than any type
    elif not value:
        return 0
    raise error(f"{field.name}={shown(value)} doesn't fit {field.type}. Round it, or use another type.")


def from_unscaled(field: Field, number: int) -> Decimal:
    return _EXACT.scaleb(Decimal(number), -field.field_type.scale)


def wrong(field: Field, value: object, error: type[HoldfastError]) -> HoldfastError:
    if value is None and error is BadKey:
        return none_key(field)
    wanted, found = field.field_type.python.__name__, type(value).__name__
    fits = error is BadKey and field.name == "key" and found in _KEYS  # a processor's store, declared with key=
    other = f", or declare the store with key={found}" if fits else ""
    return error(
        f"{field.name}={shown(value)} is {_a(found)}, but {field.name} is {field.type}. Give {_a(wanted)}{other}."
    )


def none_key(field: Field) -> BadKey:
    return BadKey(f"{field.name} is None, and every entry has a key ({field.type}). Leave out records without one.")


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
