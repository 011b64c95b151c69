"""Codecs: a store's typed values as bytes, and back.

A codec has a name with a format number, which the log remembers with the store. What it makes is the payload of a cell;
the envelope is not its business. MessagePack carries any type msgspec knows (dataclasses, Structs, tuples, dates ...);
rows carry what aggregates keep, so that the columnar path and a single lookup read the same bytes.
"""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar, get_origin

import msgspec

from holdfast.errors import BadValue, DamagedObject, TopologyError
from holdfast.stores.rows import decode_row, encode_row, row_of
from holdfast.stores.spec import StoreSpec
from holdfast.stores.types import Schema

MESSAGE_PACK = "msgpack/1"
ROWS = "rows/1"

V = TypeVar("V")


class Codec(Protocol[V]):
    """A value type as bytes."""

    @property
    def id(self) -> str: ...

    def encode(self, value: V) -> bytes: ...

    def decode(self, data: bytes) -> V: ...


class MessagePack(Generic[V]):
    """Values of one Python type, as MessagePack.

    >>> codec = MessagePack(dict[str, int])
    >>> codec.decode(codec.encode({"ann": 3}))
    {'ann': 3}
    >>> MessagePack(int).encode("three")
    Traceback (most recent call last):
    ...
    holdfast.errors.BadValue: 'three' is a str, and the store's values are int. Give one of those.
    """

    id = MESSAGE_PACK

    def __init__(self, type_: type[V]) -> None:
        self._type = type_
        # A class can be checked at a glance; anything else (a union, an Annotated) by reading back what was written.
        plain = get_origin(type_) or type_
        self._class = plain if isinstance(plain, type) else None
        self._encoder = msgspec.msgpack.Encoder()
        try:
            self._decoder = msgspec.msgpack.Decoder(type_)
        except TypeError as error:
            raise TopologyError(f"{_name(type_)} can't be a store's value type: {error}.") from error

    def encode(self, value: V) -> bytes:
        try:
            data = self._encoder.encode(value)
        except (TypeError, msgspec.MsgspecError, OverflowError) as error:
            raise BadValue(f"{value!r} can't be stored: {error}. Use a type msgspec can write.") from error
        if self._class is None or not isinstance(value, self._class):
            self._check(value, data)
        return data

    def _check(self, value: V, data: bytes) -> None:
        try:
            self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            found = type(value).__name__
            raise BadValue(
                f"{value!r} is a {found}, and the store's values are {_name(self._type)}. Give one of those."
            ) from error

    def decode(self, data: bytes) -> V:
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DamagedObject(
                f"a stored value can't be read as {_name(self._type)}: {error}. Give the type it was written with; a "
                "field that was added needs a default."
            ) from error


class Rows:
    """Values that are rows of a schema, as mappings from field to value.

    >>> codec = Rows(Schema.of(plays="bigint", best="double"))
    >>> codec.decode(codec.encode({"plays": 2, "best": 9.5}))
    {'plays': 2, 'best': 9.5}
    """

    id = ROWS

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def encode(self, value: Mapping[str, object]) -> bytes:
        return encode_row(self._schema, row_of(self._schema, value))

    def decode(self, data: bytes) -> dict[str, object]:
        return dict(zip(self._schema.names, decode_row(self._schema, data), strict=True))


def codec_of(spec: StoreSpec, type_: Any = Any) -> Codec[Any]:
    """The codec of a store. Who has only the log's spec reads MessagePack as plain dicts, lists and numbers."""
    if spec.codec == MESSAGE_PACK:
        return MessagePack(type_)
    if spec.codec == ROWS and spec.value is not None:
        return Rows(spec.value)
    if spec.codec == ROWS:
        raise TopologyError(f"store {spec.name!r} keeps rows and has no value schema. Give it one.")
    raise TopologyError(
        f"store {spec.name!r} has codec {spec.codec!r}, and this release knows {MESSAGE_PACK} and {ROWS}. Use the "
        "release that wrote it."
    )


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and get_origin(type_) is None else str(type_)
