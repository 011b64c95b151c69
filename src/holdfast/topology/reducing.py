"""Aggregates by a user's own Python: `reduce` and `aggregate_with`.

Both are a processor that Holdfast writes, over one store: it calls the user's function with the stored value and the
record, and stores what it returns. None deletes the key. So all that holds for processors holds here too: records come
in the order of their event times, entries are read in bulk, and `on_error` decides about a function that raises.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import FieldType
from holdfast.stores.kinds.base import KeyedOptions
from holdfast.stores.kinds.containers import EntryLimits
from holdfast.stores.kinds.timestamped import TimestampedKeyValueStore
from holdfast.stores.options import check_options
from holdfast.topology.derived import derive, names_of
from holdfast.topology.frames import key_of, type_of
from holdfast.topology.other_names import Named
from holdfast.topology.outputs import ChangedEntries, ForwardedRows, changes_of
from holdfast.topology.processing import add_processing
from holdfast.topology.processor import Context, OnError, Processor, WrittenAs, key_as_python
from holdfast.topology.sink import Sink
from holdfast.topology.steps import HasValue

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.stores.spec import StoreSpec
    from holdfast.topology.stream import Grouped, Stream
    from holdfast.topology.topology import Topology

Update = Callable[[Any, Any], Any]
"""From the stored value, None for a new key, and the event to the next value. None deletes the key."""


NO_COLUMNS: Final = (
    "A value that Python computes (reduce, aggregate_with, cogroup, top) has no columns. Use aggregates, such as "
    "hf.max('points'), or make a table with columns of its changes: table.to_stream().with_column('best', "
    "'CAST(value AS bigint)').group_by().aggregate(best=hf.last('best')).store(...), where the row of a deleted key "
    "stays, with nulls."
)
"""Why a table of a function can neither be joined nor ranked, and what to do."""


@dataclass(frozen=True)
class ReducedTable(Named):
    """A table whose values are computed in Python, one record at a time: a store that the stream keeps up to date."""

    CALLED: ClassVar[str] = "A table of Python values"
    INSTEAD: ClassVar[Mapping[str, str]] = {"join": NO_COLUMNS, "top": NO_COLUMNS}
    topology: Topology
    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, key={str(self.spec.key)!r})"

    @property
    def spec(self) -> StoreSpec:
        return next(store for store in self.topology.subtopology(self.name).stores if store.name == self.name)

    @property
    def _output(self) -> str:
        """The output with the table's changes."""
        return changes_of(self.name, self.name)

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The changed entries of each version as a stream, by the table's key, or by these columns.

        A record has the key's columns, `value` as JSON, `timestamp` and `_deleted`, which is true for a deleted key.
        """
        output = self.topology.outputs[self._output]
        assert isinstance(output, ChangedEntries | ForwardedRows)
        return derive(
            self.topology, self.name, output.name, output.columns, names_of(key) or tuple(self.spec.key.names)
        )

    def sink(self, sink: Sink, *, name: str | None = None) -> ReducedTable:
        """Sends the changed entries of every version to `sink`, after the version is committed. Returns this table.

        Rows have the key's columns, `value` as JSON, `timestamp` and `_deleted`, which is true for a deleted key.
        """
        kind = getattr(sink, "kind", "")
        self.topology.add_sink(self._output, sink, name or f"{self.name}.{kind}")
        return self


class ReducedOptions(KeyedOptions, EntryLimits, total=False):
    """The options of the store of a function's values."""


