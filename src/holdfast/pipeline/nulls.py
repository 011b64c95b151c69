"""SQL that finds nulls which the type of an event does not allow. Such a record goes to the dead letters.

Nulls inside arrays, maps and structs are found by the type of the event's field: the items of `list[str]` can't be
null, those of `list[str | None]` can. Where Spark's schema excludes nulls, there is no check. Types that msgspec can't
inspect (a union of several types, a user's class) are checked when the event is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import inspect
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from holdfast.pipeline.unusable import Case, is_null, quoted

if TYPE_CHECKING:
    from holdfast.topology.events import EventShape


def unusable_nulls(event: EventShape, columns: StructType) -> list[Case]:
    """The nulls that make a record unusable, given the stream's columns. An event without an annotation has none."""
    if event.type is None:
        return []
    name = event.type.__name__
    cases = [
        is_null(column, f"no value: {column} is null, and {name}.{column} can't be None") for column in event.required
    ]
    for column, wanted in zip(event.columns, event.converted, strict=True):
        if wanted is not None and (info := _info(wanted)) is not None:
            for condition, place in nulls_inside(info, columns[column].dataType, quoted(column), column):
                cases.append(Case(condition, f"no value: {place} is null, and {name}.{column} has no None there"))
    return cases


def nulls_inside(info: Any, kind: DataType, sql: str, place: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """For each place inside a value of type `info`: SQL that is true for a null that is not allowed, and the place.

    >>> info = inspect.type_info(list[list[int] | None])
    >>> list(nulls_inside(info, ArrayType(ArrayType(DataType())), "`n`", "n"))
    [('exists(`n`, x0 -> exists(x0, x1 -> x1 IS NULL))', 'n[][]')]
    """
    item = f"x{depth}"
    match info, kind:
        case inspect.Metadata(), _:
            yield from nulls_inside(info.type, kind, sql, place, depth)
        case inspect.UnionType(), _:
            others = [each for each in info.types if not isinstance(each, inspect.NoneType)]
            if len(others) == 1:
                yield from nulls_inside(others[0], kind, sql, place, depth)
        case (
            inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType(),
            ArrayType(elementType=of, containsNull=some),
        ):
            for condition, at in _nulls(info.item_type, of, some, item, f"{place}[]", depth + 1):
                yield f"exists({sql}, {item} -> {condition})", at
        case inspect.TupleType(), ArrayType(containsNull=True):
            if not any(map(_takes_none, info.item_types)):
                yield f"exists({sql}, {item} -> {item} IS NULL)", f"{place}[]"
        case inspect.DictType(), MapType(valueType=of, valueContainsNull=some):
            for condition, at in _nulls(info.value_type, of, some, item, f"{place}{{}}", depth + 1):
                yield f"exists(map_values({sql}), {item} -> {condition})", at
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType(), StructType():
            fields = {field.name: field for field in kind.fields}
            for own in info.fields:
                if (field := fields.get(own.encode_name)) is not None:
                    name = f"{sql}.{quoted(field.name)}"
                    at = f"{place}.{field.name}"
                    for condition, where in _nulls(own.type, field.dataType, field.nullable, name, at, depth):
                        yield f"({sql} IS NOT NULL AND {condition})", where


def _nulls(info: Any, kind: DataType, some: bool, sql: str, place: str, depth: int) -> Iterator[tuple[str, str]]:
    """The same for a value and the places inside it. `some`: whether it can be null by Spark's schema."""
    if some and not _takes_none(info):
        yield f"{sql} IS NULL", place
    yield from nulls_inside(info, kind, sql, place, depth)


def _takes_none(info: Any) -> bool:
    match info:
        case inspect.Metadata():
            return _takes_none(info.type)
        case inspect.UnionType():
            return any(map(_takes_none, info.types))
        case inspect.LiteralType():
            return None in info.values
        case inspect.EnumType():
            return any(member.value is None for member in info.cls)
    return isinstance(info, inspect.NoneType | inspect.AnyType | inspect.RawType | inspect.CustomType)


def _info(wanted: Any) -> Any:
    try:
        return inspect.type_info(wanted)
    except TypeError:  # msgspec does not know some unions
        return None
