"""One task of a processor: a user's Python over the records of one partition, in one version.

Records come in the order of their event times. For each chunk of records, entries are prefetched in bulk; then
`process` runs record by record in memory. At the end all changes and all forwarded rows are written to a segment, and
nothing else is written, so Spark may run the task twice. It runs in every version, also without records: entries expire
by the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import faults
from holdfast.errors import BadValue
from holdfast.log.log import Log
from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.log.segments import OUTPUT, SEGMENT_BYTES, STATE
from holdfast.pipeline.results import Tally, TaskResult, of_skipped, of_store, of_user
from holdfast.pipeline.running import BoundProcessor, RunningProcessor
from holdfast.pipeline.sealed_state import SealedState
from holdfast.pipeline.shipping import unship
from holdfast.pipeline.store_state import Budget, StoreState
from holdfast.pipeline.table_rows import LookedUpTable
from holdfast.pipeline.table_state import TableState
from holdfast.pipeline.task import Limits, Part, check_own, chunks
from holdfast.pipeline.task_columns import DEAD, Clocks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.undoing import UndoableState
from holdfast.pipeline.values import events_of, keys_of, output_table, values_of
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now
from holdfast.stores.formats.arrow_values import python_values
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import ONLY_PARTITION, StoreSpec
from holdfast.topology.derived import TIME
from holdfast.topology.events import EventShape
from holdfast.topology.outputs import forwarded_to
from holdfast.topology.processor import Context, OnError, Processor
from holdfast.topology.punctuation import Punctuation
from holdfast.topology.stream import SOURCE
from holdfast.words import TaskId, Version

CHUNK_ROWS = 50_000
"""How many records are Python objects at the same time, with their entries prefetched."""


@dataclass(frozen=True)
class RecordColumns:
    """The names of a task's columns. A key column may also be an event column."""

    event: tuple[str, ...]
    keys: tuple[str, ...]
    time: str | None
    clocks: Clocks = ()
    position: tuple[tuple[str, str], ...] = ()
    """The columns that say where a record is in its source, by their names in the stream."""
    sources: tuple[str, ...] = ()
    """The sources of a merged stream, whose records tasks count."""
    sharing: tuple[tuple[str, ...], ...] = ()
    """The events' columns of each processor that shares stores."""
    hidden: frozenset[str] = frozenset()
    """The columns in the stream that dead letters don't show."""


@dataclass(frozen=True)
class Code:
    """The user's code in a task: the processor's class and the shape of its events; and of those that share stores."""

    processor: type[Processor]
    event: EventShape
    sharing: tuple[Code, ...] = ()


Watch = Callable[[Processor, str], AbstractContextManager[None]]


