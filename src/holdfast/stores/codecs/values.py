"""A store's typed values: its codec, found by name, and the schemas that values have had.

What a store calls is a `StoreCodec`. It writes the schema the code has, and reads a payload by the number in its cell:
as it is, through upcasters, or, where newer code wrote it, as far as this code can.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.errors import RESTORE_AGAIN, DamagedObject, ErrorCategory, HoldfastError, TopologyError
from holdfast.stores.codecs.avro import AVRO, Avro
from holdfast.stores.codecs.base import Codec, PlainCodec, Quick, UnreadableValue, name_of
from holdfast.stores.codecs.names import NAMES, codec_id, users_own
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK, Json, MessagePack
from holdfast.stores.codecs.protobuf import PROTOBUF, Protobuf
from holdfast.stores.codecs.raw import BYTES, Bytes
from holdfast.stores.formats.rows import ROWS, decode_row, encode_row, row_of
from holdfast.stores.schema.declared import Declared, check_inside, declared, describe_type, schema_of_type
from holdfast.stores.schema.history import row_schemas, surviving
from holdfast.stores.schema.text import ValueSchema, parse
from holdfast.stores.schema.without_code import SchemaDescription
from holdfast.stores.spec import NumberedSchema, RowValues, StoreSpec

__all__ = [
    "JSON",
    "MESSAGE_PACK",
    "ROWS",
    "Bytes",
    "Codec",
    "Json",
    "MessagePack",
    "StoreCodec",
    "UpcastFailed",
    "codec_for",
    "codec_id",
    "codec_of",
    "schema_of",
]

V = TypeVar("V")


class UpcastFailed(HoldfastError):
    """An upcaster raised, or made something that isn't of the next schema."""

    category = ErrorCategory.INVALID


class StoreCodec(Protocol[V]):
    """The values of one store as payloads, of every schema they may have."""

    @property
    def id(self) -> str: ...

    @property
    def schema(self) -> int:
        """The number under which `encode` writes."""

    def encode(self, value: V) -> bytes: ...

    def decode(self, data: bytes, schema: int | None = None) -> V:
        """A payload that was written in the schema of this number; None for the one `encode` writes."""


def schema_of(type_: Any, codec: str) -> NumberedSchema | None:
    """What a store's spec says of its value type; None for a user's own codec, which knows its schemas itself."""
    if ":" in codec:
        check_inside(type_)
        return None
    return describe_type(type_, codec)


def codec_of(spec: StoreSpec, type_: Any = None, own: Codec[Any] | None = None) -> StoreCodec[Any]:
    """The codec of a store. `Any` reads plain dicts, lists and numbers, as they were written.

    So does who has no type but only the log's spec, by the newest schema that is in it, or else gets an `AsWritten`.
    """
    if isinstance(spec.value, RowValues):
        return _RowCodec(spec)
    if spec.codec == ROWS:
        raise TopologyError(f"store {spec.name!r} keeps rows and has no value schema. Give it one.")
    if type_ is None:
        return _Described(spec)
    if type_ is Any and ":" not in spec.codec:
        return _Untyped(spec)
    try:
        written = {version.number: parse(version.fields) for version in spec.schemas}
        return _TypedCodec(own or codec_for(spec.codec, type_, written), type_)
    except TopologyError as error:
        raise TopologyError(f"store {spec.name!r}: {error}") from error


def codec_for(codec: str, type_: Any, written: Mapping[int, ValueSchema] = {}) -> Codec[Any]:
    """The codec of an id, for values of one type. `written` is every schema they have had, for Avro to read.

    >>> codec_for("json/1", list[int]).encode([1, 2])
    b'[1,2]'
    """
    match codec:
        case "msgpack/1":
            return MessagePack(type_)
        case "json/1":
            return Json(type_)
        case "bytes/1" if type_ in (bytes, Any):
            return Bytes()
        case "bytes/1":
            raise TopologyError(f"codec 'bytes' stores bytes, and the value type is {name_of(type_)}. Say value=bytes.")
        case "avro/1":
            return Avro(type_, schema_of_type(type_), declared(type_).number, written)
        case "protobuf/1":
            return Protobuf(type_)
    if ":" in codec:
        return users_own(codec, type_)
    raise TopologyError(
        f"there is no codec {codec!r} in this release, which knows {', '.join(NAMES.values())} and {ROWS}. Use the "
        "release that wrote it."
    )


