"""Avro: records without their field names, half the size of MessagePack. An extra: `pip install 'holdfast[avro]'`.

Avro's bytes can be read only with the schema they were written in. The app's file has all schemas of a store by number,
and an Avro schema follows from each. So unlike other codecs, Avro needs a new number for every change of schema, even
for a new field with a default. Dates, times, UUIDs and decimals are stored as text, which loses nothing.
"""

import io
import re
import struct
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import BadValue, ErrorCategory, HoldfastError, TopologyError, shown
from holdfast.stores.codecs.base import CodecMissing, UnreadableValue, damaged_value, name_of
from holdfast.stores.schema.text import (
    Around,
    Choices,
    Fixed,
    Many,
    Mapped,
    OneOf,
    Record,
    Scalar,
    ValueSchema,
    text_of,
)

AVRO = "avro/1"

V = TypeVar("V")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = {"null": "null", "bool": "boolean", "int": "long", "float": "double", "str": "string", "bytes": "bytes"}
_TEXTS = ("datetime", "date", "time", "timedelta", "uuid", "decimal")
_NATIVE = (bytes, bytearray, memoryview)
_WRITE_ERRORS = (TypeError, ValueError, AttributeError, KeyError, OverflowError, struct.error)
_READ_ERRORS = (*_WRITE_ERRORS, EOFError, IndexError, MemoryError)


class NotAvro(HoldfastError):
    """Bytes or a value that don't match a schema. The caller turns it into an error that says what to do."""

    category = ErrorCategory.DATA


class PlainAvro:
    """Plain values of one schema, as Avro's bytes."""

    def __init__(self, schema: ValueSchema) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise CodecMissing("avro", "fastavro") from error
        self._library: Any = fastavro
        self._schema = fastavro.parse_schema(avro_schema(schema))

    def read(self, data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            plain = self._library.schemaless_reader(stream, self._schema, None)
        except _READ_ERRORS as error:
            raise NotAvro(f"{type(error).__name__} {error}") from error
        if stream.tell() != len(data):
            raise NotAvro(f"it ends at byte {stream.tell()} of {len(data)}")
        return plain

    def write(self, plain: Any) -> bytes:
        stream = io.BytesIO()
        try:
            self._library.schemaless_writer(stream, self._schema, plain)
        except _WRITE_ERRORS as error:
            raise NotAvro(str(error)) from error
        return stream.getvalue()


class Avro(Generic[V]):
    """Values of one Python type as Avro. `written` has the schemas they were written in, by number."""

    id = AVRO

    def __init__(self, type_: type[V], schema: ValueSchema, number: int, written: Mapping[int, ValueSchema]) -> None:
        self._type = type_
        self._number = number
        self._schemas = {n: PlainAvro(each) for n, each in {**written, number: schema}.items()}
        self._own = self._schemas[number]

    def encode(self, value: V) -> bytes:
        return self.write_plain(self.to_plain(value))

    def decode(self, data: bytes) -> V:
        return self.from_plain(self.read_plain(data, self._number))

    def read_plain(self, data: bytes, schema: int) -> Any:
        if schema not in self._schemas:
            known = ", ".join(map(str, sorted(self._schemas)))
            raise UnreadableValue(
                f"a stored value has schema {schema}, but this process knows {known}. Avro needs the "
                "schema a value was written in: restart the app, so that it reads the newest app file."
            )
        try:
            return self._schemas[schema].read(data)
        except NotAvro as error:
            raise damaged_value(self._type, error) from error

    def write_plain(self, plain: Any) -> bytes:
        try:
            return self._own.write(plain)
        except NotAvro as error:
            raise BadValue(f"{plain!r} can't be stored as Avro: {error}. Give a {name_of(self._type)}.") from error

    def to_plain(self, value: V) -> Any:
        try:
            plain = msgspec.to_builtins(value, builtin_types=_NATIVE)
            msgspec.convert(plain, self._type, builtin_types=_NATIVE)  # fastavro would store True as 1 and 3.7 as 3
        except (TypeError, msgspec.MsgspecError) as error:
            raise BadValue(f"{shown(value)} can't be stored: {error}. Give a {name_of(self._type)}.") from error
        return plain

    def from_plain(self, plain: Any) -> V:
        try:
            return msgspec.convert(plain, self._type, builtin_types=_NATIVE)
        except msgspec.MsgspecError as error:
            raise damaged_value(self._type, error) from error


def avro_schema(schema: ValueSchema) -> Any:
    """The Avro schema of a Holdfast schema.

    >>> from holdfast.stores.schema.text import parse
    >>> avro_schema(parse("{who: str, best?: float | null}"))["fields"][1]
    {'name': 'best', 'type': ['double', 'null']}
    """
    return _Schemas().of(schema, ())


class _Schemas:
    """Makes Avro schemas. Avro needs names for records: r0, r1 ... in their order in the schema."""

    def __init__(self) -> None:
        self._records = 0

    def of(self, schema: ValueSchema, around: tuple[str, ...]) -> Any:
        match schema:
            case Scalar(name) if name in _SCALARS:
                return _SCALARS[name]
            case Scalar(name) if name in _TEXTS:
                return "string"
            case Choices(values):
                kinds = sorted({_SCALARS[{str: "str", int: "int"}.get(type(value), "null")] for value in values})
                return kinds[0] if len(kinds) == 1 else kinds
            case Many(item):
                return {"type": "array", "items": self.of(item, around)}
            case Mapped(Scalar("str"), value):
                return {"type": "map", "values": self.of(value, around)}
            case OneOf(members):
                found = [self.of(member, around) for member in members]
                flat = [each for one in found for each in (one if isinstance(one, list) else [one])]
                return [each for n, each in enumerate(flat) if each not in flat[:n]]
            case Around(levels) if levels <= len(around):
                return around[-levels]
            case Record(by_position=False):
                return self._record(schema, around)
            case Fixed() | Record() | Mapped() | Scalar() | Around():
                raise TopologyError(f"Avro has no type for {text_of(schema)}. Change the type, or use another codec.")

    def _record(self, schema: Record, around: tuple[str, ...]) -> dict[str, Any]:
        name = f"r{self._records}"
        self._records += 1
        fields = []
        for field in schema.fields:
            if not _NAME.fullmatch(field.name):
                raise TopologyError(f"Avro can't have a field named {field.name!r}. Use letters, digits and '_'.")
            fields.append({"name": field.name, "type": self.of(field.schema, (*around, name))})
        return {"type": "record", "name": name, "fields": fields}
