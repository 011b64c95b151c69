"""Windows and sessions by a user's own Python: `reduce` and `aggregate_with` after `window`.

As without windows, both are a processor that Holdfast writes (`topology.reducing`), here over a store of windows, and
for sliding windows over a second store with their records. `topology.window_rules` has what it does with a record, and
`topology.window_waiting` what it sends later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds.base import KeyedOptions
from holdfast.stores.kinds.reduced import KeptRecords, ReducedSessions, ReducedWindows
from holdfast.stores.layouts.waiting import EVERY, FINAL
from holdfast.stores.options import Length, check_options
from holdfast.topology.aggregation import check_unused
from holdfast.topology.cogrouping import is_cogrouped
from holdfast.topology.derived import derive, names_of
from holdfast.topology.frames import key_of
from holdfast.topology.kept_events import kept_type
from holdfast.topology.other_names import Named
from holdfast.topology.outputs import DELETED, forwarded_to
from holdfast.topology.processing import Processing, add_processing
from holdfast.topology.processor import WrittenAs, key_as_python
from holdfast.topology.reducing import Reduced, ReducedTable
from holdfast.topology.topology import OutputOf
from holdfast.topology.window_rules import LateRow, Merger, WindowProcessor, WindowRules, processor_of
from holdfast.topology.window_waiting import UntilClosed, UntilStepEnds
from holdfast.topology.windowing import (
    FINAL_ROWS,
    LATE,
    UPDATES,
    WindowedAggregation,
    check_emit,
    check_sends_final,
    columns_of_late,
    output_of,
    store_of,
    with_final,
)
from holdfast.topology.windows import Every, SessionWindows, SlidingWindows, Windows

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.topology.sink import Sink
    from holdfast.topology.stream import Stream
    from holdfast.topology.topology import Operator, Topology


@dataclass(frozen=True)
class ReducedOutput(Named):
    """A further output of a windowed table whose values are computed in Python: late records, or final rows."""

    CALLED: ClassVar[str] = "An output"
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
        return self.name if None in dict(self._operator.forwards) else super()._output

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
        check_sends_final(self.spec)
        columns = Schema((*self.spec.key.fields, *_VALUE))
        if not self.spec.option(FINAL):
            self.topology.change_store(self.name, with_final)
            self._change(replace(self._rules, waiting=UntilClosed(self._rules.windows)), FINAL_ROWS, columns)
        return ReducedOutput(self.topology, self.name, FINAL_ROWS, columns, self.spec.key.names)

    def _change(self, rules: WindowRules, output: str, columns: Schema) -> None:
        """Gives the processor other rules, and one more output."""

        def changed(operator: Operator) -> Operator:
            assert isinstance(operator, Processing) and issubclass(operator.processor, WindowProcessor)
            was = operator.processor
            kept = getattr(was, "records", None)
            assert was._written is not None
            made = processor_of(was.__name__, was._written, was.store, kept, rules, was.events)
            return replace(operator, processor=made, forwards=(*operator.forwards, (output, columns)))

        self.topology.change_operator(self.name, changed)


_VALUE = Schema.of(window_start="timestamp", window_end="timestamp", value="string", timestamp="bigint").fields
"""The columns of a row after the key's."""


RECORDS: Final = "-records"
"""Ends the name of the store with the records of sliding windows."""