def unwatched(processor: Processor, call: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class SharingWork:
    """What a task does for a processor that shares stores with the one before it."""

    name: str
    stores: tuple[tuple[str, StoreSpec], ...]
    outputs: tuple[tuple[str | None, Schema], ...]
    punctuations: tuple[Punctuation, ...] = ()
    tables: tuple[tuple[str, LookedUpTable], ...] = ()


@dataclass(frozen=True)
class ProcessingWork:
    """What every task of a processor does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    now: Now
    name: str
    key: Schema
    stores: tuple[tuple[str, StoreSpec], ...]
    outputs: tuple[tuple[str | None, Schema], ...]
    """The columns of each output by its name; None is the main output."""
    columns: RecordColumns
    limits: Limits
    code: bytes = field(repr=False)
    """The user's code, as `shipping` sends it."""
    punctuations: tuple[Punctuation, ...] = ()
    """The punctuators that fire in this version."""
    on_error: OnError = "fail"
    tables: tuple[tuple[str, LookedUpTable], ...] = ()
    """The global tables that it reads, by the class attribute."""
    sharing: tuple[SharingWork, ...] = ()
    """The processors that share stores with this one, which get each record after it."""
    watch: Watch = unwatched
    """Called around the calls of the user's code, with its object and the name of the call: for tests."""

    @property
    def processors(self) -> tuple[SharingWork, ...]:
        """All processors of the sub-topology, in the order of their declaration."""
        return SharingWork(self.name, self.stores, self.outputs, self.punctuations, self.tables), *self.sharing

    @property
    def all_stores(self) -> list[StoreSpec]:
        """Each store once."""
        return list({spec.name: spec for each in self.processors for _, spec in each.stores}.values())

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        volatile = [spec.name for spec in self.all_stores if not spec.durable]
        segments = self._segments(task, batches, log, state, tally)
        return write_segments(
            log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit, volatile=volatile
        )

    def _segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        yield from ProcessingTask(self, unship(self.code), task, state, log, tally).segments(batches)


@dataclass
class ProcessingTask:
    """The Arrow side of a running processor: records in, parts of segments out."""

    work: ProcessingWork
    code: Code
    id: TaskId
    before: TaskState
    log: Log
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        budget = Budget(self.work.limits.state_bytes)
        state = StoreState if self.work.on_error == "fail" else UndoableState
        self._states = {spec.name: state(spec.name, self.before, budget) for spec in self.work.all_stores}
        self._codes = (self.code, *self.code.sharing)

    def segments(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Part]]:
        """The parts of each segment. The stores' changes are in the last."""
        work, tally = self.work, self.tally

        def count_user(name: str, number: int) -> None:
            tally.add(of_user(name), number)

        members = [
            BoundProcessor(
                code.processor,
                own.stores,
                Context(work.version, work.now, self.id.partition, dict(own.outputs), count_user, str(work.key)),
                {attribute: self._table(table) for attribute, table in own.tables},
            )
            for code, own in zip(self._codes, work.processors, strict=True)
        ]
        running = RunningProcessor(
            members,
            self._states,
            key=work.key,
            count=lambda store, name, number: tally.add(of_store(store, name), number),
            on_error=work.on_error,
        )
        gathered: list[Part] = []
        running.begin()
        for chunk in chunks(batches, min(CHUNK_ROWS, work.limits.chunk_rows)):
            gathered += self._records(running, chunk)
            tables = [table for _, _, table in gathered]
            rows, size = sum(table.num_rows for table in tables), sum(table.nbytes for table in tables)
            if rows >= work.limits.chunk_rows or size >= SEGMENT_BYTES:
                yield gathered
                gathered = []
        with self._watched(running, "a punctuator"):
            running.punctuate([each.punctuations for each in work.processors])
        running.end()
        gathered += self._forwarded(running)
        gathered += self._changed()
        if work.limits.rewrite_entries:
            # In parts of their own, by which sinks distinguish them from changes.
            gathered += [(STATE, name, part) for name, part in running.rewritten(work.limits.rewrite_entries)]
        if gathered:
            yield gathered

    def _table(self, table: LookedUpTable) -> tuple[StoreSpec, StoreState]:
        """The rows of a global table after this version's changes."""
        state = self.before.of_task(TaskId(table.subtopology, ONLY_PARTITION))
        if (changes := table.changes(ONLY_PARTITION, self.log)).num_rows:
            state = SealedState(state, changes)
        return table.store, TableState(table.store.name, state)

    def _records(self, running: RunningProcessor, chunk: pa.Table) -> list[Part]:
        """Processes a chunk. Returns its dead letters and forwarded rows."""
        parts: list[Part] = []
        self.tally.records += chunk.num_rows
        if sources := self.work.columns.sources:
            named = chunk[dict(self.work.columns.position)[SOURCE]]
            self.tally.read_numbered(sources, pc.index_in(named, pa.array(sources, pa.string())))
        if chunk[DEAD].null_count < chunk.num_rows:
            parts.append(self._dead(chunk[DEAD].drop_null()))
            chunk = chunk.filter(pc.is_null(chunk[DEAD]))
        if chunk.num_rows:
            named = self.work.columns
            events_columns = (named.event, *named.sharing)
            used = dict.fromkeys((*(name for own in events_columns for name in own), *named.keys))
            columns = {name: whole(chunk[name]) for name in used}
            key_columns = [columns[name] for name in named.keys]
            check_own(self.work.key, key_columns, self.id, self.work.limits.partitions)
            if named.time is not None:
                times = values_of(whole(chunk[named.time]))
            else:
                times = [self.work.now.wall] * chunk.num_rows
            failed: dict[int, str] | None = None if self.work.on_error == "fail" else {}
            events = [
                events_of(code.event, [columns[name] for name in own], chunk.num_rows, failed)
                for code, own in zip(self._codes, events_columns, strict=True)
            ]
            keys = keys_of(key_columns, failed, texts=self.code.event.texts)
            faults.point("state.read")
            position = partial(position_of, named, chunk)
            with self._watched(running, "process()"):
                failed = running.work(keys, events, times, position, failed or {})
            parts += self._forwarded(running)
            if failed:
                parts += self._failed(chunk, failed)
                kept = [place for place in range(chunk.num_rows) if place not in failed]
                chunk = chunk.take(pa.array(kept, pa.int64()))
            for source, name in named.clocks:
                self.tally.saw(source, pc.max(chunk[name]).as_py())
        return parts

    @contextmanager
    def _watched(self, running: RunningProcessor, call: str) -> Iterator[None]:
        with ExitStack() as stack:
            for processor in running.processors:
                stack.enter_context(self.work.watch(processor, call))
            yield

    def _dead(self, letters: pa.Array | pa.ChunkedArray) -> Part:
        self.tally.add("dead", len(letters))
        times = pa.array([1] * len(letters), pa.int64())
        return DEAD_PART, self.work.name, pa.table({"letter": letters, "times": times})

    def _failed(self, chunk: pa.Table, failed: Mapping[int, str]) -> list[Part]:
        """Counts records that failed, or makes dead letters of them."""
        if self.work.on_error == "skip":
            self.tally.add(of_skipped(self.work.name), len(failed))
            return []
        own = zip(self._codes, (self.work.columns.event, *self.work.columns.sharing), strict=True)
        names = {column: name for code, used in own for column, name in zip(code.event.columns, used, strict=True)}
        names |= {field.name: name for field, name in zip(self.work.key.fields, self.work.columns.keys, strict=True)}
        names |= dict(self.work.columns.position)
        names = {column: name for column, name in names.items() if column not in self.work.columns.hidden}
        rows = chunk.take(sorted(failed))
        records = zip(*(_shown(rows, name, self.work.columns) for name in names.values()), strict=True)
        letters = [
            letter_of(reason, dict(zip(names, values, strict=True)))
            for (_, reason), values in zip(sorted(failed.items()), records, strict=True)
        ]
        return [self._dead(pa.array(letters, pa.string()))]

    def _forwarded(self, running: RunningProcessor) -> list[Part]:
        parts: list[Part] = []
        taken = running.take_forwarded()
        for number, (own, forwarded) in enumerate(zip(self.work.processors, taken, strict=True)):
            for output, (rows, times) in forwarded.items():
                schema = dict(own.outputs)[output]
                try:
                    table = output_table(schema, rows)
                except BadValue as error:
                    raise running.forwarded_misfit(number, schema, rows, times) from error
                table = table.append_column(TIME, pa.array(times, pa.int64()))
                parts.append((OUTPUT, forwarded_to(own.name, output), table))
        return parts

    def _changed(self) -> list[Part]:
        parts: list[Part] = []
        for name, state in self._states.items():
            if state.changes:
                parts.append((STATE, name, state.table()))
                self.tally.add("keys", len(state.changes))
        return parts


def position_of(columns: RecordColumns, chunk: pa.Table, place: int) -> str:
    """Where a record is in its source, for a message: `partition=0, offset=17`."""
    row = chunk.slice(place, 1)
    return ", ".join(f"{name}={_shown(row, column, columns)[0]}" for name, column in columns.position)


def _shown(rows: pa.Table, column: str, columns: RecordColumns) -> list[Any]:
    """The values of a column for people: event times are times, and those that Python doesn't have are texts."""
    values = whole(rows[column])
    values = values.cast(pa.timestamp("ms", "UTC")) if column == columns.time else values
    try:
        return values_of(values)
    except BadValue:
        return python_values(values)


def letter_of(reason: str, record: Mapping[str, object]) -> str:
    """A dead letter, as `unusable.dead_letter` makes them in Spark."""
    return msgspec.json.encode({"reason": reason, "record": record}, enc_hook=str).decode()
