"""Values of Python types as Arrow columns: one column per field of a record, or one column `value`.

The types of the columns come from the newest schema in the app's file. What has no Arrow type (a dict, a union, a type
that contains itself) is a column of JSON text. MessagePack and JSON are decoded for a whole block at once: the payloads
one after the other are one array, and msgspec reads it into objects that have only the fields that are asked for (1M
records of three fields take 0.44 s). Other codecs decode value by value. A value that only code can turn into the
newest schema is an error, since a null in its place would make sums wrong.
"""

import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.query.render import to_json
from holdfast.stores.codecs.avro import AVRO
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.schema.text import ANY, NULL, Choices, FieldSchema, Many, OneOf, Record, Scalar, ValueSchema
from holdfast.stores.schema.without_code import SchemaDescription, newest_schema
from holdfast.stores.spec import StoreSpec

MOMENT: Final = pa.timestamp("us", "UTC")
VALUE: Final = "value"
_ARRAY = struct.Struct(">BI")
_ARRAY32 = 0xDD
"""The first byte of a MessagePack array with a length of four bytes."""


class NotAsColumns(HoldfastError):
    """A store has values that can't be columns now."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class ColumnType:
    """A column: its Arrow type, and the type as which msgspec reads it. Any: it becomes JSON text."""

    arrow: pa.DataType
    python: Any

    @property
    def is_json(self) -> bool:
        return self.python is Any


_JSON_TEXT: Final = ColumnType(pa.string(), Any)
_SCALARS: Final = {
    "bool": ColumnType(pa.bool_(), bool),
    "int": ColumnType(pa.int64(), int),
    "float": ColumnType(pa.float64(), float),
    "str": ColumnType(pa.string(), str),
    "bytes": ColumnType(pa.binary(), bytes),
    "datetime": ColumnType(MOMENT, datetime),
    "date": ColumnType(pa.date32(), date),
    "time": ColumnType(pa.string(), str),
    "timedelta": ColumnType(pa.string(), str),
    "uuid": ColumnType(pa.string(), str),
    "decimal": ColumnType(pa.string(), str),
}


def column_type(schema: ValueSchema) -> ColumnType:
    """The type of the column for values of a schema.

    >>> from holdfast.stores.schema.text import parse
    >>> [str(column_type(parse(text)).arrow) for text in ("int | null", 'enum["a", "b"]', "dict[str, int]")]
    ['int64', 'string', 'string']
    """
    match schema:
        case Scalar(name) if name in _SCALARS:
            return _SCALARS[name]
        case Choices(values) if all(type(value) is str for value in values):
            return _SCALARS["str"]
        case Choices(values) if all(type(value) is int for value in values):
            return _SCALARS["int"]
        case OneOf(members) if NULL in members and len(members) == 2:
            return column_type(next(member for member in members if member != NULL))
        case Many(item) if not (inside := column_type(item)).is_json:
            return ColumnType(pa.list_(inside.arrow), list[inside.python | None])  # type: ignore[name-defined]
    return _JSON_TEXT


class ValueColumns:
    """The columns of a store's typed values."""

    def __init__(self, spec: StoreSpec) -> None:
        self._spec = spec
        self._description = SchemaDescription(spec.schemas)
        newest = newest_schema(spec.schemas)
        self._packed = spec.codec in (MESSAGE_PACK, JSON)
        self._fields: tuple[FieldSchema, ...] = ()
        if spec.codec not in (MESSAGE_PACK, JSON, AVRO):
            self.types = {VALUE: _SCALARS["bytes"]}  # bytes, or a codec that this process can't read without its type
        elif isinstance(newest, Record) and not newest.by_position and newest.fields:
            self._fields = newest.fields
            self.types = {field.names[-1]: column_type(field.schema) for field in newest.fields}
        else:
            self.types = {VALUE: column_type(newest or ANY)}

    def decode(self, payloads: pa.BinaryArray, schemas: pa.UInt16Array, only: Container[str]) -> dict[str, pa.Array]:
        """The columns with these names. No payload is null."""
        wanted = {name: type_ for name, type_ in self.types.items() if name in only}
        self._check_schemas(schemas)
        if not wanted:
            return {}
        if self._spec.codec not in (MESSAGE_PACK, JSON, AVRO):
            return {VALUE: payloads}
        try:
            if self._packed:
                return self._decode_packed(payloads, wanted)
            return self._decode_plain(payloads, schemas, wanted)
        except (msgspec.MsgspecError, pa.ArrowException, UnicodeDecodeError, OverflowError, TypeError) as error:
            raise DamagedObject(
                f"a value of store {self._spec.name!r} doesn't fit the schema in the app's file: {error}. Look for it "
                f"with /v1/stores/{self._spec.name}/range, which shows each value as it is."
            ) from error

    def _check_schemas(self, schemas: pa.UInt16Array) -> None:
        if not self._spec.schemas:
            return
        for number in pc.unique(schemas).to_pylist():
            if self._description.needs_code(number):
                raise NotAsColumns(
                    f"store {self._spec.name!r} has values of schema {number}, which only the upcasters of the code "
                    f"can turn into schema {self._spec.schema}. Ask again when they are rewritten: "
                    f"/v1/stores/{self._spec.name}/rewriting shows how far that is."
                )

    def _decode_packed(self, payloads: pa.BinaryArray, wanted: dict[str, ColumnType]) -> dict[str, pa.Array]:
        if not self._fields:
            ((name, type_),) = wanted.items()
            return {name: _column(self._decode_all(payloads, _optional(type_)), type_)}
        fields = [field for field in self._fields if field.names[-1] in wanted]
        # Members of the objects are numbered: stored names may be anything.
        stored = {f"f{n}_{m}": (field, name) for n, field in enumerate(fields) for m, name in enumerate(field.names)}
        members = [(member, _optional(wanted[field.names[-1]]), None) for member, (field, _) in stored.items()]
        row = msgspec.defstruct("Row", members, rename={member: name for member, (_, name) in stored.items()}, gc=False)
        rows = self._decode_all(payloads, row)
        found: dict[str, pa.Array] = {}
        for n, field in enumerate(fields):
            name, type_ = field.names[-1], wanted[field.names[-1]]
            columns = [_column(map(attrgetter(f"f{n}_{m}"), rows), type_) for m in range(len(field.names))]
            # Of several names the first is the stored one.
            found[name] = columns[0] if len(columns) == 1 else pc.coalesce(*columns)
        return {name: found[name] for name in wanted}

    def _decode_all(self, payloads: pa.BinaryArray, type_: Any) -> list[Any]:
        """All payloads, decoded by one call."""
        values = payloads.to_pylist()
        if self._spec.codec == JSON:
            found: list[Any] = msgspec.json.decode(b"[" + b",".join(values) + b"]", type=list[type_])
        else:
            found = msgspec.msgpack.decode(_ARRAY.pack(_ARRAY32, len(values)) + b"".join(values), type=list[type_])
        if len(found) != len(values):
            raise msgspec.DecodeError("a payload has more than one value")
        return found

    def _decode_plain(
        self, payloads: pa.BinaryArray, schemas: pa.UInt16Array, wanted: dict[str, ColumnType]
    ) -> dict[str, pa.Array]:
        decode = codec_of(self._spec).decode
        values = [decode(*each) for each in zip(payloads.to_pylist(), schemas.to_pylist(), strict=True)]
        columns = {name: [value.get(name) for value in values] if self._fields else values for name in wanted}
        return {name: _column(_converted(column, wanted[name]), wanted[name]) for name, column in columns.items()}


def _optional(type_: ColumnType) -> Any:
    return Any if type_.is_json else type_.python | None


def _converted(plain: list[Any], type_: ColumnType) -> list[Any]:
    """Plain values with dates and times as such."""
    found: list[Any] = msgspec.convert(plain, list[_optional(type_)], builtin_types=(bytes,))  # type: ignore[misc]
    return found


def _column(values: Iterable[Any], type_: ColumnType) -> pa.Array:
    if type_.is_json:
        values = [None if value is None else msgspec.json.encode(to_json(value)).decode() for value in values]
    return pa.array(list(values), type_.arrow)