@dataclass(frozen=True)
class Reduced:
    """A function over the records of each key, which `.store(name)` keeps the value of."""

    grouped: Grouped
    label: str
    written: WrittenAs
    update: Update
    value: Any
    events: Any
    """What the function's event is annotated with; None: all columns of the stream."""
    columns: tuple[str, ...] | None
    """The columns of an event; None: all of them, or those of its class."""
    on_error: OnError | None

    def store(self, name: str, **options: Unpack[ReducedOptions]) -> ReducedTable:
        """Keeps the value of each key in a store of this name: durable, restored after a crash and open to queries.

        The options are those of a processor's key-value store, such as `ttl="1h"`, without `other_key`.
        """
        check_options(options, ReducedOptions.__annotations__, f"store({name!r})")
        stream = replace(self.grouped.stream, key=self.grouped.columns)
        key: Any = key_as_python(key_of(stream.frame, stream.key))
        values: Any = TimestampedKeyValueStore(name, key=key, value=self.value, late="last", **options)
        processor = processor_of(self.label, self.written, values, self.update, self.events)
        add_processing(stream, processor, None, {}, name, self.on_error, self.columns)
        return ReducedTable(stream.topology, name)


def reduce(grouped: Grouped, function: Callable[[Any, Any], Any], of: str, on_error: OnError | None) -> Reduced:
    """Combines the values of a column, two at a time."""
    check_callable("reduce", function, 2)
    kind = type_of(grouped.stream.frame, of)
    try:
        value = FieldType.parse(kind).python
    except TopologyError as error:
        raise TopologyError(f"reduce(of={of!r}): {error} Use aggregate_with() for other values.") from error

    def update(old: Any, event: Any) -> Any:
        new = getattr(event, of)
        return new if old is None else function(old, new)

    known = replace(grouped, stream=grouped.stream.transform(HasValue.of(of)))
    return Reduced(known, "Reduce", WrittenAs.of("reduce", function), update, value, None, (of,), on_error)


def aggregate_with(
    grouped: Grouped,
    initializer: Callable[[], Any],
    adder: Callable[[Any, Any], Any],
    value: Any,
    on_error: OnError | None,
) -> Reduced:
    """Adds each record to the value of its key."""
    check_callable("aggregate_with", initializer, 0)
    check_callable("aggregate_with", adder, 2)

    def update(old: Any, event: Any) -> Any:
        return adder(initializer() if old is None else old, event)

    written = WrittenAs.of("aggregate_with", initializer, adder)
    return Reduced(grouped, "Aggregate", written, update, value, event_class(adder), None, on_error)


def processor_of(
    label: str, written: WrittenAs, values: TimestampedKeyValueStore[Any, Any], update: Update, event: Any
) -> type[Processor]:
    """A processor that keeps what `update` returns. `event` is the class of its events, None for all columns."""

    class Reducing(Processor):
        _written = replace(written, store=values.name)
        store = values

        def process(self, key: Any, event: Any, ctx: Context) -> None:
            there = self.store.get(key)
            value = update(None if there is None else there.value, event)
            if value is not None:
                self.store.put(key, value, ctx.timestamp if there is None else max(there.timestamp, ctx.timestamp))
            elif there is not None:
                self.store.delete(key)

    Reducing.__name__ = label
    Reducing.process.__annotations__ = {} if event is None else {"event": event}
    return Reducing


def event_class(adder: Callable[..., Any]) -> Any:
    """What the event of a function is annotated with, if anything."""
    try:
        hints = typing.get_type_hints(adder)
    except (NameError, TypeError):
        return None  # names that only a type checker knows, or an object that has no annotations
    if not hints:
        return None
    _, event = list(inspect.signature(adder).parameters)[:2]
    found = hints.get(event)
    return None if found in (Any, object) else found


def check_callable(where: str, function: object, arguments: int) -> None:
    expected = {0: "f()", 2: "f(value, record)"}[arguments]
    if not callable(function):
        raise TopologyError(f"{where}(): {function!r} is not a function. Pass one that is called as {expected}.")
    try:
        inspect.signature(function).bind(*range(arguments))
    except ValueError:
        return  # a function of C that doesn't say what it takes, such as max
    except TypeError as error:
        raise TopologyError(
            f"{where}(): {getattr(function, '__name__', function)} can't be called as {expected}: {error}."
        ) from error
