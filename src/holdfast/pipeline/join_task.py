"""One task of a join of two streams: matches its records with each other and with those at `v-1`.

A record's window is open until the event clock is past its end and the grace, by the clock of `v-1`, the same in every
task. Two records are a pair if both of their windows are open in the version in which the second one arrives. A record
that arrives after its window has closed is late: it is counted, and does nothing else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.log.segments import OUTPUT, SEGMENT_BYTES, STATE
from holdfast.pipeline.join_buffer import NO_ROWS, Buffer, Keys, Span, Stored
from holdfast.pipeline.join_waiting import Waiting
from holdfast.pipeline.matching import NONE, Flags, JoinRecords, Matches, Numbers
from holdfast.pipeline.results import Tally, TaskResult, of_store
from holdfast.pipeline.task import READ_ROWS, Limits, Part, check_own, chunks_of_keys
from holdfast.pipeline.task_columns import DEAD, OF_SOURCE, TIME
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import BEGINNING, Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import LATE
from holdfast.stores.layouts.windowed_rows import WindowedWriter
from holdfast.stores.spec import StoreSpec
from holdfast.topology.derived import TIME as ROW_TIME
from holdfast.topology.join_shape import JoinSide
from holdfast.topology.joining import StreamJoin
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class JoinWork:
    """What every task of a join does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    now: Now
    name: str
    key: Schema
    join: StreamJoin
    stores: tuple[StoreSpec, ...]
    keys: tuple[str, ...]
    """The key's columns in the task."""
    sources: tuple[str, ...]
    """The sources of the records, by their numbers in the column `OF_SOURCE`."""
    limits: Limits
    late: str | None = None
    """The output with the late records, if anything reads it."""

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        running = JoinTask(self, task, state)
        segments = running.segments(batches)
        return write_segments(log, task, self.version, segments, running.tally, inline_limit=self.limits.inline_limit)


@dataclass
class _Arrived:
    """The records of one side in a batch, without late ones."""

    side: JoinSide
    records: JoinRecords = NONE
    rows: pa.BinaryArray = field(default_factory=lambda: NO_ROWS)


