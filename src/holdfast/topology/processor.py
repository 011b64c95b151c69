"""Processors: a user's own Python, record by record, over any number of stores.

A processor is a class. Its stores are class attributes, its work is `process(key, event, ctx)`, and the rows it
forwards are an output for sinks. `pipeline.processing_task` creates one object of the class per task and version, binds
its stores and passes it the task's records in the order of their event times.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, cast, get_args

import msgspec

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds.base import Store
from holdfast.stores.kinds.global_store import GlobalStore
from holdfast.stores.layouts.base import Count
from holdfast.stores.options import ROCKSDB
from holdfast.stores.spec import StoreSpec, check_name
from holdfast.topology.events import as_mapping
from holdfast.topology.forwarding import OutputSchemas, outlets_of, unknown_output
from holdfast.words import Version

OnError = Literal["fail", "skip", "dead_letter"]
"""What happens to a record for which a user's function raises."""

ON_ERROR: Final = get_args(OnError)


class Context:
    """What a processor knows about the current record, and where it forwards rows."""

    __slots__ = ("_key", "_main", "counted", "now", "outlets", "partition", "timestamp", "version")

    def __init__(
        self,
        version: Version,
        now: Now,
        partition: int,
        outputs: OutputSchemas,
        count: Count,
        key: str = "key string",
    ) -> None:
        """`key` are the columns of the stream's key with their types, for a message."""
        self.version = version
        """The version that this task computes a part of."""
        self.now = now
        """The clocks of this version: `now.wall`, and `now.event`, the event time of the previous version."""
        self.partition = partition
        self.timestamp = now.wall
        """The record's event time in milliseconds; the wall clock in a stream without event times.

        In a punctuator: the time of its clock.
        """
        self.outlets = outlets_of(outputs)
        self._main = self.outlets.get(None)
        self.counted = count
        self._key = key

    def forward(self, key: object, value: Mapping[str, object] | object, to: str | None = None) -> None:
        """Sends a row to the processor's output, or to the one that `to` names.

        The key fills the first columns, the value the others. A tuple as key fills one column per part, None fills
        none. The value, a mapping, a Struct or a dataclass, has one entry per remaining column. It may also have the
        columns that the key fills, with the same values, as the event of a record has.
        """
        outlet = self._main if to is None else self.outlets.get(to)
        if outlet is None:
            raise unknown_output(to, self.outlets, self._key)
        parts = key if isinstance(key, tuple) else () if key is None else (key,)
        row = value if isinstance(value, dict) else as_mapping(value)
        pick = outlet.picks.get(len(parts)) or outlet.picker(len(parts))
        try:
            outlet.rows.append(parts + pick(row))
        except KeyError:
            raise outlet.misfit(parts, row) from None
        if len(row) + len(parts) != outlet.width and not outlet.repeats_key(parts, row):
            outlet.rows.pop()
            raise outlet.misfit(parts, row)
        outlet.times.append(self.timestamp)

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a count of the user's own, which is in the commit and the metrics under this name."""
        self.counted(name, number)


@dataclass(frozen=True)
class WrittenAs:
    """The operator that a user wrote, where Holdfast has made the processor. Errors speak of it."""

    operator: str
    functions: tuple[str, ...]
    store: str = ""

    @classmethod
    def of(cls, operator: str, *functions: Callable[..., Any]) -> WrittenAs:
        """An operator with these functions.

        >>> str(replace(WrittenAs.of("aggregate_with", list, lambda value, event: value), store="pages"))
        "aggregate_with(list, <lambda>) of the store 'pages'"
        """
        return cls(operator, tuple(map(_name_of_function, functions)))

    def with_function(self, function: Callable[..., Any]) -> WrittenAs:
        return replace(self, functions=(*self.functions, _name_of_function(function)))

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(self.functions)}) of the store {self.store!r}"


def _name_of_function(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)


class Processor:
    """A user's own step. Derive from it, declare its stores as class attributes, and write `process`.

        class Visits(hf.Processor):
            visits = hf.KeyValueStore("visits", value=int)

            def process(self, key, event, ctx):
                self.visits[key] = self.visits.get(key, 0) + 1
                ctx.forward(key, {"visits": self.visits[key]})

    One object processes one partition of one version. State that must outlive it belongs in a store. Its side effects
    may happen more than once.
    """

    _written: ClassVar[WrittenAs | None] = None
    _texts: ClassVar[bool] = False
    """Whether a date or time that Python doesn't have is its text in keys and events."""

    def init(self, ctx: Context) -> None:
        """Called once before the first record of a version, and in a version without records."""

    def process(self, key: Any, event: Any, ctx: Context) -> None:
        """Processes one record: its key, its columns as attributes of `event`, and its context."""

    def prefetch(self, key: Any, event: Any) -> Iterable[tuple[Any, Any]]:
        """The entries that `process` will look up under other keys than the record's, as pairs of a store and a key.

        They are read in bulk before `process` runs, instead of one by one:

            def prefetch(self, key, event):
                yield self.orders, event.order_id
        """
        return ()

    def close(self) -> None:
        """Called once after the last record of a version."""


