"""MessagePack and JSON, for any type that msgspec supports (dataclasses, Structs, tuples, dates ...).

Both write a record as a map of its fields, so a reader finds fields by name and skips those it doesn't know.
MessagePack is the default: half the size of JSON, and faster. JSON is for values that other tools read.
"""

import dataclasses
import datetime as dt
import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_origin, is_typeddict

import msgspec

from holdfast.errors import BadValue, TopologyError, shown
from holdfast.stores.codecs.base import Quick, damaged_value, name_of, wrong_type

MESSAGE_PACK = "msgpack/1"
JSON = "json/1"

V = TypeVar("V")


class _Packed(Generic[V]):
    """What both codecs share."""

    library: Any
    """The part of msgspec that has the encoder and the decoder."""
    native: tuple[type, ...] = ()
    """Types that the format has in addition to JSON's."""
    kept: tuple[type, ...] = ()
    """Types that `to_plain` leaves to the encoder; `read_plain` may return them as text."""

    def __init__(self, type_: type[V]) -> None:
        self._type = type_
        # A value's class is checked directly; other types (a union, a TypedDict) by decoding the encoded value.
        plain = get_origin(type_) or type_
        self._class = plain if isinstance(plain, type) and not is_typeddict(plain) else None
        has_fields = dataclasses.is_dataclass(plain) or isinstance(plain, type(msgspec.Struct))
        self._record = self._class if has_fields else None
        self._encode: Callable[[Any], bytes] = self.library.Encoder().encode
        self._decode_any: Callable[[bytes], Any] = self.library.Decoder(Any).decode
        try:
            self._decode: Callable[[bytes], V] = self.library.Decoder(type_).decode
        except TypeError as error:
            raise TopologyError(f"{name_of(type_)} can't be a store's value type: {error}.") from error

    def encode(self, value: V) -> bytes:
        data = self.write_plain(value)
        if type(value) is not self._class:  # not isinstance: a bool is an int for Python, but not for msgspec
            self._check(value, data)
        return data

    def decode(self, data: bytes) -> V:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise damaged_value(self._type, error) from error

    def read_plain(self, data: bytes, schema: int) -> Any:
        try:
            return self._decode_any(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise damaged_value(self._type, error) from error

    def write_plain(self, plain: Any) -> bytes:
        try:
            return self._encode(plain)
        except (TypeError, msgspec.MsgspecError, OverflowError) as error:
            raise BadValue(f"{shown(plain)} can't be stored: {error}. Use a type msgspec can write.") from error

    def to_plain(self, value: V) -> Any:
        if type(value) is not self._class:
            self._check(value, self.write_plain(value))
        return msgspec.to_builtins(value, builtin_types=self.kept, str_keys=not self.native)

    def from_plain(self, plain: Any) -> V:
        try:
            return msgspec.convert(plain, self._type, builtin_types=self.native, str_keys=not self.native)
        except msgspec.MsgspecError as error:
            raise damaged_value(self._type, error) from error

    def _check(self, value: V, data: bytes) -> None:
        if self._record is not None and not isinstance(value, self._record):
            raise wrong_type(value, self._type)  # another record may have the same fields, and more that would be lost
        try:
            self._decode(data)
        except msgspec.MsgspecError as error:
            raise wrong_type(value, self._type) from error


class MessagePack(_Packed[V]):
    """Values of one Python type, as MessagePack.

    >>> codec = MessagePack(dict[str, int])
    >>> codec.decode(codec.encode({"ann": 3}))
    {'ann': 3}
    >>> MessagePack(int).encode("three")
    Traceback (most recent call last):
    ...
    holdfast.errors.BadValue: 'three' is a str, but the store's values are int. Give one of those.
    """

    id = MESSAGE_PACK
    library = msgspec.msgpack
    native = (bytes, bytearray, memoryview)
    kept = (*native, dt.datetime)

    @property
    def quick(self) -> Quick | None:
        """Encoder and decoder without checks, if the store's values have a class."""
        if self._class is None:
            return None
        failures = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, OverflowError)
        return Quick(self._class, self._encode, self._decode, failures)


class Json(_Packed[V]):
    """Values of one Python type, as JSON.

    >>> Json(dict[str, list[int]]).encode({"ann": [3]})
    b'{"ann":[3]}'
    >>> Json(float).encode(float("nan"))
    Traceback (most recent call last):
    ...
    holdfast.errors.BadValue: nan can't be stored: JSON has no nan. Filter it out, or use codec="msgpack".
    """

    id = JSON
    library = msgspec.json

    def write_plain(self, plain: Any) -> bytes:
        data = super().write_plain(plain)
        # msgspec writes NaN and infinities as null, which would decode to another value or to none.
        if b"null" in data and (lost := _not_finite(msgspec.to_builtins(plain))) is not None:
            raise BadValue(
                f'{shown(plain)} can\'t be stored: JSON has no {lost}. Filter it out, or use codec="msgpack".'
            )
        return data


def _not_finite(plain: Any) -> float | None:
    if isinstance(plain, float):
        return None if math.isfinite(plain) else plain
    if isinstance(plain, dict):
        plain = list(plain.values())
    if isinstance(plain, list | tuple):
        return next((found for item in plain if (found := _not_finite(item)) is not None), None)
    return None