class _TypedCodec(Generic[V]):
    """Typed values through a codec, with what their type says of its schema."""

    def __init__(self, codec: Codec[V], type_: Any) -> None:
        said = declared(type_)
        plain: PlainCodec[V] | None = codec if isinstance(codec, PlainCodec) else None
        if plain is None and (said.aliases or said.upcasters):
            raise TopologyError(
                f"{name_of(type_)} has aliases or upcasters, and codec {codec.id!r} has no plain form they could work "
                f"on. Take msgpack, json or avro, or give the codec the methods of PlainCodec."
            )
        self.id = codec.id
        self.schema = said.number
        self._plain = plain
        self._type = type_
        self._said = said
        self._names = _Names(type_, said)
        # Most types have no alias, and every read and write of a record comes by here.
        named = plain is not None and bool(self._names)
        self._write: Callable[[V], bytes] = self._write_named if named else codec.encode
        self._read: Callable[[bytes], V] = self._read_named if named else codec.decode
        self.quick: Quick | None = None if named else getattr(codec, "quick", None)
        """The way without checks, for values of the schema `encode` writes."""

    def encode(self, value: V) -> bytes:
        return self._write(value)

    def decode(self, data: bytes, schema: int | None = None) -> V:
        if schema is None or schema == self.schema:
            return self._read(data)
        if schema > self.schema:
            return self._newer(data, schema)
        chain = self._said.chain(schema)
        if not chain and self.id != AVRO:
            return self._read(data)
        assert self._plain is not None
        value = self._plain.read_plain(data, schema)
        for upcaster in chain:
            try:
                value = upcaster(value)
            except Exception as error:  # a user's function may raise anything
                raise UpcastFailed(
                    f"an upcaster of {name_of(self._type)} to schema {self.schema} failed on a value of schema "
                    f"{schema}: {type(error).__name__}: {error}. It was given {value!r}."
                ) from error
        return self._typed(self._plain, value, f"its upcasters from schema {schema}" if chain else f"schema {schema}")

    def _write_named(self, value: V) -> bytes:
        assert self._plain is not None
        return self._plain.write_plain(self._names.stored(self._plain.to_plain(value)))

    def _read_named(self, data: bytes) -> V:
        assert self._plain is not None
        return self._plain.from_plain(self._names.own(self._plain.read_plain(data, self.schema)))

    def _newer(self, data: bytes, schema: int) -> V:
        """What newer code wrote: fields this code doesn't know are passed over."""
        try:
            if self.id == AVRO and self._plain is not None:
                return self._typed(self._plain, self._plain.read_plain(data, schema), f"schema {schema}")
            return self._read(data)
        except (DamagedObject, UpcastFailed) as error:
            raise UnreadableValue(
                f"a stored value has schema {schema}, and this code knows {name_of(self._type)} up to {self.schema}: "
                f"{error} Start the newer code."
            ) from error

    def _typed(self, codec: PlainCodec[V], plain: Any, source: str) -> V:
        if isinstance(self._type, type) and isinstance(plain, self._type):
            return cast(V, plain)
        try:
            return codec.from_plain(self._names.own(plain))
        except DamagedObject as error:
            raise UpcastFailed(
                f"what {source} gives is no {name_of(self._type)}: {error.__cause__ or error}. It is {plain!r}."
            ) from error


