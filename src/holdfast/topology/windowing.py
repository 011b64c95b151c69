"""Windowed aggregations: the operator that keeps one row of aggregates per key and window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Never

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.waiting import EVERY, FINAL
from holdfast.stores.layouts.windowed import WINDOW_END, WINDOW_START
from holdfast.stores.options import Length, check_options, words
from holdfast.stores.spec import SESSION, WINDOW, KindOptions, StoreSpec
from holdfast.topology.aggregates import Aggregate, count
from holdfast.topology.aggregation import Aggregates, Aggregation, Table, add_operator, bound, check_unused
from holdfast.topology.derived import derive, names_of
from holdfast.topology.frames import type_of
from holdfast.topology.other_names import Named
from holdfast.topology.outputs import DELETED, OF_STORE, AggregateRows, ForwardedRows, Output
from holdfast.topology.sink import Sink
from holdfast.topology.topology import SubTopology, Topology
from holdfast.topology.windows import Every, SessionWindows, SlidingWindows, TimeWindows, Windows

if TYPE_CHECKING:
    from holdfast.topology.processor import OnError
    from holdfast.topology.stream import Grouped, Stream
    from holdfast.topology.window_reducing import ReducedInWindows

LATE: Final = "late"
"""The output with the records that came too late."""

UPDATES: Final = "updates"

FINAL_ROWS: Final = "final"
"""The output with the windows that have closed."""


@dataclass(frozen=True)
class WindowedAggregation(Aggregation):
    """Named aggregates per key and window."""

    windows: Windows
    updates: bool = False
    """Whether sinks get one result per record."""

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        (rows,) = super().outputs(subtopology)
        assert isinstance(rows, AggregateRows)
        name, number = subtopology.name, subtopology.number
        late = ForwardedRows(output_of(name, LATE), number, self.late_columns(subtopology))
        sent = ForwardedRows(name, number, rows.columns) if self.updates else rows
        match self.waiting(subtopology):
            case None:
                return (sent, late)
            case waiting if waiting == name:
                return (ForwardedRows(name, number, rows.columns), late)
            case waiting:
                shown = tuple(field for field in rows.columns.fields if field.name != DELETED)
                return (sent, late, ForwardedRows(waiting, number, Schema(shown)))

    def late_columns(self, subtopology: SubTopology) -> Schema:
        """The columns of late records where they are a stream; none otherwise: sinks get them as they were read."""
        is_streamed = subtopology.stream.topology.is_streamed(output_of(subtopology.name, LATE))
        return columns_of_late(subtopology.stream) if is_streamed else Schema(())

    def waiting(self, subtopology: SubTopology) -> str | None:
        """The output of windows that wait to be sent; None if none do."""
        (store,) = subtopology.stores
        if store.option(EVERY):
            return subtopology.name
        return output_of(subtopology.name, FINAL_ROWS) if store.option(FINAL) else None

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield f"windows {self.windows}"
        (store,) = subtopology.stores
        if length := store.option(EVERY):
            yield f"sends a changed window at most once per {words(length)} of event time"
        if self.updates:
            yield "sends one result per record"
        if store.option(FINAL):
            yield "sends a window when it closes"
        yield from super().lines(subtopology)


def output_of(table: str, what: str) -> str:
    """The name of one of a table's further outputs."""
    return f"{table}{OF_STORE}{what}"


@dataclass(frozen=True)
class TableOutput(Named):
    """A further output of a windowed table."""

    CALLED: ClassVar[str] = "An output"
    topology: Topology
    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The rows of each version as a stream, by the table's key or by these columns.

        A row's event time is the latest of the records in its window.
        """
        output = self.topology.outputs[self.name]
        assert isinstance(output, ForwardedRows)
        of = self.topology.subtopology(self.name.partition(OF_STORE)[0])
        return derive(self.topology, of.name, self.name, output.columns, names_of(key) or of.key.names)

    def sink(self, sink: Sink, *, name: str | None = None) -> TableOutput:
        """Sends the rows of every version to `sink`, after the version is committed. Returns this output."""
        self.topology.add_sink(self.name, sink, name)
        return self


@dataclass(frozen=True, repr=False)
class LateRecords(TableOutput):
    """The late records of a windowed table."""

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The late records of each version as a stream, by the key of the table's stream or by these columns.

        It has all columns of the table's stream, so the app reads all of them: `select` before `window` to read less.
        """
        name = self.name.partition(OF_STORE)[0]
        of = self.topology.subtopology(name).stream
        late = derive(self.topology, name, self.name, columns_of_late(of), names_of(key) or of.key)
        return replace(late, timestamp=of.timestamp)


