"""Several streams that keep one value per key together, each by a function of its own.

    carts  ─► key, event time, 0, {columns}, null ─┐
                                                   ├─ merged ─► one adder per stream ─► one value per key
    orders ─► key, event time, 1, null, {columns} ─┘

The streams become one of a common shape, as in a join, so each record moves the clock of its own source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import TopologyError, shown
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.types import Schema
from holdfast.topology.events import class_of, event_of, shape_for
from holdfast.topology.frames import key_of, type_of
from holdfast.topology.plain_frames import PlainFrame, arrow_schema
from holdfast.topology.processor import WrittenAs
from holdfast.topology.reducing import Reduced, check_callable, event_class
from holdfast.topology.steps import PlainStep, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.processor import OnError
    from holdfast.topology.stream import Grouped, Stream
    from holdfast.topology.window_reducing import ReducedInWindows
    from holdfast.topology.windows import Windows

Adder = Callable[[Any, Any], Any]

_TIME: Final = "_at"
_NUMBER: Final = "_stream"
"""The position of a merged record: of two records of the same time, that of the stream named first comes first."""


@dataclass(frozen=True)
class CogroupedWindows:
    """Grouped streams with windows."""

    cogrouped: Cogrouped
    windows: Windows

    def aggregate_with(
        self,
        initializer: Callable[[], Any],
        *,
        value: Any,
        merger: Callable[[Any, Any], Any] | None = None,
        on_error: OnError | None = None,
    ) -> ReducedInWindows:
        """Adds each record to the value of its windows, by its stream's function; `merger` is for sessions."""
        from holdfast.topology.window_reducing import in_windows

        reduced = self.cogrouped.aggregate_with(initializer, value=value, on_error=on_error)
        return in_windows(reduced, self.windows, merger, "aggregate_with()")


@dataclass(frozen=True)
class Cogrouped:
    """Grouped streams, each with the function that adds its records to the value of their key."""

    parts: tuple[tuple[Grouped, Adder], ...]

    def window(self, windows: Windows) -> CogroupedWindows:
        """Groups by windows of event time too: `.window(hf.tumbling("60s", grace="5s"))`."""
        for grouped, _ in self.parts:
            grouped.window(windows)  # raises for a stream without event times
        return CogroupedWindows(self, windows)

    def aggregate_with(self, initializer: Callable[[], Any], *, value: Any, on_error: OnError | None = None) -> Reduced:
        """Adds each record to the value of its key, by its stream's function.

        `initializer()` is the value of a new key, and `value` is its type, as in `group_by().aggregate_with()`.
        Returning None from a function deletes the key.
        """
        check_callable("aggregate_with", initializer, 0)
        key = _common_key([grouped for grouped, _ in self.parts])
        columns = tuple(f"_{number}" for number in range(len(self.parts)))
        makers = tuple(_maker(grouped.stream, adder) for grouped, adder in self.parts)
        adders = tuple(adder for _, adder in self.parts)

        def update(old: Any, event: Any) -> Any:
            for column, make, adder in zip(columns, makers, adders, strict=True):
                fields = getattr(event, column)
                if fields is not None:
                    return adder(initializer() if old is None else old, make(fields))
            raise AssertionError("a merged record belongs to one of the streams")

        first, *others = [_shaped(self.parts, number, key) for number in range(len(self.parts))]
        merged = first.merge(*others)
        written = WrittenAs.of("aggregate_with", initializer, *adders)
        return Reduced(merged.group_by(), "Cogroup", written, update, value, None, columns, on_error)


def cogroup(*parts: tuple[Grouped, Adder]) -> Cogrouped:
    """Aggregates several streams into one value per key, each by a function of its own.

        hf.cogroup(
            (carts.group_by(), add_item), (orders.group_by(), add_order)
        ).aggregate_with(Customer, value=Customer).store("customers")

    A function is called as `add_item(value, event)` and returns the next value, or None to delete the key.
    """
    for part in parts:
        _check_part(part)
    if len(parts) < 2:
        raise TopologyError(f"cogroup() needs at least two streams, and got {len(parts)}. {_EXAMPLE}")
    if len({id(grouped.stream.topology) for grouped, _ in parts}) > 1:
        raise TopologyError("cogroup(): the streams belong to different apps. Group streams of one app.")
    _common_key([grouped for grouped, _ in parts])
    for grouped, adder in parts:
        _maker(grouped.stream, adder)
    return Cogrouped(parts)


_EXAMPLE: Final = "Write hf.cogroup((a.group_by(), f), (b.group_by(), g))."


