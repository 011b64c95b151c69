"""Protobuf: messages of a generated class. An extra: `pip install 'holdfast[protobuf]'`.

Protobuf handles changes of a schema itself, by field numbers: a new field has a default, an unknown field is kept. So
the schema of a message has its field numbers. Only a number that changes its type can't be read.
"""

from typing import Any, Generic, TypeVar

from holdfast.errors import BadValue, DamagedObject, TopologyError
from holdfast.stores.codecs.base import CodecMissing, name_of, wrong_type
from holdfast.stores.schema.text import Around, FieldSchema, Many, Mapped, Record, Scalar, ValueSchema

PROTOBUF = "protobuf/1"

V = TypeVar("V")

_TYPES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""Protobuf's names of its types, by the numbers in its descriptors. An enum may gain and lose values."""


class Protobuf(Generic[V]):
    """Values that are messages of one generated class."""

    id = PROTOBUF

    def __init__(self, type_: Any) -> None:
        message, self._decode_error, self._encode_error = _library()
        if not (isinstance(type_, type) and issubclass(type_, message)):
            raise TopologyError(
                f"codec 'protobuf' needs a class that protoc generated, and {name_of(type_)} is not one. Give such a "
                "class as value=, or use another codec."
            )
        self._type: Any = type_

    def encode(self, value: V) -> bytes:
        message: Any = value
        if not isinstance(message, self._type):
            raise wrong_type(value, self._type)
        try:
            data: bytes = message.SerializeToString(deterministic=True)
        except self._encode_error as error:
            raise BadValue(f"{value!r} can't be stored: {error}") from error
        return data

    def decode(self, data: bytes) -> V:
        try:
            value: V = self._type.FromString(data)
        except self._decode_error as error:
            raise DamagedObject(
                f"a stored value can't be read as {name_of(self._type)}: {error}. Give the message it was written with."
            ) from error
        return value


def message_schema(type_: Any) -> ValueSchema:
    """The schema of a message class: its fields by number."""
    Protobuf(type_)  # raises for other classes
    return _schema(type_.DESCRIPTOR, ())


def _library() -> tuple[type, type[Exception], type[Exception]]:
    try:
        from google.protobuf.message import DecodeError, EncodeError, Message
    except ImportError as error:
        raise CodecMissing("protobuf", "protobuf") from error
    return Message, DecodeError, EncodeError


def _schema(descriptor: Any, around: tuple[str, ...]) -> ValueSchema:
    if descriptor.full_name in around:
        return Around(len(around) - around.index(descriptor.full_name))
    inside = (*around, descriptor.full_name)
    fields = sorted(descriptor.fields, key=lambda field: field.number)
    return Record(tuple(FieldSchema(str(f.number), _field(f, inside), optional=not f.is_required) for f in fields))


def _field(field: Any, around: tuple[str, ...]) -> ValueSchema:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return Mapped(_single(key, around), _single(value, around))
    return Many(_single(field, around)) if field.is_repeated else _single(field, around)


def _single(field: Any, around: tuple[str, ...]) -> ValueSchema:
    if field.message_type is not None:
        return _schema(field.message_type, around)
    return Scalar(_TYPES[field.type])
