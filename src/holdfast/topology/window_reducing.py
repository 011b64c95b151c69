"""Windows and sessions by a user's own Python: `reduce` and `aggregate_with` after `window`.

As without windows, both are a processor that Holdfast writes (`topology.reducing`), here over a store of windows. A
record is added to each of its windows that is open, in the order of event times:

    hopping    value of the window ─► add(value, record) ─► value of the window
    session    values of near sessions ─► merge(one, other) ... ─► add(value, record) ─► value of the new session

A function that returns None deletes the window. Sinks get a row in which `_deleted` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds.base import Options
from holdfast.stores.kinds.reduced import ReducedSessions, ReducedStore, ReducedWindows, StoredWindow
from holdfast.stores.layouts.waiting import FINAL
from holdfast.stores.layouts.windowed import WINDOW_END, WINDOW_START
from holdfast.stores.options import Length
from holdfast.topology.aggregation import check_unused
from holdfast.topology.cogrouping import is_cogrouped
from holdfast.topology.derived import derive
from holdfast.topology.frames import key_of
from holdfast.topology.outputs import DELETED, as_json, forwarded_to
from holdfast.topology.processing import Processing, add_processing
from holdfast.topology.processor import Context, Processor, key_as_python
from holdfast.topology.reducing import Reduced, ReducedTable, Update
from holdfast.topology.windowing import FINAL_ROWS, LATE, UPDATES, columns_of_late, names_of, store_of, with_final
from holdfast.topology.windows import SessionWindows, TimeWindows, Window, Windows

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.topology.sink import Sink
    from holdfast.topology.stream import Stream
    from holdfast.topology.topology import Operator, Topology

Merger = Callable[[Any, Any], Any]
"""From the values of two sessions of a key, the earlier one first, to that of the session they become."""


@dataclass(frozen=True)
class LateRow:
    """How a late record becomes a row: its columns, and which of them are in the key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    time: str
    of_event: frozenset[str]

    def row(self, key: Any, event: Any, timestamp: int) -> dict[str, Any]:
        parts = key if isinstance(key, tuple) else (key,)
        known = dict(zip(self.key, parts, strict=True)) | {self.time: timestamp * 1_000}
        return {name: getattr(event, name) if name in self.of_event else known[name] for name in self.columns}


@dataclass(frozen=True)
class WindowRules:
    """What the processor does with a record. `store` is its bound store in all methods."""

    windows: TimeWindows | SessionWindows
    update: Update
    merge: Merger | None
    updates: bool
    """Whether it forwards one row per record and window."""
    late: LateRow | None = None
    """How it forwards late records, if anyone takes them."""

    def process(self, store: ReducedStore, key: Any, event: Any, ctx: Context) -> None:
        if isinstance(self.windows, SessionWindows):
            assert isinstance(store, ReducedSessions)
            is_late = not self._in_session(self.windows, store, key, event, ctx)
        else:
            is_late = not self._in_windows(self.windows, store, key, event, ctx)
        if is_late:
            store.count_late()
            if self.late is not None:
                ctx.forward(None, self.late.row(key, event, ctx.timestamp), to=LATE)

    def _is_open(self, window: Window, ctx: Context) -> bool:
        return ctx.now.event is None or self.windows.closes(window) > ctx.now.event

    def _in_windows(self, windows: TimeWindows, store: ReducedStore, key: Any, event: Any, ctx: Context) -> bool:
        """Adds a record to its open windows; false if it has none."""
        added = False
        for window in windows.windows_of(ctx.timestamp):
            if self._is_open(window, ctx):
                there = store.held(store.own(key, *window))
                value = self.update(None if there is None else there.value, event)
                latest = ctx.timestamp if there is None else max(there.timestamp, ctx.timestamp)
                self._set(store, key, StoredWindow(*window, value, latest), there is not None, ctx)
                added = True
        return added

    def _in_session(self, windows: SessionWindows, store: ReducedSessions, key: Any, event: Any, ctx: Context) -> bool:
        """Makes one session of a record and the open sessions near it; false if that session has closed."""
        time, gap = ctx.timestamp, windows.gap_ms
        near = [each for each in store.near(key, time - gap, time + gap) if self._is_open(_window(each), ctx)]
        new = Window(min([time, *(each.start for each in near)]), max([time, *(each.end for each in near)]))
        if not self._is_open(new, ctx):
            return False
        assert self.merge is not None
        value = None
        for each in near:
            value = each.value if value is None else self.merge(value, each.value)
            if _window(each) != new:
                self._remove(store, key, each, ctx)
        latest = max([time, *(each.timestamp for each in near)])
        is_there = any(_window(each) == new for each in near)
        self._set(store, key, StoredWindow(*new, self.update(value, event), latest), is_there, ctx)
        return True

    def _set(self, store: ReducedStore, key: Any, new: StoredWindow, is_there: bool, ctx: Context) -> None:
        if new.value is None:
            if is_there:
                self._remove(store, key, new, ctx)
            return
        own = store.own(key, new.start, new.end)
        store.keep(own, new.value, new.timestamp)
        if store.waits and not is_there:
            store.waiting.put(self.windows.closes(_window(new)), own)
        if self.updates:
            ctx.forward(key, {**row_of(new), DELETED: False})

    def _remove(self, store: ReducedStore, key: Any, old: StoredWindow, ctx: Context) -> None:
        own = store.own(key, old.start, old.end)
        store.drop(own)
        if store.waits:
            store.waiting.remove(self.windows.closes(_window(old)), own)
        if self.updates:
            ctx.forward(key, {**row_of(old), "value": None, DELETED: True})

    def send_due(self, store: ReducedStore, ctx: Context) -> None:
        """Forwards the windows that have closed, as the store had them at `v-1`."""
        if not store.waits or ctx.now.event is None:
            return
        before = ctx.timestamp
        for own, due, held in store.due(ctx.now.event):
            store.waiting.remove(due, own)
            if held is None:
                continue
            if self._is_open(_window(held), ctx):  # the grace has grown since: it waits on
                store.waiting.put(self.windows.closes(_window(held)), own)
                continue
            ctx.timestamp = held.timestamp
            ctx.forward(store.key_of(own), row_of(held), to=FINAL_ROWS)
        ctx.timestamp = before