@dataclass(frozen=True)
class ReducedInWindows:
    """Functions over the records of each key and window, which `.store(name)` keeps the values of."""

    reduced: Reduced
    windows: Windows
    merge: Merger | None

    def store(
        self,
        name: str,
        *,
        retention: Length | None = None,
        emit: Every | Literal["updates"] | None = None,
        **options: Unpack[KeyedOptions],
    ) -> ReducedWindowedTable:
        """Keeps the values in a window or session store of this name.

        `retention="6h"`: how long windows are kept by event time. `emit=hf.every("30s")`: sinks get a changed window at
        most once per 30 s of event time, instead of once per version. `emit="updates"`: they get one row per record and
        window. The other options are those of a processor's store, without `other_key`. Of sliding windows, the records
        are kept too, in a store `<name>-records`.
        """
        check_options(options, (*KeyedOptions.__annotations__, "emit", "retention"), f"store({name!r})")
        grouped, reduced = self.reduced.grouped, self.reduced
        stream = replace(grouped.stream, key=grouped.columns)
        key = key_as_python(key_of(stream.frame, stream.key))
        for column in (*(field.name for field in _VALUE), DELETED):
            check_unused(column, key.names, name, "sinks see a window's times, value or end")
        _, own, fixed = store_of(self.windows)
        own |= {"key": key, "retention": retention}
        kind: Any = ReducedSessions if isinstance(self.windows, SessionWindows) else ReducedWindows
        declared = kind(name, value=reduced.value, **own, **options)
        rules = WindowRules(self.windows, reduced.update, self.merge, emit == UPDATES)
        if emit not in (None, UPDATES):
            every_ms = check_emit(emit, name, declared.spec())
            fixed += ((EVERY, every_ms),)
            rules = replace(rules, waiting=UntilStepEnds(every_ms))
        output = None if emit is None else Schema((*key.fields, *_VALUE, Field(DELETED, "boolean")))
        written, kept = self._written(), self._records(name, own, options, declared.spec().retention_ms)
        processor = processor_of(reduced.label, written, declared, kept, rules, reduced.events)
        add_processing(stream, processor, output, {}, name, reduced.on_error, reduced.columns)
        stream.topology.change_store(name, lambda spec: msgspec.structs.replace(spec, fixed=spec.fixed + fixed))
        stream.topology.change_operator(name, lambda made: _described(made, f"windows {self.windows}"))
        return ReducedWindowedTable(stream.topology, name)

    def _written(self) -> WrittenAs:
        """The operator with the function that merges sessions, unless it is that of reduce."""
        written, merge = self.reduced.written, self.merge
        return written if merge is None or written.operator == "reduce" else written.with_function(merge)

    def _records(self, name: str, own: dict[str, Any], options: KeyedOptions, retention_ms: int) -> KeptRecords | None:
        """The store of the records that windows are made of."""
        if not isinstance(self.windows, SlidingWindows):
            return None
        frame, reduced = self.reduced.grouped.stream.frame, self.reduced
        columns = tuple(frame.columns) if reduced.columns is None else reduced.columns
        tuning = {option: value for option, value in options.items() if option in _ALSO_OF_RECORDS}
        value = kept_type(frame, columns, reduced.events)
        # A record at the start of a window is in it for as long as the window is there: until a millisecond later.
        own = {**own, "retention": timedelta(milliseconds=retention_ms + 1)}
        return KeptRecords(name + RECORDS, value=value, fields=columns, **own, **tuning)


_ALSO_OF_RECORDS = frozenset({"engine", "durable", "profile", "rocksdb_options"})
"""The options of a table that the store of its records has too."""


def _described(operator: Operator, about: str) -> Operator:
    assert isinstance(operator, Processing)
    return replace(operator, about=about)


def in_windows(reduced: Reduced, windows: Windows, merge: Merger | None, where: str) -> ReducedInWindows:
    """Functions over the records of windows. Raises for sessions without a function that merges them."""
    if isinstance(windows, SessionWindows) and merge is None:
        raise TopologyError(
            f"{where}: a record between two sessions makes them one, so their values must become one too. Pass "
            "merger=f, which is called as f(earlier_value, later_value)."
        )
    return ReducedInWindows(reduced, windows, merge)


def final_rows(stream: Stream) -> Iterator[tuple[str, Windows]]:
    """The outputs of final rows that a stream is made of, with their windows, however many steps are between."""
    for origin in (branch.origin for branch in stream.branches):
        if not isinstance(origin, OutputOf):
            continue
        of = stream.topology.subtopology(origin.subtopology)
        match of.operator:
            case WindowedAggregation(windows=windows) if origin.name == output_of(of.name, FINAL_ROWS):
                yield origin.name, windows
            case Processing(processor=each) if origin.name == forwarded_to(of.name, FINAL_ROWS):
                if issubclass(each, WindowProcessor):
                    yield origin.name, each.rules.windows
        yield from final_rows(of.stream)
