"""Events: a record as a processor sees it, with its columns as attributes.

Without an annotation an event has every column of the stream. With one, `def process(self, key, event: Scored, ctx)`,
it is an object of that Struct or dataclass, and only the columns of its fields are sent to the task.
"""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import FieldType

_NOTHING = object()


@dataclass(frozen=True)
class EventShape:
    """The columns of an event in the order of its fields, and its class. None: a class made from the columns."""

    columns: tuple[str, ...]
    type: type | None = None
    converted: tuple[Any, ...] = ()
    """Per column the type that its values are converted to one by one; None where they need no conversion."""
    required: tuple[str, ...] = ()
    """The columns whose type has no None. A record with a null in one of them can't become an event."""
    texts: bool = False
    """Whether a date or time that Python doesn't have is its text, in keys too. If not, its record has no event."""

    def maker(self) -> Callable[..., object]:
        """Returns a function that makes an event from the columns' values, in their order."""
        if self.type is None:
            return _struct(self.columns)
        if _takes_in_order(self.type, self.columns):
            return self.type
        columns, chosen = self.columns, self.type
        return lambda *values: chosen(**dict(zip(columns, values, strict=True)))


def shape_of(process: Callable[..., object], columns: Mapping[str, str]) -> EventShape:
    """The shape of the events of `process`, given the stream's columns with their Spark types."""
    return shape_for(annotation_of(process), columns)


def shape_for(annotated: type | None, columns: Mapping[str, str]) -> EventShape:
    """The shape of events of a class, or of those with all columns."""
    if annotated is None:
        for column in columns:
            if not column.isidentifier() or keyword.iskeyword(column) or column.startswith("__"):
                raise TopologyError(
                    f"The column {column!r} can't be an attribute of an event. Rename it in the stream, or "
                    "annotate the event with a dataclass that leaves it out."
                )
        return EventShape(tuple(columns))
    hints = typing.get_type_hints(annotated)
    chosen, converted, needed = [], [], []
    for name, default in _fields(annotated):
        if name not in columns:
            if default is _NOTHING:
                raise TopologyError(
                    f"{annotated.__name__}.{name} has no column and no default. The stream has {', '.join(columns)}."
                )
            continue
        chosen.append(name)
        converted.append(_conversion(annotated, name, hints[name], columns[name]))
        if default is not None and not _takes_none(hints[name]):
            needed.append(name)
    return EventShape(tuple(chosen), annotated, tuple(converted), tuple(needed))


def fields_of(value: object) -> Mapping[str, object] | None:
    """The fields of a mapping, a Struct or a dataclass; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def as_mapping(value: object) -> Mapping[str, object]:
    """The fields of a forwarded value."""
    if (found := fields_of(value)) is not None:
        return found
    raise TopologyError(
        f"ctx.forward() takes a mapping, a Struct or a dataclass as value, and got {value!r}. Such as "
        "ctx.forward(key, {'n': 3})."
    )


def event_of(columns: tuple[str, ...], values: Mapping[str, Any]) -> object:
    """An event with these columns as attributes.

    >>> event_of(("player", "points"), {"player": "ann", "points": 3})
    Event(player='ann', points=3)
    """
    return _struct(columns)(*map(values.__getitem__, columns))


@lru_cache(maxsize=256)
def _struct(columns: tuple[str, ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Event", [(column, Any) for column in columns], frozen=True, gc=False)


def annotation_of(process: Callable[..., object]) -> type | None:
    """The class that the event parameter is annotated with."""
    parameters = list(inspect.signature(process).parameters.values())
    if len(parameters) != 4:
        raise TopologyError(
            f"{process.__qualname__} takes {len(parameters)} arguments; write process(self, key, event, ctx)."
        )
    raw = parameters[2].annotation
    if raw is inspect.Parameter.empty:
        return None
    if isinstance(raw, str):
        try:
            alone = types.SimpleNamespace(__annotations__={"event": raw})
            raw = typing.get_type_hints(alone, getattr(process, "__globals__", {}))["event"]
        except NameError as error:
            raise TopologyError(
                f"The event of {process.__qualname__} is annotated with {raw}, which can't be found: {error}. Define "
                "it in the module, not inside a function and not only under TYPE_CHECKING."
            ) from error
    return class_of(raw, process.__qualname__)


def class_of(annotation: Any, function: str) -> type | None:
    """The class that an event is annotated with. Raises if events can't be of it."""
    if annotation is Any or annotation is object:
        return None
    if isinstance(annotation, type) and (
        issubclass(annotation, msgspec.Struct) or dataclasses.is_dataclass(annotation)
    ):
        return annotation
    raise TopologyError(
        f"The event of {function} is annotated with {annotation}. Annotate it with a msgspec.Struct or a dataclass "
        "whose fields are columns of the stream, or not at all."
    )


def _fields(annotated: Any) -> list[tuple[str, object]]:
    """The fields a constructor takes, each with its default or default factory, `_NOTHING` where it has neither."""
    struct = issubclass(annotated, msgspec.Struct)
    absent = msgspec.NODEFAULT if struct else dataclasses.MISSING
    fields: Sequence[Any] = (
        msgspec.structs.fields(annotated) if struct else [f for f in dataclasses.fields(annotated) if f.init]
    )
    found: list[tuple[str, object]] = []
    for field in fields:
        default = field.default_factory if field.default is absent else field.default
        found.append((field.name, _NOTHING if default is absent else default))
    return found


def _takes_none(wanted: Any) -> bool:
    if types.NoneType in _options(wanted):
        return True
    try:
        msgspec.convert(None, wanted)
    except (msgspec.ValidationError, TypeError):  # msgspec does not know some unions
        return False
    return True


def _conversion(annotated: type, name: str, wanted: Any, column: str) -> Any:
    """None where a column's values are already of the wanted type; else the type to convert them to."""
    try:
        given: type = FieldType.parse(column).python
    except TopologyError:
        return wanted  # msgspec converts arrays, maps and structs to lists, dicts and objects
    options = _options(wanted)
    if wanted is Any or given in options or (given is int and float in options):
        return None
    raise TopologyError(
        f"{annotated.__name__}.{name} is annotated with {wanted}, but the column {name!r} is of type {column}, which "
        f"is {given.__name__} in Python. Change one of the two."
    )


def _options(wanted: Any) -> Sequence[Any]:
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return typing.get_args(wanted)
    if typing.get_origin(wanted) is typing.Annotated:
        return _options(typing.get_args(wanted)[0])
    return (wanted,)


def _takes_in_order(chosen: type, columns: tuple[str, ...]) -> bool:
    """Whether the constructor takes exactly these columns by position."""
    parameters = list(inspect.signature(chosen).parameters.values())[: len(columns)]
    return [p.name for p in parameters] == list(columns) and all(
        p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters
    )
