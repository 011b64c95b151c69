"""The codec of a store, found by name, with the schemas that its values have had.

A store calls a `StoreCodec`. It writes values in the schema of the running code, and reads a payload by the schema
number in its cell: directly, through upcasters, or, if newer code wrote it, as far as this code can.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.errors import RESTORE_AGAIN, USER_ERRORS, DamagedObject, ErrorCategory, HoldfastError, TopologyError
from holdfast.stores.codecs.avro import AVRO, Avro
from holdfast.stores.codecs.base import Codec, PlainCodec, Quick, UnreadableValue, name_of
from holdfast.stores.codecs.names import NAMES, users_own
from holdfast.stores.codecs.packed import Json, MessagePack
from holdfast.stores.codecs.protobuf import PROTOBUF, Protobuf
from holdfast.stores.codecs.raw import BYTES, Bytes
from holdfast.stores.formats.rows import ROWS, decode_row, encode_row, row_decoder, row_of
from holdfast.stores.schema.declared import Declared, check_inside, declared, describe_type, schema_of_type
from holdfast.stores.schema.row_history import row_schemas, surviving
from holdfast.stores.schema.text import ValueSchema, parse
from holdfast.stores.schema.without_code import SchemaDescription
from holdfast.stores.spec import NumberedSchema, RowValues, StoreSpec

V = TypeVar("V")


class UpcastFailed(HoldfastError):
    """An upcaster raised, or returned a value that isn't of the next schema."""

    category = ErrorCategory.INVALID


class StoreCodec(Protocol[V]):
    """The values of one store as payloads, of all their schemas."""

    @property
    def id(self) -> str: ...

    @property
    def schema(self) -> int:
        """The number of the schema that `encode` writes."""

    def encode(self, value: V) -> bytes: ...

    def decode(self, data: bytes, schema: int | None = None) -> V:
        """The value of a payload that was written in the schema of this number; None is that of `encode`."""


def schema_of(type_: Any, codec: str) -> NumberedSchema | None:
    """The schema of a store's value type; None for a user's own codec, which knows its schemas itself."""
    if ":" in codec:
        check_inside(type_)
        return None
    return describe_type(type_, codec)


def codec_of(spec: StoreSpec, type_: Any = None, own: Codec[Any] | None = None) -> StoreCodec[Any]:
    """The codec of a store. With the type `Any` it reads plain dicts, lists and numbers, as they were written.

    Without a type it reads them too, in the newest schema of the spec; a value that needs code for that becomes an
    `AsWritten`.
    """
    if isinstance(spec.value, RowValues):
        return _RowCodec(spec)
    if spec.codec == ROWS:
        raise TopologyError(f"store {spec.name!r} has rows but no value schema. Give it one.")
    if type_ is None:
        return _Described(spec)
    if type_ is Any and ":" not in spec.codec:
        return _Untyped(spec)
    try:
        return _TypedCodec(own or codec_for(spec.codec, type_, _schemas_of(spec)), type_)
    except TopologyError as error:
        raise TopologyError(f"store {spec.name!r}: {error}") from error


def codec_for(codec: str, type_: Any, written: Mapping[int, ValueSchema] = {}) -> Codec[Any]:
    """The codec of an id, for values of one type. Avro needs `written`, all schemas that they have had.

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
            raise TopologyError(f"codec 'bytes' stores bytes, not {name_of(type_)}. Use value=bytes, or another codec.")
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


def _schemas_of(spec: StoreSpec) -> dict[int, ValueSchema]:
    return {schema.number: parse(schema.fields) for schema in spec.schemas}


class _TypedCodec(Generic[V]):
    """A codec for values of one type, with the aliases and upcasters that the type declares."""

    def __init__(self, codec: Codec[V], type_: Any) -> None:
        self._declared = declared(type_)
        plain: PlainCodec[V] | None = codec if isinstance(codec, PlainCodec) else None
        if plain is None and (self._declared.aliases or self._declared.upcasters):
            raise TopologyError(
                f"{name_of(type_)} has aliases or upcasters, but codec {codec.id!r} has no plain values for them. Use "
                "msgpack, json or avro, or give the codec the methods of PlainCodec."
            )
        self.id = codec.id
        self.schema = self._declared.number
        self._plain = plain
        self._type = type_
        self._names = _FieldNames(type_, self._declared)
        # Decided once: most types have no alias, and these are called for every record.
        renames = plain is not None and bool(self._names)
        self._write: Callable[[V], bytes] = self._write_renamed if renames else codec.encode
        self._read: Callable[[bytes], V] = self._read_renamed if renames else codec.decode
        self.quick: Quick | None = None if renames else getattr(codec, "quick", None)
        """Encoder and decoder without checks, for the schema that `encode` writes."""

    def encode(self, value: V) -> bytes:
        return self._write(value)

    def decode(self, data: bytes, schema: int | None = None) -> V:
        if schema is None or schema == self.schema:
            return self._read(data)
        if schema > self.schema:
            return self._read_newer(data, schema)
        chain = self._declared.chain(schema)
        if not chain and self.id != AVRO:
            return self._read(data)
        assert self._plain is not None
        value = self._plain.read_plain(data, schema)
        for upcaster in chain:
            try:
                value = upcaster(value)
            except USER_ERRORS as error:  # a user's function may raise anything
                raise UpcastFailed(
                    f"an upcaster of {name_of(self._type)} to schema {self.schema} failed on a value of schema "
                    f"{schema}: {type(error).__name__}: {error}. It was given {value!r}."
                ) from error
        return self._typed(self._plain, value, f"its upcasters from schema {schema}" if chain else f"schema {schema}")

    def _write_renamed(self, value: V) -> bytes:
        assert self._plain is not None
        return self._plain.write_plain(self._names.stored(self._plain.to_plain(value)))

    def _read_renamed(self, data: bytes) -> V:
        assert self._plain is not None
        return self._plain.from_plain(self._names.current(self._plain.read_plain(data, self.schema)))

    def _read_newer(self, data: bytes, schema: int) -> V:
        """A value written by newer code. Fields that this code doesn't know are skipped."""
        try:
            if self.id == AVRO and self._plain is not None:
                return self._typed(self._plain, self._plain.read_plain(data, schema), f"schema {schema}")
            return self._read(data)
        except (DamagedObject, UpcastFailed) as error:
            raise UnreadableValue(
                f"a stored value has schema {schema}, but this code knows {name_of(self._type)} up to {self.schema}: "
                f"{error} Start the newer code."
            ) from error

    def _typed(self, codec: PlainCodec[V], plain: Any, source: str) -> V:
        if isinstance(self._type, type) and isinstance(plain, self._type):
            return cast(V, plain)
        try:
            return codec.from_plain(self._names.current(plain))
        except DamagedObject as error:
            raise UpcastFailed(
                f"the result of {source} is not a {name_of(self._type)}: {error.__cause__ or error}. It is {plain!r}."
            ) from error