def _check_part(part: object) -> None:
    """Raises if this isn't a grouped stream with its function."""
    from holdfast.topology.stream import Grouped, Stream
    from holdfast.topology.windowing import WindowedGroup

    if not isinstance(part, tuple) or len(part) != 2:
        raise TopologyError(f"cogroup(): {shown(part)} is not a pair of a grouped stream and a function. {_EXAMPLE}")
    grouped, adder = part
    if isinstance(grouped, WindowedGroup):
        raise TopologyError(
            "cogroup(): a stream has windows already. All streams have the same ones: "
            "hf.cogroup((a.group_by(), f), (b.group_by(), g)).window(...)."
        )
    if not isinstance(grouped, Grouped):
        fact = "a stream that is not grouped" if isinstance(grouped, Stream) else "no grouped stream"
        raise TopologyError(f"cogroup(): {shown(grouped)} is {fact}. {_EXAMPLE}")
    check_callable("cogroup", adder, 2)


def is_cogrouped(stream: Stream) -> bool:
    """Whether the records of a stream are those of several, in the common shape."""
    return stream.position == (_NUMBER,)


def _common_key(groups: list[Grouped]) -> Schema:
    """The key of all streams, under the names that it has in the first."""
    keys = [key_of(grouped.stream.frame, grouped.columns) for grouped in groups]
    for other in keys[1:]:
        if [field.type for field in other.fields] != [field.type for field in keys[0].fields]:
            raise TopologyError(
                f"cogroup(): one stream is grouped by ({keys[0]}) and another by ({other}). Group all of them by "
                "columns of the same types, or cast one with with_column()."
            )
    if len({grouped.stream.timestamp is None for grouped in groups}) > 1:
        raise TopologyError(
            "cogroup(): some of the streams have an event time and others don't. Name its column in all of them: "
            "app.stream(df, key=..., timestamp=...)."
        )
    return keys[0]


def _maker(stream: Stream, adder: Adder) -> Callable[[dict[str, Any]], Any]:
    """What makes an event of a record's columns: of the class that the function names, or of all columns."""
    columns = tuple(stream.frame.columns)
    wanted = class_of(event_class(adder) or Any, getattr(adder, "__qualname__", repr(adder)))
    shape_for(wanted, {column: type_of(stream.frame, column) for column in columns})  # raises if it can't be made
    if wanted is None:
        return lambda fields: event_of(columns, fields)
    return lambda fields: msgspec.convert(fields, wanted)


def _shaped(parts: tuple[tuple[Grouped, Adder], ...], own: int, key: Schema) -> Stream:
    """A stream in the common shape: key, event time, its number, and a column per stream, null for the others."""
    grouped, _ = parts[own]
    stream = grouped.stream

    keys = tuple(zip(grouped.columns, key.names, strict=True))
    step = CogroupShape(keys, stream.timestamp, tuple(other.stream.frame for other, _ in parts), own)
    moment = None if stream.timestamp is None else _TIME
    return replace(stream.transform(step), key=tuple(key.names), timestamp=moment, position=(_NUMBER,))


@dataclass(frozen=True, eq=False)
class CogroupShape(PlainStep):
    """The step that gives the records of one stream the common shape."""

    keys: tuple[tuple[str, str], ...]
    """The stream's columns, each with its name in the key."""
    time: str | None
    frames: tuple[DataFrame, ...]
    """The columns of each stream."""
    own: int

    def __call__(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        def column(number: int, other: DataFrame) -> Column:
            found = F.struct("*") if number == self.own else F.lit(None)
            return found.cast(other.schema.simpleString()).alias(f"_{number}")

        keys = [F.col(quoted(column)).alias(name) for column, name in self.keys]
        time = [] if self.time is None else [F.col(quoted(self.time)).cast("timestamp").alias(_TIME)]
        sides = [column(number, other) for number, other in enumerate(self.frames)]
        return df.select(*keys, *time, F.lit(self.own).alias(_NUMBER), *sides)

    def plain(self, frame: PlainFrame) -> PlainFrame:
        return PlainFrame.of_arrow(self.arrow(arrow_schema(frame).empty_table()).schema)

    def arrow(self, records: pa.Table) -> pa.Table:
        columns = {name: records[column] for column, name in self.keys}
        if self.time is not None:
            columns[_TIME] = records[self.time].cast(pa.timestamp("us", "UTC"))
        columns[_NUMBER] = pa.repeat(pa.scalar(self.own, pa.int32()), records.num_rows)
        for number, frame in enumerate(self.frames):
            schema = arrow_schema(frame)
            if number == self.own:
                values = [whole(records[field.name]).cast(field.type) for field in schema]
                columns[f"_{number}"] = pa.StructArray.from_arrays(values, fields=list(schema))
            else:
                columns[f"_{number}"] = pa.nulls(records.num_rows, pa.struct(list(schema)))
        return pa.table(columns)

    def reads(self, names: Collection[str]) -> set[str]:
        time = [] if self.time is None else [self.time]
        return {*(column for column, _ in self.keys), *time, *self.frames[self.own].columns}

    def time_before(self, name: str) -> str | None:
        return self.time if name == _TIME else None
