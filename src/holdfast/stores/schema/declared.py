"""Declared schemas: how a value type says that it has changed.

Most changes need no declaration: a new field has a default, a removed field is ignored. A rename is an alias; the field
is still stored under its first name, so that older code reads it too. For all other changes a type has a number and
upcasters. Each upcaster turns a plain value (dicts, lists, numbers) of one schema into one of the next:

    @hf.schema(number=2, aliases={"player": "user"}, upcasters={1: lambda old: {**old, "score": old["score"] / 10}})
    @dataclass
    class Score: ...

Only the store's value type itself can have a declaration. One on a class inside another type is rejected, because it
would have no effect: a cell has one schema number, that of the whole value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast, get_origin

import msgspec
from msgspec import inspect

from holdfast.errors import TopologyError
from holdfast.stores.codecs.avro import AVRO
from holdfast.stores.codecs.base import name_of
from holdfast.stores.codecs.packed import JSON, MESSAGE_PACK
from holdfast.stores.codecs.protobuf import PROTOBUF, message_schema
from holdfast.stores.formats.cells import FIRST_SCHEMA, LAST_SCHEMA
from holdfast.stores.schema.text import (
    ANY,
    NULL,
    Around,
    Choices,
    FieldSchema,
    Fixed,
    Many,
    Mapped,
    Record,
    Scalar,
    ValueSchema,
    fingerprint_of,
    one_of,
    text_of,
)
from holdfast.stores.spec import NumberedSchema

T = TypeVar("T")
Upcaster = Callable[[Any], Any]

_BY_MSGSPEC = (MESSAGE_PACK, JSON, AVRO)
"""The codecs that use msgspec."""

_DECLARED = "__holdfast_schema__"
_LIFTS = "__holdfast_lifts__"


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a type declares about its schema."""

    number: int = FIRST_SCHEMA
    aliases: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """By field, its former names, the first one first."""
    upcasters: Mapping[int, Upcaster] = dataclasses.field(default_factory=dict)
    """By schema number, what turns a plain value of it into the next schema."""

    def chain(self, schema: int) -> tuple[Upcaster, ...]:
        """The upcasters from an older schema to this one. A number without an upcaster is read as the next one."""
        return tuple(self.upcasters[n] for n in range(schema, self.number) if n in self.upcasters)


UNDECLARED = Declared()


def schema(
    *,
    number: int = FIRST_SCHEMA,
    aliases: Mapping[str, str | Sequence[str]] = {},
    upcasters: Mapping[int, Upcaster] = {},
) -> Callable[[type[T]], type[T]]:
    """Declares how a dataclass or Struct has changed. Upcasters may also be in the class, marked by `@hf.upcast`.

    >>> @schema(number=2, upcasters={1: lambda old: {"points": old["score"] * 100}})
    ... @dataclasses.dataclass
    ... class Score:
    ...     points: int
    >>> describe_type(Score).number
    2
    """

    def declare(type_: type[T]) -> type[T]:
        found = {**_marked(type_), **upcasters}
        names = {new: (old,) if isinstance(old, str) else tuple(old) for new, old in aliases.items()}
        _check(type_, number, names, found)
        setattr(type_, _DECLARED, Declared(number, names, found))
        return type_

    return declare


class _Marker(Protocol):
    def __call__(self, upcaster: T, /) -> T: ...


def upcast(*, from_: int) -> _Marker:
    """Marks a static method of a class with `@hf.schema` as the upcaster from schema `from_` to the next.

    >>> @schema(number=2)
    ... @dataclasses.dataclass
    ... class Score:
    ...     points: int
    ...     @upcast(from_=1)
    ...     @staticmethod
    ...     def lift(old: dict[str, int]) -> dict[str, int]:
    ...         return {"points": old["score"] * 100}
    >>> sorted(declared(Score).upcasters)
    [1]
    """

    def mark(upcaster: T) -> T:
        setattr(getattr(upcaster, "__func__", upcaster), _LIFTS, from_)
        return upcaster

    return mark


def declared(type_: Any) -> Declared:
    """The declaration of a type. A subclass doesn't inherit it."""
    return cast(Declared, vars(type_).get(_DECLARED, UNDECLARED)) if isinstance(type_, type) else UNDECLARED


