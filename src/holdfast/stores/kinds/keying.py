"""Keys of typed stores as bytes, one at a time and as quickly as Python can.

`stores.keys` says what a key's bytes are. Here the way there is chosen once, when a store is bound: a key of one text
or one integer needs a handful of steps, and those are by far the most. Windows, sessions and histories have times after
the key; then no component of the key is the last, and each time is 8 bytes like any integer.
"""

import contextlib
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

from holdfast.errors import BadKey
from holdfast.stores.components import Component, Ended, Number, component_of
from holdfast.stores.keys import FORMAT, MAX_KEY_BYTES, decode_key
from holdfast.stores.types import Field, Schema

_SIGN = 1 << 63
_LONG = struct.Struct(">BQ")
_TIME = struct.Struct(">Q")
_END = b"\x00\x00"
_SHORT = MAX_KEY_BYTES // 8  # characters that are certainly within the limit, escaped or not

Encoder = Callable[[Any], bytes]
Decoder = Callable[[bytes], Any]


def key_encoder(schema: Schema) -> Encoder:
    """What turns a key into bytes; a key of several components is a tuple.

    >>> from holdfast.stores.keys import key_schema
    >>> key_encoder(key_schema(str))("ann"), key_encoder(key_schema(int))(1).hex()
    (b'\\x01ann', '018000000000000001')
    """
    return _encoder(schema, whole=True)


def keys_encoder(schema: Schema) -> Callable[[Sequence[Any]], list[bytes]]:
    """What turns many keys into bytes at once.

    >>> from holdfast.stores.keys import key_schema
    >>> keys_encoder(key_schema(str))(["ann", "bob"])
    [b'\\x01ann', b'\\x01bob']
    """
    encode = key_encoder(schema)

    def texts(keys: Sequence[Any]) -> list[bytes]:
        if set(map(type, keys)) == {str} and max(map(len, keys)) < _SHORT:
            with contextlib.suppress(UnicodeEncodeError):
                return [FORMAT + key for key in map(str.encode, keys)]
        return [encode(key) for key in keys]

    def numbers(keys: Sequence[Any]) -> list[bytes]:
        if set(map(type, keys)) == {int} and min(keys) >= -_SIGN and max(keys) < _SIGN:
            return [_LONG.pack(1, key + _SIGN) for key in keys]
        return [encode(key) for key in keys]

    if len(schema.fields) == 1 and schema.fields[0].type == "string":
        return texts
    if len(schema.fields) == 1 and schema.fields[0].type == "bigint":
        return numbers
    return lambda keys: [encode(key) for key in keys]


def keys_decoder(schema: Schema) -> Callable[[Sequence[bytes]], list[Any]]:
    """What turns many stored keys back at once."""
    decode = key_decoder(schema)

    def texts(stored: Sequence[bytes]) -> list[Any]:
        with contextlib.suppress(UnicodeDecodeError):
            return [key[1:].decode() for key in stored]
        return [decode(key) for key in stored]

    if len(schema.fields) == 1 and schema.fields[0].type == "string":
        return texts
    return lambda stored: [decode(key) for key in stored]


def key_decoder(schema: Schema) -> Decoder:
    """What turns stored bytes into a key again."""
    if len(schema.fields) > 1:
        return lambda data: decode_key(schema, data)
    if schema.fields[0].type == "string":
        return lambda data: _text(schema, data)
    return lambda data: decode_key(schema, data)[0]


def beginning_encoder(schema: Schema) -> Encoder:
    """What turns a key into the bytes with which its windows, sessions or old values begin.

    >>> from holdfast.stores.keys import key_schema
    >>> beginning_encoder(key_schema(str))("ann")
    b'\\x01ann\\x00\\x00'
    """
    return _encoder(schema, whole=False)


def beginning_decoder(schema: Schema, times: int) -> Decoder:
    """What turns the stored key of a window, session or old value, with its times after it, into the key."""
    after = tuple(Field(f"$time_{n}", "bigint") for n in range(times))
    whole, parts = Schema(schema.fields + after), len(schema.fields)
    if parts == 1:
        return lambda data: decode_key(whole, data)[0]
    return lambda data: decode_key(whole, data)[:parts]


