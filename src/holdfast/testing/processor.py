"""Tests a processor without Spark: pipe records into it, and check what it forwards and stores.

The stores are the real ones, in memory. A version ends as it does in a task: changes are applied, the clocks advance,
and the next record is processed by a new object of the processor. So a test behaves as an app does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.errors import BadValue, HoldfastError, TopologyError, shown
from holdfast.log.segments import STATE_SCHEMA
from holdfast.pipeline.running import BoundProcessor, RunningProcessor
from holdfast.pipeline.store_state import Budget, StoreState
from holdfast.pipeline.table_state import TableState
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.undoing import UndoableState
from holdfast.pipeline.values import output_table
from holdfast.settings.units import parse_duration
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.keys import encode_key, key_schema_of
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, FieldType, Schema
from holdfast.stores.kinds.base import millis
from holdfast.stores.kinds.coding import Values, codec_for
from holdfast.stores.layouts.base import Count
from holdfast.stores.ranges import Ranges
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.testing.attributes import AttributeWatch
from holdfast.topology.events import annotation_of, as_mapping
from holdfast.topology.forwarding import OutputSchemas
from holdfast.topology.processor import (
    Context,
    OnError,
    Processor,
    check_on_error,
    check_processor,
    globals_of,
    parse_outputs,
    specs_of,
    timed,
)
from holdfast.topology.punctuation import Clock, fired, punctuators_of
from holdfast.words import Version

Forwarded = tuple[object, Mapping[str, object]]
"""A forwarded row: the key and the value."""


class DeadLetter(NamedTuple):
    """A record for which the processor raised, and why."""

    reason: str
    key: object
    event: object


_PLENTY = 1 << 40
_ANY_DECIMAL = FieldType("decimal", 38, 18)
_NO_ROWS = Schema((Field("unknown", "string"),))
_START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


class ProcessorTest:
    """Runs one partition of a processor.

    >>> import holdfast as hf
    >>> class Visits(hf.Processor):
    ...     visits = hf.KeyValueStore("visits", value=int)
    ...     def process(self, key, event, ctx):
    ...         self.visits[key] = self.visits.get(key, 0) + event.number
    ...         ctx.forward(key, {"visits": self.visits[key]})
    >>> test = ProcessorTest(Visits)
    >>> test.pipe("ann", {"number": 2}), test.pipe("ann", {"number": 3})
    ([('ann', {'visits': 2})], [('ann', {'visits': 5})])
    >>> test.store("visits").get("ann")
    5
    """

    def __init__(
        self,
        processor: type[Processor],
        *,
        output: str | None = None,
        outputs: Mapping[str, str] | None = None,
        event_times: bool = True,
        wall: int | datetime = _START,
        partition: int = 0,
        on_error: OnError = "fail",
        tables: Mapping[str, Mapping[Any, Mapping[str, Any]]] | None = None,
    ) -> None:
        """`tables` has the rows of the global tables that the processor reads, by name and by key."""
        self._tables = tables_in_memory(processor, tables or {})
        self._processor = check_processor(processor)
        self._event = annotation_of(processor.process)
        self._outputs = dict(parse_outputs(output, outputs or {}))
        self._punctuators = punctuators_of(processor)
        self._event_times = event_times
        self._partition = partition
        self._on_error = check_on_error(on_error)
        self._specs = [(attribute, timed(spec, event_times=event_times)) for attribute, spec in specs_of(processor)]
        self._state = StateInMemory({spec.name: DictBytes() for _, spec in self._specs})
        self._wall = millis(wall)
        self._clock: int | None = None
        self._seen: int | None = None
        self._before: Now | None = None
        self._forwarded: dict[str | None, list[Forwarded]] = {}
        self._attributes = AttributeWatch(processor)
        self._running: RunningProcessor | None = None
        self._states: dict[str, StoreState] = {}
        self.version = 0
        """The newest committed version."""
        self.dead_letters: list[DeadLetter] = []
        """The records that failed, with `on_error="dead_letter"`."""
        self._counts_before: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        """The processor's counters, those of its stores as `store/name`, and with `on_error="skip"`: `skipped`."""

    def pipe(self, key: object, event: object, *, timestamp: int | datetime | None = None) -> list[Forwarded]:
        """Processes one record and returns what the processor forwarded to its main output, as (key, value) pairs.

        A mapping becomes an object with these attributes, or an object of the type that `process` declares. The default
        timestamp is the wall clock.
        """
        running = self._started(key)
        time = self._wall if timestamp is None else millis(timestamp)
        before = {output: len(rows) for output, rows in self._forwarded.items()}
        with self._rolled_back_on_error(), self._attributes.watched(running.processors[0], "process()"):
            failed = self._work(running, key, event, time)
            self._check_forwarded(running)
        if failed is not None:
            for output, rows in self._forwarded.items():
                del rows[before.get(output, 0) :]
            self._note_failure(failed, key, event)
        elif self._event_times:
            self._seen = time if self._seen is None else max(self._seen, time)
        return self.output()

    def _work(self, running: RunningProcessor, key: object, event: object, time: int) -> str | None:
        """Processes a record, and returns why it failed, if it did and that doesn't stop an app."""
        try:
            made = self._event_of(event)
        except BadValue as error:
            if self._on_error == "fail":
                raise
            return str(error)
        return running.work([key], [[made]], [time]).get(0)

    def _note_failure(self, reason: str, key: object, event: object) -> None:
        if self._on_error == "skip":
            self._count("skipped", 1)
        else:
            self.dead_letters.append(DeadLetter(reason, key, event))

    def output(self, name: str | None = None) -> list[Forwarded]:
        """What was forwarded to an output since the last call, as (key, value) pairs; None: to the main one.

        `pipe`, `commit` and `advance` return the rows of the main output.
        """
        return self._forwarded.pop(name, [])

    def store(self, name: str) -> Any:
        """A store by its name, as the processor sees it."""
        for _, spec in self._specs:
            if spec.name == name:
                return self._started().store(spec.name)
        raise TopologyError(
            f"{self._processor.__name__} has no store {name!r}. It has {', '.join(s.name for _, s in self._specs)}."
        )

    def commit(self) -> list[Forwarded]:
        """Commits the version, and returns what was forwarded to the main output meanwhile.

        Calls the punctuators that fire in this version and `close()`, deletes expired and evicted entries, and
        advances the clocks.
        """
        running, now = self._started(), self._now
        with self._rolled_back_on_error():
            with self._attributes.watched(running.processors[0], "a punctuator"):
                running.punctuate([fired(self._punctuators, self._before, now)])
            running.end()
            self._check_forwarded(running)
        for name, state in self._states.items():
            store = self._state.stores[name]
            for key, value in state.changes.items():
                if value is None:
                    store.delete(key)
                else:
                    store.put(key, value)
        self._before, self._clock = now, self._seen
        self._running = None
        self.version += 1
        return self.output()

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[None]:
        """As in an app, a version that fails has no effect; the next record starts it over."""
        try:
            yield
        except HoldfastError:
            self._running, self._seen, self.counts = None, self._clock, self._counts_before
            self._forwarded.clear()
            raise

    def advance(self, by: str | timedelta, time: Clock = "wall") -> list[Forwarded]:
        """Commits the version and advances a clock: `advance("30s")`, `advance("1h", time="stream")`.

        If punctuators are due then, a version without records follows, as in an app in which nothing arrives. Stream
        time advances as if by a record of another partition. Returns what was forwarded to the main output.
        """
        step = round(parse_duration(by).total_seconds() * 1000)
        if time == "stream":
            if self._seen is None:
                raise TopologyError("There is no event time to advance before the first record. Pipe one first.")
            self._seen += step
        forwarded = self.commit()
        if time == "wall":
            self._wall += step
        if fired(self._punctuators, self._before, self._now):
            forwarded += self.commit()
        return forwarded

    @property
    def _now(self) -> Now:
        return Now(self._wall, self._clock)

    def _started(self, key: object = "") -> RunningProcessor:
        if self._running is None:
            self._counts_before = dict(self.counts)
            budget = Budget(_PLENTY)
            made = StoreState if self._on_error == "fail" else UndoableState
            self._states = {spec.name: made(spec.name, self._state, budget) for _, spec in self._specs}
            context = _RecordingContext(
                Version(self.version + 1), self._now, self._partition, self._outputs, self._count, self._forwarded
            )
            tables = {name: (spec, TableState(spec.name, state)) for name, spec, state in self._tables}
            self._running = RunningProcessor(
                [BoundProcessor(self._processor, self._specs, context, tables)],
                self._states,
                key=_schema_of(key, [spec.key for _, spec in self._specs]),
                count=self._count_of_store,
                on_error=self._on_error,
            )
            self._running.begin()
        return self._running

    def _check_forwarded(self, running: RunningProcessor) -> None:
        """Rejects a forwarded value that isn't of its column's type, as a task does."""
        (forwarded,) = running.take_forwarded()
        for output, (rows, _) in forwarded.items():
            output_table(self._outputs[output], rows)

    def _event_of(self, event: object) -> object:
        if not isinstance(event, Mapping):
            return event
        if self._event is None:
            return msgspec.defstruct("Event", [(str(name), Any) for name in event], frozen=True)(**event)
        try:
            return msgspec.convert(event, self._event)
        except msgspec.ValidationError as error:
            raise BadValue(f"{shown(event)} can't be a {self._event.__name__}: {error}.") from error

    def _count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def _count_of_store(self, store: str, name: str, number: int) -> None:
        self._count(f"{store}/{name}", number)


