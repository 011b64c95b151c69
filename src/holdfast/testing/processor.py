"""A processor without Spark: hand it records, look at what it forwards and what it keeps.

The stores are the real ones over memory, and a version ends as it does in a task: what was written is applied, the
clocks move, and the next record meets a fresh object of the processor. So what a test sees is what an app does.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from holdfast.errors import BadValue, HoldfastError, TopologyError, shown
from holdfast.pipeline.running import RunningProcessor
from holdfast.pipeline.state import Budget, Entries, Range, StoreState
from holdfast.settings.units import parse_duration
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import millis
from holdfast.topology.events import annotation_of, as_mapping
from holdfast.topology.processor import Context, Processor, check_processor, parse_output, specs_of
from holdfast.words import Version

_PLENTY = 1 << 40
_START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


class ProcessorTest:
    """Runs one partition of a processor by hand.

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
        self._specs = specs_of(processor)
        self._held = HeldState({spec.name: DictBytes() for _, spec in self._specs})
        self._wall = millis(wall)
        self._clock: int | None = None
        self._seen: int | None = None
        self._running: RunningProcessor | None = None
        self._states: dict[str, StoreState] = {}
        self.version = 0
        """The newest version that has ended."""
        self._counts_before: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        """What the processor counted, and, as `store/name`, what its stores did."""

    def pipe(
        self, key: object, event: object, *, timestamp: int | datetime | None = None
    ) -> list[tuple[object, Mapping[str, object]]]:
        """Processes one record and returns what it forwarded, as (key, value).

        An event given as a mapping becomes an object with these attributes, or one of the type that `process` names.
        Without a timestamp a record is of the wall clock's time.
        """
        running = self._begun(key)
        time = self._wall if timestamp is None else millis(timestamp)
        if self._event_times:
            self._seen = time if self._seen is None else max(self._seen, time)
        with self._or_nothing():
            running.work([key], [self._event_of(event)], [time])
        context = running.context
        assert isinstance(context, _Noting)
        forwarded, context.noted = context.noted, []
        return forwarded

    def store(self, name: str) -> Any:
        """A store by its name, as the processor has it."""
        for attribute, spec in self._specs:
            if spec.name == name:
                return self._begun().store(attribute)
        raise TopologyError(
            f"{self._processor.__name__} has no store {name!r}. It has {', '.join(s.name for _, s in self._specs)}."
        )

    def commit(self) -> int:
        """Ends the version: `close()` is called, what expired or has no room goes, and the clocks move."""
        running = self._begun()
        with self._or_nothing():
            running.end()
        for name, state in self._states.items():
            held = self._held.stores[name]
            for key, value in state.changes.items():
                if value is None:
                    held.delete(key)
                else:
                    held.put(key, value)
        self._clock = self._seen
        self._running = None
        self.version += 1
        return self.version

    @contextmanager
    def _or_nothing(self) -> Iterator[None]:
        """As in an app, nothing of a version counts in which something failed; the next record begins it anew."""
        try:
            yield
        except HoldfastError:
            self._running, self._seen, self.counts = None, self._clock, self._counts_before
            raise

    def advance(self, by: str | timedelta) -> None:
        """Ends the version and lets the wall clock move on: `advance("30s")`."""
        self.commit()
        self._wall += round(parse_duration(by).total_seconds() * 1000)

    def _begun(self, key: object = "") -> RunningProcessor:
        if self._running is None:
            self._counts_before = dict(self.counts)
            budget = Budget(_PLENTY)
            self._states = {spec.name: StoreState(spec.name, self._held, budget) for _, spec in self._specs}
            now = Now(self._wall, self._clock)
            context = _Noting(Version(self.version + 1), now, self._partition, self._output, self._count)
            self._running = RunningProcessor(
                self._processor,
                self._specs,
                self._states,
                context,
                key=_schema_of(key),
                event_times=self._event_times,
                count=self._count_of_store,
            )
            self._running.begin()
        return self._running

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


class _Noting(Context):
    """Notes what is forwarded as it was given, and checks it against the output's columns if there are any."""

    __slots__ = ("noted",)

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.noted: list[tuple[object, Mapping[str, object]]] = []

    def forward(self, key: object, value: Mapping[str, object] | object) -> None:
        if self.has_output:
            super().forward(key, value)
        self.noted.append((key, as_mapping(value)))


class HeldState:
    """The state before a version, in dictionaries."""

    def __init__(self, stores: Mapping[str, DictBytes]) -> None:
        self.stores = stores

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.stores[store].get_many(keys)

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool, limit: int) -> Entries:
        return list(islice(self.stores[store].scan(start, stop, reverse=reverse), limit))

    def scan_many(self, store: str, ranges: Sequence[Range]) -> Entries:
        return [entry for start, stop in ranges for entry in self.stores[store].scan(start, stop)]

    def approximate_count(self, store: str) -> int:
        return self.stores[store].approximate_count()


def _schema_of(key: object) -> Schema:
    types = tuple(type(part) for part in key) if isinstance(key, tuple) else (type(key),)
    return key_schema(types[0] if len(types) == 1 else tuple[types])  # type: ignore[valid-type]