def describe_type(type_: Any, codec: str = "msgpack/1") -> NumberedSchema:
    """The schema of a value type as it is in the app's file.

    >>> describe_type(dict[str, int]).fields
    'dict[str, int]'
    """
    found = message_schema(type_) if codec == PROTOBUF else schema_of_type(type_, by_msgspec=codec in _BY_MSGSPEC)
    own = declared(type_)
    return NumberedSchema(own.number, fingerprint_of(found), text_of(found), tuple(sorted(own.upcasters)))


def schema_of_type(type_: Any, *, by_msgspec: bool = False) -> ValueSchema:
    """The schema of a type as msgspec writes it. `by_msgspec`: reject what msgspec can't write."""
    try:
        info = inspect.type_info(type_)
    except TypeError as error:
        raise TopologyError(f"{name_of(type_)} can't be a store's value type: {error}.") from error
    return _schema(info, (), _Root(type_, by_msgspec))


def check_inside(type_: Any) -> None:
    """Rejects a value type with a class with `@hf.schema` inside it, as far as msgspec can inspect the type."""
    try:
        info = inspect.type_info(type_)
    except TypeError:
        return
    _schema(info, (), _Root(type_))


@dataclasses.dataclass(frozen=True)
class _Root:
    """A store's value type, and whether msgspec writes it."""

    type_: Any
    by_msgspec: bool = False


def _schema(info: Any, around: tuple[Any, ...], root: _Root) -> ValueSchema:
    """The schema of a type inside the records `around`, in a value of the type `root`."""
    match info:
        case inspect.Metadata():
            return _schema(info.type, around, root)
        case inspect.AnyType() | inspect.RawType():
            return ANY
        case inspect.UnionType():
            members = [_schema(member, around, root) for member in info.types]
            return one_of({text_of(member): member for member in members})
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            return Many(_schema(info.item_type, around, root))
        case inspect.TupleType():
            return Fixed(tuple(_schema(item, around, root) for item in info.item_types))
        case inspect.DictType():
            return Mapped(_schema(info.key_type, around, root), _schema(info.value_type, around, root))
        case inspect.EnumType():
            return Choices(tuple(member.value for member in info.cls))
        case inspect.LiteralType():
            return Choices(tuple(info.values))
        case inspect.CustomType() if root.by_msgspec and not _needs_no_decoding(info.cls):
            raise _not_storable(info.cls, around[-1] if around else root.type_)
        case inspect.CustomType() | inspect.ExtType():
            return Scalar(getattr(getattr(info, "cls", None), "__name__", "ext"))
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _record(info, around, root)
        case inspect.NoneType():
            return NULL
    return Scalar(_SCALARS[type(info)])


_SCALARS: dict[type, str] = {
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}


_STRUCT_FIELD: type = type(msgspec.field())


def _record(info: Any, around: tuple[Any, ...], root: _Root) -> ValueSchema:
    class_ = get_origin(info.cls) or info.cls
    said = declared(class_)
    if said is UNDECLARED and (lifts := _marked(class_)):
        raise TopologyError(
            f"{name_of(class_)} has an upcaster from schema {min(lifts)} and no number of its own, so nothing calls "
            f"it. Put @hf.schema(number={max(lifts) + 1}) on {name_of(class_)}."
        )
    if said is not UNDECLARED and said is not declared(root.type_):
        raise _not_the_value_type(info.cls, around[0] if around else root.type_)
    if info.cls in around:
        if said.aliases:
            raise TopologyError(
                f"{name_of(root.type_)} has aliases and contains itself, where aliases have no effect. Use "
                "@hf.schema(number=2, upcasters={1: ...}) instead; the upcaster gets the whole value."
            )
        return Around(len(around) - around.index(info.cls))
    inside = (*around, info.cls)
    by_position = isinstance(info, inspect.NamedTupleType) or bool(getattr(info, "array_like", False))
    fields = [FieldSchema(info.tag_field, Choices((info.tag,)))] if getattr(info, "tag_field", None) else []
    for field in info.fields:
        if isinstance(field.default, _STRUCT_FIELD):
            raise TopologyError(
                f"{name_of(info.cls)}.{field.name} is a msgspec.field(), which only a msgspec.Struct understands: in a "
                f"dataclass it would be the default itself. Make {name_of(info.cls)} a Struct, or use "
                "dataclasses.field()."
            )
        first, *rest = (*said.aliases.get(field.name, ()), field.encode_name)
        fields.append(FieldSchema(first, _schema(field.type, inside, root), not field.required, tuple(rest)))
    return Record(tuple(fields), bool(getattr(info, "forbid_unknown_fields", False)), by_position)