def time_bytes(time: int) -> bytes:
    """A time, or any signed number, within a key.

    >>> time_bytes(5).hex()
    '8000000000000005'
    """
    if -_SIGN <= time < _SIGN:
        return _TIME.pack(time + _SIGN)
    return b"\x00" * 8 if time < 0 else b"\xff" * 8


def time_at(data: bytes, place: int) -> int:
    """The time that begins at a place of a key, counted from its end if negative."""
    number: int = _TIME.unpack_from(data, place)[0]
    return number - _SIGN


def _encoder(schema: Schema, *, whole: bool) -> Encoder:
    """All components one after the other; `whole`: nothing comes after them."""
    last = len(schema.fields) - 1
    components = [component_of(field, last=whole and n == last) for n, field in enumerate(schema.fields)]
    if last == 0:
        return _single(schema.fields[0], components[0], ended=not whole)
    encoders = [_part(component) for component in components]

    def encode(key: Any) -> bytes:
        parts = _parts(schema, key)
        return _checked(FORMAT + b"".join([encode(part) for encode, part in zip(encoders, parts, strict=True)]))

    return encode


def _single(field: Field, component: Component, *, ended: bool) -> Encoder:
    """A key of one component. What the quick way can't do the component does, and says what is wrong."""
    encode, end = component.encode, _END if ended else b""

    def text(key: Any) -> bytes:
        if type(key) is str and len(key) < _SHORT and not (ended and "\x00" in key):
            with contextlib.suppress(UnicodeEncodeError):
                return FORMAT + key.encode() + end
        return _checked(FORMAT + encode(key))

    def number(key: Any) -> bytes:
        if type(key) is int and -_SIGN <= key < _SIGN:
            return _LONG.pack(1, key + _SIGN)
        return FORMAT + encode(key)

    match field.type:
        case "string":
            return text
        case "bigint":
            return number
        case _:
            return lambda key: _checked(FORMAT + encode(key))


def _part(component: Component) -> Encoder:
    """One of several components."""
    encode = component.encode

    def text(value: Any) -> bytes:
        if type(value) is str and "\x00" not in value and value.isascii():
            return value.encode() + _END
        return encode(value)

    def number(value: Any) -> bytes:
        if type(value) is int and -_SIGN <= value < _SIGN:
            return _TIME.pack(value + _SIGN)
        return encode(value)

    if isinstance(component, Ended) and component.field.type == "string":
        return text
    if isinstance(component, Number) and component.field.type == "bigint":
        return number
    return encode


def _checked(key: bytes) -> bytes:
    if len(key) > MAX_KEY_BYTES:
        raise BadKey(f"a key takes {len(key):,} bytes, and {MAX_KEY_BYTES:,} is the limit. Use a shorter key.")
    return key


def times_at(stored: Sequence[bytes], place: int) -> list[int]:
    """The same of many keys that are equally long, as those of one key's windows are; `place` from the end.

    >>> times_at([b"k" + time_bytes(5), b"k" + time_bytes(6)], -8)
    [5, 6]
    """
    return [number - _SIGN for number in _times(len(stored), len(stored[0]), place)(b"".join(stored))]


@lru_cache(maxsize=1024)
def _times(keys: int, length: int, place: int) -> Callable[[bytes], tuple[int, ...]]:
    """What takes the number at a place out of so many keys of that length; quicker than numpy for a few dozen."""
    return struct.Struct(">" + f"{length + place}xQ{-8 - place}x" * keys).unpack


def _parts(schema: Schema, key: Any) -> tuple[object, ...]:
    if not isinstance(key, tuple | list):
        raise BadKey(f"{key!r} was given as a key, and the store's has {len(schema.fields)} parts: {schema}.")
    if len(key) != len(schema.fields):
        raise BadKey(f"a key of {len(key)} parts was given, and the store's has {len(schema.fields)}: {schema}.")
    return cast(tuple[object, ...], tuple(key))


def _text(schema: Schema, data: bytes) -> str:
    if data[:1] == FORMAT:
        with contextlib.suppress(UnicodeDecodeError):
            return data[1:].decode()
    return cast(str, decode_key(schema, data)[0])  # which says what is wrong