def columns_of_late(stream: Stream, used: Collection[str] | None = None) -> Schema:
    """The columns of late records, all or those used. Raises for a type that a derived stream can't have."""
    fields = []
    for column in (column for column in stream.columns if used is None or column in used):
        kind = type_of(stream.frame, column)
        try:
            fields.append(Field(column, kind))
        except TopologyError as error:
            raise TopologyError(
                f"late: the column {column!r} can't be in a derived stream. {error} Leave it out before window(): "
                f"stream.drop({column!r}), or cast it."
            ) from error
    return Schema(tuple(fields))


@dataclass(frozen=True, repr=False)
class WindowedTable(Table):
    """A windowed aggregation of an app: a store with one row per key and window."""

    @property
    def late(self) -> LateRecords:
        """The records that came too late for each of their windows, with all columns of the table's stream."""
        return LateRecords(self.topology, output_of(self.name, LATE))

    def final(self) -> TableOutput:
        """One row per key and window, when the window closes and never before."""
        check_sends_final(self.spec)
        self.topology.change_store(self.name, with_final)
        return TableOutput(self.topology, output_of(self.name, FINAL_ROWS))


def check_sends_final(spec: StoreSpec) -> None:
    """Raises for a table that sends its windows every so often."""
    if length := spec.option(EVERY):
        raise TopologyError(
            f"final(): the table {spec.name!r} sends its windows every {words(length)}. A table can't do both. "
            "Leave emit= out, or make a second table for final results."
        )


def with_final(spec: StoreSpec) -> StoreSpec:
    return spec if spec.option(FINAL) else msgspec.structs.replace(spec, fixed=(*spec.fixed, (FINAL, True)))


@dataclass(frozen=True)
class WindowedGroup(Named):
    """A stream grouped by key and window."""

    CALLED: ClassVar[str] = "A windowed group"
    grouped: Grouped
    windows: Windows

    def aggregate(self, *unnamed: Never, **aggregates: Aggregate) -> WindowedAggregates:
        """Computes any number of aggregates per key and window: `.aggregate(beats=hf.count(), peak=hf.max("bpm"))`."""
        return WindowedAggregates(self, self.grouped.aggregate(*unnamed, **aggregates).aggregates)

    def count(self) -> WindowedAggregates:
        """Counts the records per key and window, as `count`."""
        return self.aggregate(count=count())

    def reduce(
        self, function: Callable[[Any, Any], Any], *, of: str, on_error: OnError | None = None
    ) -> ReducedInWindows:
        """Combines the values of a column per window, two at a time: `.reduce(max, of="points")`.

        As `group_by().reduce()`. The values of two sessions that become one are combined by it too. The values of a
        sliding window are combined in the order of their event times.
        """
        from holdfast.topology.window_reducing import in_windows

        return in_windows(self.grouped.reduce(function, of=of, on_error=on_error), self.windows, function, "reduce()")

    def aggregate_with(
        self,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any], Any],
        *,
        value: Any,
        merger: Callable[[Any, Any], Any] | None = None,
        on_error: OnError | None = None,
    ) -> ReducedInWindows:
        """Adds each record to the value of its windows by a function of yours.

        As `group_by().aggregate_with()`. Sessions need `merger(earlier_value, later_value)` too: it returns the value
        of the session that two sessions become. Returning None deletes a window, and sinks get `_deleted`.
        """
        from holdfast.topology.window_reducing import in_windows

        reduced = self.grouped.aggregate_with(initializer, adder, value=value, on_error=on_error)
        return in_windows(reduced, self.windows, merger, "aggregate_with()")