class JoinTask:
    """The records of one partition in one version: batches in, parts of segments out."""

    def __init__(self, work: JoinWork, task: TaskId, state: TaskState) -> None:
        self._work, self._task, self._state = work, task, state
        self.tally = Tally()
        self._event = BEGINNING if work.now.event is None else work.now.event
        self._specs = {spec.name: spec for spec in work.stores}
        self._writers: dict[str, WindowedWriter] = {}

    def segments(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Part]]:
        """The parts of each segment."""
        gathered: list[Part] = []
        for part in self._parts([batch for batch in batches if batch.num_rows]):
            gathered.append(part)
            tables = [table for _, _, table in gathered]
            rows, size = sum(table.num_rows for table in tables), sum(table.nbytes for table in tables)
            if rows >= self._work.limits.chunk_rows or size >= SEGMENT_BYTES:
                yield gathered
                gathered = []
        if gathered:
            yield gathered

    def _parts(self, batches: list[pa.RecordBatch]) -> Iterator[Part]:
        yield from self._closed(self._work.join.left)
        yield from self._closed(self._work.join.right)
        if not batches:
            return
        dead, chunk = self._usable(pa.Table.from_batches(batches))
        yield from dead
        if not chunk.num_rows:
            return
        for source, own in self._by_source(chunk):
            self.tally.saw(source, pc.max(own[TIME]).as_py())
        work, limits = self._work, self._work.limits
        check_own(work.key, [whole(chunk[name]) for name in work.keys], self._task, limits.partitions)
        rows = min(READ_ROWS, limits.chunk_rows)
        for some in chunks_of_keys(chunk, work.key, work.keys, limits.partitions, rows):
            yield from self._keys(some)
        for name, writer in self._writers.items():
            if (note := writer.rest()) is not None:
                yield STATE, name, note

    def _keys(self, chunk: pa.Table) -> Iterator[Part]:
        """The records of some keys. They may have many matches, so only some of them are joined at a time."""
        columns = [whole(chunk[name]) for name in self._work.keys]
        encoded = encode_keys(self._work.key, columns).dictionary_encode()
        numbers = encoded.indices.to_numpy().astype(np.int64)
        first = np.zeros(len(encoded.dictionary), dtype=np.int64)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        keys = Keys([column.take(pa.array(first)) for column in columns])
        for side in (self._work.join.left, self._work.join.right):
            yield from self._late(chunk, columns, side)
        left, right = (self._arrived(chunk, numbers, side) for side in (self._work.join.left, self._work.join.right))
        yield from self._joined(keys, left, right)

    def _usable(self, chunk: pa.Table) -> tuple[list[Part], pa.Table]:
        self.tally.records += chunk.num_rows
        for source, own in self._by_source(chunk):
            self.tally.read(source, own.num_rows)
        if chunk[DEAD].null_count == chunk.num_rows:
            return [], chunk
        letters = chunk[DEAD].drop_null()
        self.tally.add("dead", len(letters))
        times = pa.array(np.ones(len(letters), dtype=np.int64))
        table = pa.table({"letter": letters, "times": times})
        return [(DEAD_PART, self._work.name, table)], chunk.filter(pc.is_null(chunk[DEAD]))

    def _by_source(self, chunk: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The event times of each source."""
        times = chunk.select([TIME])
        for number, source in enumerate(self._work.sources):
            yield source, times.filter(pc.equal(chunk[OF_SOURCE], number))

    def _late(self, chunk: pa.Table, keys: list[pa.Array], side: JoinSide) -> Iterator[Part]:
        """Counts the late records of one side, and sends them on if anything reads them."""
        structs, times = whole(chunk[side.column]), whole(chunk[TIME]).to_numpy()
        late = structs.is_valid().to_numpy(zero_copy_only=False) & (times < side.window.open_from(self._event))
        at = np.flatnonzero(late)
        if not len(at):
            return
        self.tally.add(of_store(side.buffer, LATE), len(at))
        if self._work.late is not None:
            places, is_left = pa.array(at), side is self._work.join.left
            rows = encode_rows(side.columns, structs.take(places).flatten())
            sides = (rows, None) if is_left else (None, rows)
            _, _, table = self._rows([key.take(places) for key in keys], times[at], *sides)
            yield OUTPUT, self._work.late, table

    def _arrived(self, chunk: pa.Table, numbers: Numbers, side: JoinSide) -> _Arrived:
        """The records of one side, without late ones."""
        structs = whole(chunk[side.column])
        times = whole(chunk[TIME]).to_numpy()
        own = structs.is_valid().to_numpy(zero_copy_only=False)
        at = np.flatnonzero(own & (times >= side.window.open_from(self._event)))
        if not len(at):
            return _Arrived(side)
        columns = structs.take(pa.array(at)).flatten()
        return _Arrived(side, JoinRecords(numbers[at], times[at]), encode_rows(side.columns, columns))

    def _joined(self, keys: Keys, left: _Arrived, right: _Arrived) -> Iterator[Part]:
        """The rows of a batch, and what it changes."""
        window, number = left.side.window, len(left.records)
        left_buffer, left_stored = self._read(keys, left, right)
        right_buffer, right_stored = self._read(keys, right, left)
        arrived = Matches(left.records, right.records + right_stored.records, window.before_ms, window.after_ms)
        stored = Matches(left_stored.records, right.records, window.before_ms, window.after_ms)
        right_matched = arrived.right
        right_matched[: len(right.records)] |= stored.right
        lefts = _Candidates(left, left_stored, np.concatenate([arrived.left, stored.left]))
        rights = _Candidates(right, right_stored, right_matched)
        for at, of in arrived.blocks(READ_ROWS):
            yield self._pairs(keys, lefts, at, rights, of)
        for at, of in stored.blocks(READ_ROWS):
            yield self._pairs(keys, lefts, at + number, rights, of)
        for side, buffer in ((lefts, left_buffer), (rights, right_buffer)):
            yield from self._kept(keys, side, buffer)

    def _read(self, keys: Keys, own: _Arrived, other: _Arrived) -> tuple[Buffer, Stored]:
        """A side's buffer, and its open records that the arrived records of the other side may belong to."""
        spec, open_from = self._specs[own.side.buffer], own.side.window.open_from(self._event)
        state, window = self._state.store(spec.name), other.side.window
        if spec.name not in self._writers:
            ignored = lambda name, n: None  # noqa: E731
            self._writers[spec.name] = WindowedWriter(spec, self._work.version, self._work.now, state, ignored)
        buffer = Buffer(spec, keys, state, self._writers[spec.name], open_from)
        times = other.records.times
        span = Span(other.records.keys, np.maximum(times - window.before_ms, open_from), times + window.after_ms)
        return buffer, buffer.read(span, own.records)

    def _pairs(self, keys: Keys, lefts: "_Candidates", at: Numbers, rights: "_Candidates", of: Numbers) -> Part:
        """Pairs as rows. Their event time is the later one of the two records."""
        one, other = lefts.records.take(at), rights.records.take(of)
        times = np.maximum(one.times, other.times)
        return self._rows(keys.take(one.keys), times, lefts.rows(at), rights.rows(of))

    def _rows(
        self, keys: list[pa.Array], times: Numbers, left: pa.BinaryArray | None, right: pa.BinaryArray | None
    ) -> Part:
        """Rows to send on; None is a side without a match."""
        join = self._work.join
        columns = list(keys)
        for side, rows in ((join.left, left), (join.right, right)):
            absent = [pa.nulls(len(times), field.field_type.arrow) for field in side.columns.fields]
            columns += absent if rows is None else decode_rows(side.columns, rows)
        return OUTPUT, self._work.name, pa.table([*columns, pa.array(times)], names=[*join.columns.names, ROW_TIME])

    def _kept(self, keys: Keys, side: "_Candidates", buffer: Buffer) -> Iterator[Part]:
        """What changes in the stores of one side."""
        arrived, number = side.arrived, len(side.arrived.records)
        if number:
            self.tally.add("keys", number)
            yield STATE, arrived.side.buffer, buffer.write(arrived.records, arrived.rows)
        if arrived.side.unmatched is None:
            return
        alone = np.flatnonzero(~side.matched[:number])
        matched = side.stored.records.take(side.matched[number:])
        if len(alone) or len(matched):
            rows = arrived.rows.take(pa.array(alone))
            changes = self._store_of(arrived.side.unmatched).changes(keys, arrived.records.take(alone), rows, matched)
            if changes.num_rows:
                yield STATE, arrived.side.unmatched, changes

    def _closed(self, side: JoinSide) -> Iterator[Part]:
        """The records of one side whose windows have closed without a match."""
        if side.unmatched is None or self._work.now.event is None:
            return
        for found in self._store_of(side.unmatched).closed(side.window.open_from(self._event)):
            is_left = side is self._work.join.left
            yield self._rows(found.keys, found.times, found.rows if is_left else None, None if is_left else found.rows)
            yield STATE, side.unmatched, found.deletes

    def _store_of(self, name: str) -> Waiting:
        return Waiting(self._specs[name], self._state.store(name))


class _Candidates:
    """The records of one side that may have matches: those that have arrived, then those of the buffer."""

    def __init__(self, arrived: _Arrived, stored: Stored, matched: Flags) -> None:
        self.arrived, self.stored, self.matched = arrived, stored, matched
        self.records = arrived.records + stored.records
        used = matched[len(arrived.records) :]
        self._pool = pa.concat_arrays([arrived.rows, stored.rows(used)])
        self._places = np.concatenate([np.arange(len(arrived.records)), len(arrived.records) + np.cumsum(used) - 1])

    def rows(self, at: Numbers) -> pa.BinaryArray:
        """The rows of some records that have a match."""
        return self._pool.take(pa.array(self._places[at]))