def _window(held: StoredWindow) -> Window:
    return Window(held.start, held.end)


def row_of(held: StoredWindow) -> dict[str, Any]:
    """A window as sinks get it, without its key."""
    times = {WINDOW_START: held.start * 1_000, WINDOW_END: held.end * 1_000}
    return {**times, "value": as_json(held.value), "timestamp": held.timestamp}


class WindowProcessor(Processor):
    """A processor by rules."""

    store: ClassVar[ReducedStore]
    rules: ClassVar[WindowRules]
    events: ClassVar[Any]
    """The class of its events, None for all columns."""

    def init(self, ctx: Context) -> None:
        self.rules.send_due(self.store, ctx)


def processor_of(label: str, values: ReducedStore, by: WindowRules, event: Any) -> type[WindowProcessor]:
    """A processor with these rules. `event` is the class of its events, None for all columns."""

    class Windowing(WindowProcessor):
        store, rules, events = values, by, event

        def process(self, key: Any, event: Any, ctx: Context) -> None:
            self.rules.process(self.store, key, event, ctx)

    Windowing.__name__ = label
    Windowing.process.__annotations__ = {} if event is None else {"event": event}
    return Windowing


@dataclass(frozen=True)
class ReducedOutput:
    """A further output of a windowed table whose values are computed in Python: late records, or final rows."""

    topology: Topology
    table: str
    what: str
    columns: Schema
    key: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ReducedOutput({forwarded_to(self.table, self.what)!r}, columns={str(self.columns)!r})"

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The rows of each version as a stream, by the key of the table's stream or by these columns."""
        output = forwarded_to(self.table, self.what)
        return derive(self.topology, self.table, output, self.columns, names_of(key) or self.key)

    def sink(self, sink: Sink, *, name: str | None = None) -> ReducedOutput:
        """Sends the rows of every version to `sink`, after the version is committed. Returns this output."""
        self.topology.add_sink(forwarded_to(self.table, self.what), sink, name)
        return self