@dataclass(frozen=True)
class WindowedAggregates:
    """Aggregates per key and window that `.store(name)` keeps in a store."""

    group: WindowedGroup
    aggregates: Aggregates

    def store(
        self,
        name: str,
        *,
        retention: Length | None = None,
        emit: Every | Literal["updates"] | None = None,
        engine: str | None = None,
        durable: bool = True,
        profile: str = "balanced",
        everywhere: bool = False,
        rocksdb_options: str | None = None,
        **unknown: Never,
    ) -> WindowedTable:
        """Keeps the aggregates in a window or session store of this name.

        `retention="6h"`: how long windows are kept by event time: a day by default, and at least for as long as a
        window takes records. `emit=hf.every("30s")`: sinks get a changed window at most once per 30 s of event time,
        instead of once per version. `emit="updates"`: they get one row per record, with the results after it. The other
        options are those of a processor's store.
        """
        where = f"store({name!r})"
        check_options(unknown, _STORE_OPTIONS, where)
        stream, windows = self.group.grouped.stream, self.group.windows
        make = partial(
            windowed_spec,
            name,
            windows,
            emit=None if emit == UPDATES else emit,
            codec=ROWS,
            retention=retention,
            engine=engine,
            default_engine=stream.topology.engine,
            durable=durable,
            everywhere=everywhere,
            profile=profile,
            rocksdb_options=rocksdb_options,
            where=where,
        )
        spec, plain = bound(stream, self.group.grouped.columns, self.aggregates, make)
        self._check_columns(spec)
        add_operator(stream, spec, WindowedAggregation(plain.aggregates, plain.reducers, windows, emit == UPDATES))
        return WindowedTable(stream.topology, name)

    def _check_columns(self, spec: StoreSpec) -> None:
        names = [*spec.key.names, *(label for label, _ in self.aggregates)]
        for column in (WINDOW_START, WINDOW_END):
            check_unused(column, names, spec.name, "sinks see the times of a window")
        if layout_of(spec).deletes:
            check_unused(DELETED, names, spec.name, "sinks see that a session was merged into another")


_STORE_OPTIONS = frozenset(WindowedAggregates.store.__kwdefaults__ or ())


def windowed_spec(name: str, windows: Windows, *, emit: Every | None = None, **options: Any) -> StoreSpec:
    """The spec of a store of these windows."""
    kind, own, fixed = store_of(windows)
    spec = store_spec(name, kind, **own, **options)
    if emit is not None:
        fixed += ((EVERY, check_emit(emit, name, spec)),)
    return msgspec.structs.replace(spec, fixed=spec.fixed + fixed)


def check_emit(emit: object, name: str, spec: StoreSpec) -> int:
    """The milliseconds after which a changed window is sent. Raises if it would expire before."""
    if not isinstance(emit, Every):
        raise TopologyError(
            f"store({name!r}): emit={emit!r} is not possible. Use 'updates' or hf.every('30s'), or leave it out."
        )
    least = spec.option("window_ms") + (spec.option("grace_ms") or 0) + emit.every_ms
    if spec.retention_ms < least:
        raise TopologyError(
            f"store({name!r}): retention={words(spec.retention_ms)} is shorter than a window, its grace and "
            f"emit={emit} together, {words(least)}: windows would expire before they are sent. Use "
            f'retention="{words(least)}" or more.'
        )
    return emit.every_ms


def store_of(windows: Windows) -> tuple[str, dict[str, Any], KindOptions]:
    """The kind of the store, its options, and what else of the windows stored bytes depend on."""
    grace = timedelta(milliseconds=windows.grace_ms)
    match windows:
        case TimeWindows(size_ms=size, every_ms=every):
            hops: KindOptions = () if every == size else (("every_ms", every),)
            return WINDOW, {"size": timedelta(milliseconds=size), "grace": grace}, hops
        case SlidingWindows(size_ms=size):
            return WINDOW, {"size": timedelta(milliseconds=size), "grace": grace}, (("sliding", True),)
        case SessionWindows(gap_ms=gap):
            return SESSION, {"gap": timedelta(milliseconds=gap), "grace": grace}, ()


def window(grouped: Grouped, windows: Windows) -> WindowedGroup:
    """A group with windows. Raises if its stream has no event time."""
    if not isinstance(windows, TimeWindows | SlidingWindows | SessionWindows):
        raise TopologyError(
            f"window({windows!r}): not a window. Use hf.tumbling('60s'), hf.hopping('5m', every='1m'), "
            "hf.sliding('5m') or hf.session('30m')."
        )
    if grouped.stream.timestamp is None:
        raise TopologyError(
            f"window({windows}): windows are spans of event time, and the stream has none. Name its column: "
            "app.stream(df, key=..., timestamp=...)."
        )
    return WindowedGroup(grouped, windows)