def stores_of(processor: type[Processor]) -> dict[str, Store[Any, Any]]:
    """The stores among a class's attributes in the order of declaration, those of base classes first."""
    found: dict[str, Store[Any, Any]] = {}
    for each in reversed(processor.__mro__):
        for attribute, value in vars(each).items():
            if isinstance(value, Store):
                found[attribute] = value
            else:
                found.pop(attribute, None)
    return found


def globals_of(processor: type[Processor]) -> dict[str, GlobalStore[Any, Any]]:
    """The global tables among a class's attributes that it reads."""
    found = {name: inspect.getattr_static(processor, name) for name in dir(processor)}
    return {name: value for name, value in found.items() if isinstance(value, GlobalStore)}


def specs_of(processor: type[Processor], engine: str = ROCKSDB) -> tuple[tuple[str, StoreSpec], ...]:
    """The attribute and the spec of each store. `engine` is for stores that name none."""
    found: dict[str, tuple[str, StoreSpec]] = {}
    for attribute, declared in stores_of(processor).items():
        spec = declared.spec(default_engine=engine)
        if spec.name in found:
            raise two_stores(spec.name)
        found[spec.name] = (attribute, spec)
    return tuple(found.values())


def timed(spec: StoreSpec, *, event_times: bool) -> StoreSpec:
    """The spec with the clock that measures retention, if it has any."""
    return spec if event_times or not spec.retention_ms else msgspec.structs.replace(spec, clock="wall")


def two_stores(name: str) -> TopologyError:
    return TopologyError(
        f"There are two stores named {name!r}. Every store has a name of its own. For two processors to share one, "
        "declare it once, and use that object in both."
    )


def check_processor(processor: object) -> type[Processor]:
    """Raises if this is not a processor that can run."""
    if not isinstance(processor, type) or not issubclass(processor, Processor):
        shown = processor.__name__ if isinstance(processor, type) else repr(processor)
        raise TopologyError(
            f"stream.process() takes a class that derives from hf.Processor, and got {shown}. Pass the class "
            "itself; every task creates an object of it."
        )
    if processor.process is Processor.process:
        raise TopologyError(f"{processor.__name__} has no process(self, key, event, ctx). Write one.")
    return processor


def check_on_error(on_error: object) -> OnError:
    if on_error not in ON_ERROR:
        raise TopologyError(
            f"on_error={on_error!r} is none of {', '.join(ON_ERROR)}. {did_you_mean(str(on_error), ON_ERROR)}It says "
            "what happens to a record for which the processor raises."
        )
    return cast(OnError, on_error)


def name_of(processor: type[Processor]) -> str:
    """The default name of a processor, from the name of its class.

    >>> name_of(type("UserSessions", (Processor,), {}))
    'user-sessions'
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", processor.__name__).lower().strip("_")
    check_name(name)
    return name


def parse_output(text: str | Schema, what: str = "output") -> Schema:
    """The columns of an output, written as in Spark.

    >>> print(parse_output("player string, paid decimal(10, 2), n long"))
    player string, paid decimal(10,2), n bigint
    """
    if isinstance(text, Schema):
        return text
    fields = []
    for part in re.split(r",(?![^(]*\))", text):
        name, _, kind = part.strip().replace(":", " ", 1).partition(" ")
        if not name or not kind.strip():
            raise TopologyError(
                f"{what}={text!r} can't be read at {part.strip()!r}. Write a name and a type for each column, such as "
                f"{what}='player string, n bigint'."
            )
        fields.append(Field(name.strip("`"), kind.strip()))
    return Schema(tuple(fields))


def parse_outputs(
    main: str | Schema | None, named: Mapping[str, str | Schema]
) -> tuple[tuple[str | None, Schema], ...]:
    """The columns of every output of a processor: of the main one, if it has one, and of the named ones."""
    for name in named:
        check_name(name)
    found: list[tuple[str | None, Schema]] = [(name, parse_output(columns)) for name, columns in named.items()]
    return tuple(found) if main is None else ((None, parse_output(main)), *found)


_AS_PYTHON = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}


def key_as_python(key: Schema) -> Schema:
    """The key with the types that a store's key has in Python, so that both hash to the same partition.

    >>> print(key_as_python(Schema.of(player="string", level="int")))
    player string, level bigint
    """
    return Schema(tuple(Field(field.name, _AS_PYTHON.get(field.type, field.type)) for field in key.fields))