class _Names:
    """From the names of a type's fields to those they are stored under, and back."""

    def __init__(self, type_: Any, said: Declared) -> None:
        self._stored: dict[str, str] = {}
        self._own: dict[str, str] = {}
        if said.aliases:
            schema = schema_of_type(type_)
            for field in getattr(schema, "fields", ()):
                if field.also:
                    own = field.names[-1]
                    self._stored[own] = field.name
                    self._own.update(dict.fromkeys(reversed(field.names[:-1]), own))

    def __bool__(self) -> bool:
        return bool(self._stored)

    def stored(self, plain: Any) -> Any:
        return {self._stored.get(name, name): value for name, value in plain.items()}

    def own(self, plain: Any) -> Any:
        if not self._own or not isinstance(plain, dict):
            return plain
        renamed = {name: value for name, value in plain.items() if name not in self._own}
        # Where there are several, the name it is stored under today is the one that was written last.
        for name, own in self._own.items():
            if name in plain:
                renamed[own] = plain[name]
        return renamed


class _RowCodec:
    """An aggregate's rows of every layout the store has had, as those of the newest; null where a column was not."""

    def __init__(self, spec: StoreSpec) -> None:
        if spec.codec != ROWS:
            raise TopologyError(
                f"store {spec.name!r} keeps rows of format {spec.codec!r}, and this release knows {ROWS}. Use the "
                "release that wrote it."
            )
        self.id = spec.codec
        self.schema = spec.schema
        self._spec = spec
        self._value = spec.columns
        self._layouts = row_schemas(spec)

    def encode(self, value: Mapping[str, object]) -> bytes:
        return encode_row(self._value, row_of(self._value, value))

    def decode(self, data: bytes, schema: int | None = None) -> dict[str, object]:
        if schema is None or schema == self.schema:
            return dict(zip(self._value.names, decode_row(self._value, data), strict=True))
        if schema not in self._layouts:
            raise unknown_schema(self._spec, schema)
        layout = self._layouts[schema]
        row = dict(zip(layout.names, decode_row(layout, data), strict=True))
        kept = surviving(self._spec, schema)
        return {name: row[name] if name in kept else None for name in self._value.names}


class _Untyped:
    """Values as plain dicts, lists and numbers, as they were written, for who hasn't got the type."""

    def __init__(self, spec: StoreSpec) -> None:
        if spec.codec in (PROTOBUF,) or ":" in spec.codec:
            raise TopologyError(f"store {spec.name!r} has codec {spec.codec!r}, which can't be read without its type.")
        self.id = spec.codec
        self.schema = spec.schema
        written = {version.number: parse(version.fields) for version in spec.schemas}
        if spec.codec == AVRO:
            if spec.schema not in written:
                raise TopologyError(f"store {spec.name!r} keeps Avro and its schema isn't known. Give it a value type.")
            self._codec: Any = Avro(Any, written[spec.schema], spec.schema, written)
        else:
            self._codec = codec_for(spec.codec, Any)

    def encode(self, value: Any) -> bytes:
        data: bytes = self._codec.encode(value)
        return data

    def decode(self, data: bytes, schema: int | None = None) -> Any:
        if isinstance(self._codec, Avro) and schema is not None:
            return self._codec.read_plain(data, schema)
        return self._codec.decode(data)


class _Described(_Untyped):
    """The same by the newest schema the log has, as far as that can be told without code."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        # Bytes have no fields, whatever is said of them.
        self._description = SchemaDescription(() if spec.codec == BYTES else spec.schemas)

    def decode(self, data: bytes, schema: int | None = None) -> Any:
        return self._description.shown(super().decode(data, schema), self.schema if schema is None else schema)


def unknown_schema(spec: StoreSpec, schema: int) -> UnreadableValue:
    return UnreadableValue(
        f"a row of store {spec.name!r} has schema {schema}, and this process knows up to {spec.schema}. If newer code "
        f"runs beside it, start it again, so that it reads the newest app file. If none does: {RESTORE_AGAIN}"
    )
