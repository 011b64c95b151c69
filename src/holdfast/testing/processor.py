"""Tests a processor without Spark: pipe records into it, and check what it forwards and stores.

The stores are the real ones, in memory. A version ends as it does in a task: changes are applied, the clocks advance,
and the next record is processed by a new object of the processor. So a test behaves as an app does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import BadValue, HoldfastError, TopologyError, shown
from holdfast.log.segments import STATE_SCHEMA
from holdfast.pipeline.running import RunningProcessor
from holdfast.pipeline.store_state import Budget, StoreState
from holdfast.pipeline.task_state import Range, TaskState
from holdfast.pipeline.values import output_table
from holdfast.settings.units import parse_duration
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import millis
from holdfast.topology.events import annotation_of, as_mapping
from holdfast.topology.processor import Context, Processor, check_processor, parse_output, specs_of, timed
from holdfast.words import Version

_PLENTY = 1 << 40
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
        event_times: bool = True,
        wall: int | datetime = _START,
        partition: int = 0,
    ) -> None:
        self._processor = check_processor(processor)
        self._event = annotation_of(processor.process)
        self._output = None if output is None else parse_output(output)
        self._event_times = event_times
        self._partition = partition
        self._specs = [(attribute, timed(spec, event_times=event_times)) for attribute, spec in specs_of(processor)]
        self._state = StateInMemory({spec.name: DictBytes() for _, spec in self._specs})
        self._wall = millis(wall)
        self._clock: int | None = None
        self._seen: int | None = None
        self._running: RunningProcessor | None = None
        self._states: dict[str, StoreState] = {}
        self.version = 0
        """The newest committed version."""
        self._counts_before: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        """The processor's counters, and those of its stores as `store/name`."""

    def pipe(
        self, key: object, event: object, *, timestamp: int | datetime | None = None
    ) -> list[tuple[object, Mapping[str, object]]]:
        """Processes one record and returns what the processor forwarded, as (key, value) pairs.

        A mapping becomes an object with these attributes, or an object of the type that `process` declares. The default
        timestamp is the wall clock.
        """
        running = self._started(key)
        time = self._wall if timestamp is None else millis(timestamp)
        if self._event_times:
            self._seen = time if self._seen is None else max(self._seen, time)
        with self._rolled_back_on_error():
            running.work([key], [self._event_of(event)], [time])
            self._check_forwarded(running)
        context = running.context
        assert isinstance(context, _RecordingContext)
        forwarded, context.recorded = context.recorded, []
        return forwarded

    def store(self, name: str) -> Any:
        """A store by its name, as the processor sees it."""
        for attribute, spec in self._specs:
            if spec.name == name:
                return self._started().store(attribute)
        raise TopologyError(
            f"{self._processor.__name__} has no store {name!r}. It has {', '.join(s.name for _, s in self._specs)}."
        )

    def commit(self) -> int:
        """Commits the version: calls `close()`, deletes expired and evicted entries, and advances the clocks."""
        running = self._started()
        with self._rolled_back_on_error():
            running.end()
            self._check_forwarded(running)
        for name, state in self._states.items():
            store = self._state.stores[name]
            for key, value in state.changes.items():
                if value is None:
                    store.delete(key)
                else:
                    store.put(key, value)
        self._clock = self._seen
        self._running = None
        self.version += 1
        return self.version

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[None]:
        """As in an app, a version that fails has no effect; the next record starts it over."""
        try:
            yield
        except HoldfastError:
            self._running, self._seen, self.counts = None, self._clock, self._counts_before
            raise

    def advance(self, by: str | timedelta) -> None:
        """Commits the version and advances the wall clock: `advance("30s")`."""
        self.commit()
        self._wall += round(parse_duration(by).total_seconds() * 1000)

    def _started(self, key: object = "") -> RunningProcessor:
        if self._running is None:
            self._counts_before = dict(self.counts)
            budget = Budget(_PLENTY)
            self._states = {spec.name: StoreState(spec.name, self._state, budget) for _, spec in self._specs}
            now = Now(self._wall, self._clock)
            context = _RecordingContext(Version(self.version + 1), now, self._partition, self._output, self._count)
            self._running = RunningProcessor(
                self._processor,
                self._specs,
                self._states,
                context,
                key=_schema_of(key),
                count=self._count_of_store,
            )
            self._running.begin()
        return self._running

    def _check_forwarded(self, running: RunningProcessor) -> None:
        """Rejects a forwarded value that isn't of its column's type, as a task does."""
        if self._output is not None:
            output_table(self._output, running.take_forwarded())

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
    """Records what is forwarded, and checks it against the columns of the output if it has any."""

    __slots__ = ("recorded",)

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.recorded: list[tuple[object, Mapping[str, object]]] = []

    def forward(self, key: object, value: Mapping[str, object] | object) -> None:
        if self.has_output:
            super().forward(key, value)
        self.recorded.append((key, as_mapping(value)))


class StateInMemory(TaskState):
    """The state before a version, in dictionaries."""

    def __init__(self, stores: Mapping[str, DictBytes]) -> None:
        self.stores = stores

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        return pa.array(self.stores[store].get_many(keys.to_pylist()), pa.binary())

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        return _table(islice(self.stores[store].scan(start, stop, reverse=reverse), limit))

    def scan_many(self, store: str, ranges: Sequence[Range]) -> pa.Table:
        return _table(entry for start, stop in ranges for entry in self.stores[store].scan(start, stop))

    def approximate_count(self, store: str) -> int:
        return self.stores[store].approximate_count()


def _table(entries: Iterable[tuple[bytes, bytes]]) -> pa.Table:
    pairs = list(entries)
    return pa.table([[key for key, _ in pairs], [value for _, value in pairs]], schema=STATE_SCHEMA)


def _schema_of(key: object) -> Schema:
    types = tuple(type(part) for part in key) if isinstance(key, tuple) else (type(key),)
    return key_schema(types[0] if len(types) == 1 else tuple[types])  # type: ignore[valid-type]