class _RecordingContext(Context):
    """Records what is forwarded, and checks it against the columns of the output if those were given."""

    __slots__ = ("_recorded",)

    def __init__(
        self,
        version: Version,
        now: Now,
        partition: int,
        outputs: OutputSchemas,
        count: Count,
        recorded: dict[str | None, list[Forwarded]],
    ) -> None:
        super().__init__(version, now, partition, outputs, count)
        self._recorded = recorded

    def forward(self, key: object, value: Mapping[str, object] | object, to: str | None = None) -> None:
        if to in self.outlets or any(name is not None for name in self.outlets if to is not None):
            super().forward(key, value, to)
        self._recorded.setdefault(to, []).append((key, as_mapping(value)))


class StateInMemory(TaskState):
    """The state before a version, in dictionaries."""

    def __init__(self, stores: Mapping[str, DictBytes]) -> None:
        self.stores = stores

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        return pa.array(self.stores[store].get_many(keys.to_pylist()), pa.binary())

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        return _table(islice(self.stores[store].scan(start, stop, reverse=reverse), limit))

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        return _table(entry for start, stop in ranges.pairs() for entry in self.stores[store].scan(start, stop))

    def approximate_count(self, store: str) -> int:
        return self.stores[store].approximate_count()


def _table(entries: Iterable[tuple[bytes, bytes]]) -> pa.Table:
    pairs = list(entries)
    return pa.table([[key for key, _ in pairs], [value for _, value in pairs]], schema=STATE_SCHEMA)