class _FieldNames:
    """Renames the fields of plain values: from a type's current names to the stored ones, and back."""

    def __init__(self, type_: Any, declaration: Declared) -> None:
        self._stored: dict[str, str] = {}
        self._current: dict[str, str] = {}
        if declaration.aliases:
            schema = schema_of_type(type_)
            for field in getattr(schema, "fields", ()):
                if field.also:
                    current = field.names[-1]
                    self._stored[current] = field.name
                    self._current.update(dict.fromkeys(reversed(field.names[:-1]), current))

    def __bool__(self) -> bool:
        return bool(self._stored)

    def stored(self, plain: Any) -> Any:
        return {self._stored.get(name, name): value for name, value in plain.items()}

    def current(self, plain: Any) -> Any:
        if not self._current or not isinstance(plain, dict):
            return plain
        renamed = {name: value for name, value in plain.items() if name not in self._current}
        # If a value has several names of a field, the stored name, which comes last here, was written last.
        for name, current in self._current.items():
            if name in plain:
                renamed[current] = plain[name]
        return renamed


class _RowCodec:
    """A table's rows of all its schemas, read in the newest; a column that a row doesn't have is null."""

    def __init__(self, spec: StoreSpec) -> None:
        if spec.codec != ROWS:
            raise TopologyError(
                f"store {spec.name!r} has rows of format {spec.codec!r}, but this release knows {ROWS}. Use the "
                "release that wrote it."
            )
        self.id = spec.codec
        self.schema = spec.schema
        self._spec = spec
        self._columns = spec.columns
        self._names = spec.columns.names
        self._decode = row_decoder(spec.columns)
        self._schemas = row_schemas(spec)

    def encode(self, value: Mapping[str, object]) -> bytes:
        return encode_row(self._columns, row_of(self._columns, value))

    def decode(self, data: bytes, schema: int | None = None) -> dict[str, object]:
        if schema is None or schema == self.schema:
            return dict(zip(self._names, self._decode(data), strict=True))
        if schema not in self._schemas:
            raise unknown_schema(self._spec, schema)
        columns = self._schemas[schema]
        row = dict(zip(columns.names, decode_row(columns, data), strict=True))
        kept = surviving(self._spec, schema)
        return {name: row[name] if name in kept else None for name in self._columns.names}


class _Untyped:
    """Values as plain dicts, lists and numbers, as they were written, for readers without the type."""

    def __init__(self, spec: StoreSpec) -> None:
        if spec.codec == PROTOBUF or ":" in spec.codec:
            raise TopologyError(f"store {spec.name!r} has codec {spec.codec!r}, which can't be read without its type.")
        self.id = spec.codec
        self.schema = spec.schema
        if spec.codec == AVRO:
            written = _schemas_of(spec)
            if spec.schema not in written:
                raise TopologyError(f"store {spec.name!r} has Avro without a known schema. Give it a value type.")
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
    """Values as plain dicts, lists and numbers in the newest schema of the spec, as far as that needs no code."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        # Bytes have no fields, whatever their schema is.
        self._description = SchemaDescription(() if spec.codec == BYTES else spec.schemas)

    def decode(self, data: bytes, schema: int | None = None) -> Any:
        return self._description.shown(super().decode(data, schema), self.schema if schema is None else schema)


def unknown_schema(spec: StoreSpec, schema: int) -> UnreadableValue:
    return UnreadableValue(
        f"a row of store {spec.name!r} has schema {schema}, but this process knows up to {spec.schema}. If newer code "
        f"runs too, restart this process, so that it reads the newest app file. Otherwise: {RESTORE_AGAIN}"
    )
