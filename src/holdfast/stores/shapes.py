"""Shapes of value types: how a type says that it has changed, and what can be told of it.

Most changes need no word: a field that is gained has a default, one that is lost is passed over. A rename is an alias;
the field stays stored under its first name, so code from before the rename reads it too. For all else a type has a
version and upcasters, each of which lifts a plain value (dicts, lists, numbers) from one version to the next:

    @hf.shape(version=2, aliases={"player": "user"}, upcasters={1: lambda old: {**old, "score": old["score"] / 10}})
    @dataclass
    class Score: ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec
from msgspec import inspect

from holdfast.errors import TopologyError
from holdfast.stores.cells import FIRST_SCHEMA, LAST_SCHEMA
from holdfast.stores.codecs.base import name_of
from holdfast.stores.codecs.protobuf import PROTOBUF, message_shape
from holdfast.stores.shapetext import (
    ANY,
    NULL,
    Around,
    Choices,
    FieldShape,
    Fixed,
    Many,
    Mapped,
    Record,
    Scalar,
    Shape,
    fingerprint_of,
    one_of,
    text_of,
)
from holdfast.stores.spec import SchemaVersion

T = TypeVar("T")
Upcaster = Callable[[Any], Any]

_DECLARED = "__holdfast_shape__"
_LIFTS = "__holdfast_lifts__"


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a type says of its shape."""

    version: int = FIRST_SCHEMA
    aliases: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """From a field to the names it had, the first one first."""
    upcasters: Mapping[int, Upcaster] = dataclasses.field(default_factory=dict)
    """From a version to what lifts a plain value of it to the next."""

    def chain(self, schema: int) -> tuple[Upcaster, ...]:
        """What lifts a value of an older schema to this one; a version without an upcaster reads as the next does."""
        return tuple(self.upcasters[n] for n in range(schema, self.version) if n in self.upcasters)


UNDECLARED = Declared()


def shape(
    *,
    version: int = FIRST_SCHEMA,
    aliases: Mapping[str, str | Sequence[str]] = {},
    upcasters: Mapping[int, Upcaster] = {},
) -> Callable[[type[T]], type[T]]:
    """Says how a dataclass or Struct has changed. Upcasters may also stand in the class, under `@hf.upcast`.

    >>> @shape(version=2, upcasters={1: lambda old: {"points": old["score"] * 100}})
    ... @dataclasses.dataclass
    ... class Score:
    ...     points: int
    >>> describe_type(Score).number
    2
    """

    def declare(type_: type[T]) -> type[T]:
        found = {**_marked(type_), **upcasters}
        names = {new: (old,) if isinstance(old, str) else tuple(old) for new, old in aliases.items()}
        _check(type_, version, names, found)
        setattr(type_, _DECLARED, Declared(version, names, found))
        return type_

    return declare


class _Marker(Protocol):
    def __call__(self, upcaster: T, /) -> T: ...


def upcast(*, from_: int) -> _Marker:
    """Marks a static method of a class under `@hf.shape` as what lifts values of version `from_` to the next.

    >>> @shape(version=2)
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
    """What a type says of its shape. A subclass says it anew."""
    return cast(Declared, vars(type_).get(_DECLARED, UNDECLARED)) if isinstance(type_, type) else UNDECLARED


def describe_type(type_: Any, codec: str = "msgpack/1") -> SchemaVersion:
    """A value type as the app's file keeps it.

    >>> describe_type(dict[str, int]).fields
    'dict[str, int]'
    """
    found = message_shape(type_) if codec == PROTOBUF else shape_of(type_)
    said = declared(type_)
    return SchemaVersion(said.version, fingerprint_of(found), text_of(found), tuple(sorted(said.upcasters)))


def shape_of(type_: Any) -> Shape:
    """The shape of a type as msgspec writes it."""
    try:
        info = inspect.type_info(type_)
    except TypeError as error:
        raise TopologyError(f"{name_of(type_)} can't be a store's value type: {error}.") from error
    return _shape(info, (), declared(type_).aliases)


def _shape(info: Any, around: tuple[type, ...], aliases: Mapping[str, tuple[str, ...]] = {}) -> Shape:
    match info:
        case inspect.Metadata():
            return _shape(info.type, around, aliases)
        case inspect.AnyType() | inspect.RawType():
            return ANY
        case inspect.UnionType():
            members = [_shape(member, around) for member in info.types]
            return one_of({text_of(member): member for member in members})
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            return Many(_shape(info.item_type, around))
        case inspect.TupleType():
            return Fixed(tuple(_shape(item, around) for item in info.item_types))
        case inspect.DictType():
            return Mapped(_shape(info.key_type, around), _shape(info.value_type, around))
        case inspect.EnumType():
            return Choices(tuple(member.value for member in info.cls))
        case inspect.LiteralType():
            return Choices(tuple(info.values))
        case inspect.CustomType() | inspect.ExtType():
            return Scalar(getattr(getattr(info, "cls", None), "__name__", "ext"))
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _record(info, around, aliases)
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


def _record(info: Any, around: tuple[type, ...], aliases: Mapping[str, tuple[str, ...]]) -> Shape:
    if info.cls in around:
        return Around(len(around) - around.index(info.cls))
    if around and declared(info.cls) is not UNDECLARED:
        raise TopologyError(
            f"{info.cls.__name__} is under @hf.shape and stands inside {around[0].__name__}. Versions count for the "
            "store's value type: put @hf.shape on that, and for a rename take msgspec.field(name=...) here."
        )
    inside = (*around, info.cls)
    by_position = isinstance(info, inspect.NamedTupleType) or bool(getattr(info, "array_like", False))
    fields = [FieldShape(info.tag_field, Choices((info.tag,)))] if getattr(info, "tag_field", None) else []
    for field in info.fields:
        first, *rest = (*aliases.get(field.name, ()), field.encode_name)
        fields.append(FieldShape(first, _shape(field.type, inside), not field.required, tuple(rest)))
    return Record(tuple(fields), bool(getattr(info, "forbid_unknown_fields", False)), by_position)


def _marked(type_: type) -> dict[int, Upcaster]:
    found: dict[int, Upcaster] = {}
    for member in vars(type_).values():
        function = getattr(member, "__func__", member)
        number = getattr(function, _LIFTS, None) if callable(function) else None
        if number is not None:
            found[number] = function
    return found


def _check(
    type_: type, version: int, aliases: Mapping[str, tuple[str, ...]], upcasters: Mapping[int, Upcaster]
) -> None:
    name = name_of(type_)
    if not (dataclasses.is_dataclass(type_) or issubclass(type_, msgspec.Struct)):
        raise TopologyError(f"@hf.shape takes a dataclass or a msgspec Struct, and {name} is neither.")
    if not FIRST_SCHEMA <= version <= LAST_SCHEMA:
        raise TopologyError(f"{name}: version={version}; versions go from {FIRST_SCHEMA} to {LAST_SCHEMA}.")
    if outside := sorted(n for n in upcasters if not FIRST_SCHEMA <= n < version):
        raise TopologyError(
            f"{name} is version {version} and has an upcaster from {outside[0]}. An upcaster leads from a version to "
            f"the next: say version={outside[0] + 1} or higher, or take it out."
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