@dataclass(frozen=True, repr=False)
class ReducedWindowedTable(ReducedTable):
    """A windowed table whose values are computed in Python, one record at a time."""

    @property
    def _operator(self) -> Processing:
        operator = self.topology.subtopology(self.name).operator
        assert isinstance(operator, Processing)
        return operator

    @property
    def _rules(self) -> WindowRules:
        processor = self._operator.processor
        assert issubclass(processor, WindowProcessor)
        return processor.rules

    @property
    def _output(self) -> str:
        return self.name if self._rules.updates else super()._output

    @property
    def late(self) -> ReducedOutput:
        """The records that came too late for each of their windows, with the columns that the functions get."""
        stream, of_event = self.topology.subtopology(self.name).stream, self._operator.event.columns
        assert stream.timestamp is not None
        if is_cogrouped(stream):
            raise TopologyError(
                f"late: the records of the table {self.name!r} are of several streams, each with columns of its own. "
                "Count each stream in the same windows by itself, and take the late records of that table."
            )
        columns = columns_of_late(stream, {*stream.key, stream.timestamp, *of_event})
        if self._rules.late is None:
            row = LateRow(columns.names, stream.key, stream.timestamp, frozenset(of_event))
            self._change(replace(self._rules, late=row), LATE, columns)
        return ReducedOutput(self.topology, self.name, LATE, columns, stream.key)

    def final(self) -> ReducedOutput:
        """One row per key and window, when the window closes and never before."""
        columns = Schema((*self.spec.key.fields, *_VALUE))
        if not self.spec.option(FINAL):
            self.topology.change_store(self.name, with_final)
            self._change(self._rules, FINAL_ROWS, columns)
        return ReducedOutput(self.topology, self.name, FINAL_ROWS, columns, self.spec.key.names)

    def _change(self, rules: WindowRules, output: str, columns: Schema) -> None:
        """Gives the processor other rules, and one more output."""

        def changed(operator: Operator) -> Operator:
            assert isinstance(operator, Processing) and issubclass(operator.processor, WindowProcessor)
            was = operator.processor
            made = processor_of(was.__name__, was.store, rules, was.events)
            return replace(operator, processor=made, forwards=(*operator.forwards, (output, columns)))

        self.topology.change_operator(self.name, changed)


_VALUE = Schema.of(window_start="timestamp", window_end="timestamp", value="string", timestamp="bigint").fields
"""The columns of a row after the key's."""


@dataclass(frozen=True)
class ReducedInWindows:
    """Functions over the records of each key and window, which `.store(name)` keeps the values of."""

    reduced: Reduced
    windows: TimeWindows | SessionWindows
    merge: Merger | None

    def store(
        self,
        name: str,
        *,
        retention: Length | None = None,
        emit: Literal["updates"] | None = None,
        **options: Unpack[Options],
    ) -> ReducedWindowedTable:
        """Keeps the values in a window or session store of this name.

        `retention="6h"`: how long windows are kept by event time. `emit="updates"`: sinks get one row per record and
        window instead of one per window and version. The other options are those of a processor's store.
        """
        if emit not in (None, UPDATES):
            raise TopologyError(
                f"store({name!r}): emit={emit!r} is not possible for values that a function computes. Use 'updates' or "
                "leave it out; table.final() sends each window once, when it closes."
            )
        grouped, reduced = self.reduced.grouped, self.reduced
        stream = replace(grouped.stream, key=grouped.columns)
        key = key_as_python(key_of(stream.frame, stream.key))
        for column in (*(field.name for field in _VALUE), DELETED):
            check_unused(column, key.names, name, "sinks see a window's times, value or end")
        _, own, fixed = store_of(self.windows)
        kind: Any = ReducedSessions if isinstance(self.windows, SessionWindows) else ReducedWindows
        declared = kind(name, key=key, value=reduced.value, retention=retention, **own, **options)
        rules = WindowRules(self.windows, reduced.update, self.merge, emit == UPDATES)
        output = Schema((*key.fields, *_VALUE, Field(DELETED, "boolean"))) if rules.updates else None
        processor = processor_of(reduced.label, declared, rules, reduced.events)
        add_processing(stream, processor, output, {}, name, reduced.on_error, reduced.columns)
        stream.topology.change_store(name, lambda spec: msgspec.structs.replace(spec, fixed=spec.fixed + fixed))
        stream.topology.change_operator(name, lambda made: _described(made, f"windows {self.windows}"))
        return ReducedWindowedTable(stream.topology, name)


def _described(operator: Operator, about: str) -> Operator:
    assert isinstance(operator, Processing)
    return replace(operator, about=about)


def in_windows(reduced: Reduced, windows: Windows, merge: Merger | None, where: str) -> ReducedInWindows:
    """Functions over the records of windows. Raises for windows that they can't be used for."""
    if not isinstance(windows, TimeWindows | SessionWindows):
        raise TopologyError(
            f"{where}: {windows} are made of the results of single records, which a function would have to merge in "
            "any order. Use hf.hopping(...), or one of Holdfast's aggregates."
        )
    if isinstance(windows, SessionWindows) and merge is None:
        raise TopologyError(
            f"{where}: a record between two sessions makes them one, so their values must become one too. Pass "
            "merger=f, which is called as f(earlier_value, later_value)."
        )
    return ReducedInWindows(reduced, windows, merge)
