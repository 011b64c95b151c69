"""Keys of typed stores as bytes, one at a time or in lists.

`stores.formats.keys` defines the bytes of a key. Here the encoder is chosen once, when a store is bound: most keys are
one text or one integer and need only a few steps. Windows, sessions and histories have times after the key; then no
component of the key is the last, and each time is 8 bytes like any integer.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

from holdfast.errors import BadKey
from holdfast.stores.formats.key_components import Component, EndedComponent, NumberComponent, component_of, other_parts
from holdfast.stores.formats.keys import FORMAT, MAX_KEY_BYTES, decode_key
from holdfast.stores.formats.scalars import none_key
from holdfast.stores.formats.types import Field, Schema

_SIGN = 1 << 63
_LEAST = -_SIGN
_LONG = struct.Struct(">BQ")
_TIME = struct.Struct(">Q")
_END = b"\x00\x00"
_BETWEEN = "\x00\x01"
_SHORT = MAX_KEY_BYTES // 8  # characters that are certainly within the limit, escaped or not

Encoder = Callable[[Any], bytes]
Decoder = Callable[[bytes], Any]


def key_encoder(schema: Schema) -> Encoder:
    """An encoder of keys; a key of several components is a tuple.

    >>> from holdfast.stores.formats.keys import key_schema
    >>> key_encoder(key_schema(str))("ann"), key_encoder(key_schema(int))(1).hex()
    (b'\\x01ann', '018000000000000001')
    """
    return _encoder(schema, whole=True)


def keys_encoder(schema: Schema) -> Callable[[Sequence[Any]], list[bytes]]:
    """An encoder of many keys at once.

    >>> from holdfast.stores.formats.keys import key_schema
    >>> keys_encoder(key_schema(str))(["ann", "bob"])
    [b'\\x01ann', b'\\x01bob']
    """
    encode = key_encoder(schema)

    def texts(keys: Sequence[Any]) -> list[bytes]:
        # Joined to one text with 0x00 between the keys, and split again: 30 ns per key instead of 80.
        try:
            whole = FORMAT + _BETWEEN.join(keys).encode()
        except (TypeError, UnicodeEncodeError):
            return [encode(key) for key in keys]
        found = whole.split(b"\x00")
        if len(found) == len(keys) and (len(whole) <= MAX_KEY_BYTES or max(map(len, found)) <= MAX_KEY_BYTES):
            return found
        return [encode(key) for key in keys]  # a key contains 0x00 or is too long, or there are no keys

    def numbers(keys: Sequence[Any]) -> list[bytes]:
        if set(map(type, keys)) == {int} and min(keys) >= _LEAST and max(keys) < _SIGN:
            return [_LONG.pack(1, key + _SIGN) for key in keys]
        return [encode(key) for key in keys]

    if len(schema.fields) == 1 and schema.fields[0].type == "string":
        return texts
    if len(schema.fields) == 1 and schema.fields[0].type == "bigint":
        return numbers
    return lambda keys: [encode(key) for key in keys]


def keys_decoder(schema: Schema) -> Callable[[Sequence[bytes]], list[Any]]:
    """A decoder of many stored keys at once, given in their order or backwards."""
    decode = key_decoder(schema)

    def texts(stored: Sequence[bytes]) -> list[Any]:
        try:
            found = b"\x00".join(stored).decode()[1:].split(_BETWEEN)
        except UnicodeDecodeError:
            return [decode(key) for key in stored]
        # Keys are in order, so if the first and the last begin with 0x01, all do. Then there are as many texts as keys,
        # unless a key contains 0x00 0x01.
        if len(found) == len(stored) and stored[0][:1] == stored[-1][:1] == FORMAT:
            return found
        return [decode(key) for key in stored]

    if len(schema.fields) == 1 and schema.fields[0].type == "string":
        return texts
    return lambda stored: [decode(key) for key in stored]


def key_decoder(schema: Schema) -> Decoder:
    """A decoder of one stored key."""
    if len(schema.fields) > 1:
        return lambda data: decode_key(schema, data)
    return lambda data: decode_key(schema, data)[0]


def beginning_encoder(schema: Schema) -> Encoder:
    """An encoder of keys to the first bytes of their windows, sessions or old values.

    >>> from holdfast.stores.formats.keys import key_schema
    >>> beginning_encoder(key_schema(str))("ann")
    b'\\x01ann\\x00\\x00'
    """
    return _encoder(schema, whole=False)


def beginning_decoder(schema: Schema, times: int) -> Decoder:
    """A decoder of the own key of a window, session or old value, without its times."""
    after = tuple(Field(f"$time_{n}", "bigint") for n in range(times))
    whole, parts = Schema(schema.fields + after), len(schema.fields)
    if parts == 1:
        return lambda data: decode_key(whole, data)[0]
    return lambda data: decode_key(whole, data)[:parts]


def _encoder(schema: Schema, *, whole: bool) -> Encoder:
    """All components one after the other; `whole`: nothing follows them."""
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
    """A key of one component. For what the fast path can't encode, the component does it or reports what is wrong."""
    encode, end = component.encode, _END if ended else b""

    def text(key: Any) -> bytes:
        if type(key) is str and len(key) < _SHORT and not (ended and "\x00" in key):
            try:
                return FORMAT + key.encode() + end
            except UnicodeEncodeError:
                pass  # the component reports what is wrong
        return _checked(FORMAT + encode(key))

    def number(key: Any) -> bytes:
        if type(key) is int and _LEAST <= key < _SIGN:
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
        if type(value) is int and _LEAST <= value < _SIGN:
            return _TIME.pack(value + _SIGN)
        return encode(value)

    if isinstance(component, EndedComponent) and component.field.type == "string":
        return text
    if isinstance(component, NumberComponent) and component.field.type == "bigint":
        return number
    return encode


def _checked(key: bytes) -> bytes:
    if len(key) > MAX_KEY_BYTES:
        raise BadKey(f"a key takes {len(key):,} bytes, and {MAX_KEY_BYTES:,} is the limit. Use a shorter key.")
    return key


def _parts(schema: Schema, key: Any) -> tuple[object, ...]:
    if key is None:
        raise none_key(schema.fields[0])
    if not isinstance(key, tuple | list):
        raise BadKey(f"{key!r} was given as a key, and the store's has {len(schema.fields)} parts: {schema}.")
    if len(key) != len(schema.fields):
        raise other_parts(len(key), schema)
    return cast(tuple[object, ...], tuple(key))