def tables_in_memory(
    processor: type[Processor], given: Mapping[str, Mapping[Any, Mapping[str, Any]]]
) -> list[tuple[str, StoreSpec, StateInMemory]]:
    """The global tables that a processor reads: attribute, spec and rows."""
    found = []
    for attribute, declared in globals_of(processor).items():
        if declared.name not in given:
            raise TopologyError(
                f"{processor.__name__} reads the global table {declared.name!r}. Give its rows by key: "
                f"ProcessorTest(..., tables={{{declared.name!r}: {{...}}}})."
            )
        rows = given[declared.name]
        if not rows:
            spec = StoreSpec(name=declared.name, key=declared.key_schema, value=RowValues(_NO_ROWS), codec=ROWS)
            found.append((attribute, spec, StateInMemory({spec.name: DictBytes()})))
            continue
        columns = pa.table({name: [row.get(name) for row in rows.values()] for row in rows.values() for name in row})
        fields = tuple(
            Field(each.name, "string" if pa.types.is_null(each.type) else str(FieldType.of_arrow(each.type)))
            for each in columns.schema
        )
        spec = StoreSpec(name=declared.name, key=declared.key_schema, value=RowValues(Schema(fields)), codec=ROWS)
        declared.check(spec, spec.key)
        values, stored = Values[Any](codec_for(spec, Any)), DictBytes()
        for key, row in rows.items():
            parts = key if isinstance(key, tuple) else (key,)
            stored.put(encode_key(spec.key, parts), values.cell({field.name: row.get(field.name) for field in fields}))
        found.append((attribute, spec, StateInMemory({spec.name: stored})))
    return found


def _schema_of(key: object, stores: Sequence[Schema]) -> Schema:
    """The key of the stream. A decimal has the digits that a store's key of as many parts has."""
    parts = key if isinstance(key, tuple) else (key,)
    types: list[Any] = [type(part) for part in parts]
    for place, part in enumerate(parts):
        if isinstance(part, Decimal):
            known = [schema.fields[place].field_type for schema in stores if len(schema.fields) == len(parts)]
            types[place] = next((each for each in known if each.name == "decimal"), _ANY_DECIMAL)
    return key_schema_of(tuple(types))