def _needs_no_decoding(class_: Any) -> bool:
    """Whether something msgspec reads is an object of a class it doesn't know: `object`, `numbers.Number` ..."""
    read: tuple[object, ...] = (None, True, 0, 0.0, "", b"", [], {})
    try:
        return any(isinstance(each, class_) for each in read)
    except TypeError:
        return False


def _not_storable(class_: Any, where: Any) -> TopologyError:
    inside = "" if where is class_ else f", which is inside {name_of(where)},"
    return TopologyError(
        f"{name_of(class_)}{inside} can't be stored: it is not a dataclass, msgspec.Struct or another type that "
        f"msgspec knows. Make {name_of(class_)} one of these, or use a codec of your own: codec='module:Class'."
    )


def _not_the_value_type(type_: Any, outer: Any) -> TopologyError:
    return TopologyError(
        f"{name_of(type_)} has @hf.schema and is inside {name_of(outer)}. Numbers, aliases and upcasters work only "
        "on a store's value type itself: put @hf.schema on the class that is the value type, or make one with a field "
        f"for the present value. Its upcaster gets the whole value, including the stored {name_of(type_)}. "
        "A field of an inner Struct is renamed with msgspec.field(name=...)."
    )


def _marked(type_: type) -> dict[int, Upcaster]:
    found: dict[int, Upcaster] = {}
    for member in vars(type_).values():
        function = getattr(member, "__func__", member)
        number = getattr(function, _LIFTS, None) if callable(function) else None
        if number is not None:
            found[number] = function
    return found


def _check(type_: type, number: int, aliases: Mapping[str, tuple[str, ...]], upcasters: Mapping[int, Upcaster]) -> None:
    name = name_of(type_)
    if not (dataclasses.is_dataclass(type_) or issubclass(type_, msgspec.Struct)):
        raise TopologyError(
            f"@hf.schema takes a dataclass or a msgspec Struct, and {name} is neither. Write @hf.schema(...) above "
            "@dataclass: the lower decorator is applied first."
        )
    if not FIRST_SCHEMA <= number <= LAST_SCHEMA:
        raise TopologyError(f"{name}: number={number}; numbers go from {FIRST_SCHEMA} to {LAST_SCHEMA}.")
    if outside := sorted(n for n in upcasters if not FIRST_SCHEMA <= n < number):
        raise TopologyError(
            f"{name} has schema number {number} and an upcaster from {outside[0]}. An upcaster leads from a number to "
            f"the next: use number={outside[0] + 1} or higher, or remove it."
        )
    own = {field.name for field in _fields_of(type_)}
    for new, old in aliases.items():
        if new not in own:
            raise TopologyError(f"{name} has no field {new!r} to give an alias. It has {', '.join(sorted(own))}.")
        if taken := sorted(own.intersection(old)):
            raise TopologyError(f"{name}: {taken[0]!r} is a field and can't be an alias of {new!r} too.")
    every = [each for old in aliases.values() for each in old]
    if twice := sorted({each for each in every if every.count(each) > 1}):
        raise TopologyError(f"{name}: {twice[0]!r} is an alias of two fields. One value can't go to both.")
    if aliases and issubclass(type_, msgspec.Struct) and type_.__struct_config__.array_like:
        raise TopologyError(f"{name} is array_like, which has no names in the store: rename without an alias.")


def _fields_of(type_: Any) -> Sequence[Any]:
    return msgspec.structs.fields(type_) if issubclass(type_, msgspec.Struct) else dataclasses.fields(type_)
