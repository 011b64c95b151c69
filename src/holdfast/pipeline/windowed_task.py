"""One task of a windowed aggregation: merges its rows into the windows at `v-1`, and writes segments.

A row is a key, a pane (`windowed_plan`) and partial results. It belongs to the windows of its pane that are open by the
event clock of `v-1`, the same clock in every task. A row without an open window is late: it is counted, and sent on if
anyone takes late records.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.log import Log
from holdfast.log.segments import OUTPUT, SEGMENT_BYTES, STATE
from holdfast.pipeline.aggregation_task import AggregationWork, counted, merged_rows, naming_keys, usable
from holdfast.pipeline.grouping import RejectFastPlan, grouped, timed
from holdfast.pipeline.results import Tally, TaskResult, of_store
from holdfast.pipeline.rewriting import rewritten
from holdfast.pipeline.session_task import SessionMerger
from holdfast.pipeline.sliding_task import SlidingMerger
from holdfast.pipeline.task import Part, check_own, chunks, chunks_of_keys
from holdfast.pipeline.task_columns import LATE, TaskColumns
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.window_sender import Sender
from holdfast.pipeline.window_updates import Updates, sent, session_updates, sliding_updates
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import BEGINNING
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import LATE as LATE_COUNT
from holdfast.stores.layouts.base import Merge
from holdfast.stores.layouts.expiring import deletes
from holdfast.stores.layouts.waiting import WAITING_COUNT
from holdfast.stores.layouts.windowed_rows import Times, WindowedWriter, own_keys, stored_keys
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.topology.aggregates import max
from holdfast.topology.derived import TIME as EVENT_TIME
from holdfast.topology.reducers import Overflow, bind
from holdfast.topology.row_merging import merged, reduced, rows_of, running
from holdfast.topology.windows import SessionWindows, SlidingWindows, TimeWindows, Windows
from holdfast.words import TaskId

TIME_FIELD = "$time"
_LATEST = bind(TIME_FIELD, max(TIME_FIELD), "bigint")
"""Keeps the latest event time of merged rows."""

ALL = 2**62


@dataclass(frozen=True, kw_only=True)
class WindowedWork(AggregationWork):
    """What every task of a windowed aggregation does in one version."""

    windows: Windows
    late: str | None = None
    """The output that late records are sent to, if anyone takes them."""
    late_columns: Schema = Schema(())
    """Their columns where they are a stream."""
    waiting: str | None = None
    """The output of windows that wait to be sent."""
    updates: str | None = None
    """The output of one result per record."""

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        running = WindowedTask(self, task, state)
        volatile = () if self.store.durable else (self.store.name,)
        segments = running.segments(batches)
        return write_segments(
            log, task, self.version, segments, running.tally, inline_limit=self.limits.inline_limit, volatile=volatile
        )


class WindowedTask:
    """The rows of one partition in one version: chunks in, parts of segments out."""

    def __init__(self, work: WindowedWork, task: TaskId, state: TaskState) -> None:
        self._work, self._task = work, task
        self.tally = Tally()
        self._state = state
        self._before = state.store(work.store.name)
        self._event = BEGINNING if work.now.event is None else work.now.event
        self._reducers = (*work.reducers, _LATEST)
        self._writer = WindowedWriter(work.store, work.version, work.now, self._before, self._count)
        self._sender = Sender(work, self._before) if work.waiting is not None else None

    def _count(self, what: str, number: int) -> None:
        if number:
            self.tally.add(of_store(self._work.store.name, what), number)

    def segments(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Part]]:
        """The parts of each segment."""
        work = self._work
        first = rewritten(work.store, work.now, work.limits.rewrite_entries, self._before, self.tally)
        gathered: list[Part] = []
        for chunk_parts in chain(chain.from_iterable(map(self._parts, self._chunks(batches))), self._sent()):
            gathered += chunk_parts
            tables = [table for _, _, table in gathered]
            rows, size = sum(table.num_rows for table in tables), sum(table.nbytes for table in tables)
            if rows >= work.limits.chunk_rows or size >= SEGMENT_BYTES:
                yield [*first, *_joined(gathered)]
                first, gathered = [], []
        gathered += self._rest()
        if first or gathered:
            yield [*first, *_joined(gathered)]

    def _sent(self) -> Iterator[list[Part]]:
        """The windows that are due."""
        return iter(()) if self._sender is None else self._sender.due(self._event)

    def _rest(self) -> list[Part]:
        notes = [self._writer.rest()]
        if self._sender is not None:
            notes.append(self._sender.waiting.rest())
            self.tally.add(of_store(self._work.store.name, WAITING_COUNT), self._sender.waiting.size)
        return [(STATE, self._work.store.name, note) for note in notes if note is not None]

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        work, columns = self._work, self._work.columns
        if columns.inputs is not None:
            raw = timed(columns, counted(columns, batches, self.tally))
            with_panes = _with_panes(work.windows, columns, raw)
            batches = grouped(columns, work.reducers, with_panes, work.limits.chunk_rows)
        if work.windows.overlap or work.updates is not None:
            # A window has rows of several panes, which must be merged before they are written.
            return chunks(batches, ALL, ALL)
        return chunks(batches, work.read_rows)

    def _parts(self, chunk: pa.Table) -> Iterator[list[Part]]:
        work, columns = self._work, self._work.columns
        dead, chunk = usable(work, chunk, self.tally)
        yield dead
        if not chunk.num_rows:
            return
        self.tally.add("keys", chunk.num_rows)
        for source, name in columns.clocks:
            self.tally.saw(source, pc.max(chunk[name]).as_py())
        check_own(work.store.key, [whole(chunk[name]) for name in columns.keys], self._task, work.limits.partitions)
        if not work.windows.overlap or work.updates is not None:  # updates are in the order of times, not of keys
            yield self._changes(chunk)
        else:
            some = chunks_of_keys(chunk, work.store.key, columns.keys, work.limits.partitions, work.read_rows)
            yield from map(self._changes, some)

    def _changes(self, chunk: pa.Table) -> list[Part]:
        """What the rows of some keys change. Rows become many windows, so only some of them do at a time."""
        match self._work.windows:
            case TimeWindows() as windows:
                return self._in_windows(windows, chunk)
            case SessionWindows() as windows:
                return self._in_sessions(windows, chunk)
            case SlidingWindows() as windows:
                return self._in_sliding(windows, chunk)

    def _in_sliding(self, windows: SlidingWindows, chunk: pa.Table) -> list[Part]:
        spec, columns = self._work.store, self._work.columns
        late = _times(chunk, columns.pane) + np.int64(windows.size_ms + 1 + windows.grace_ms) <= self._event
        parts = self._late(chunk.filter(pa.array(late))) if late.any() else []
        chunk = chunk.filter(pa.array(~late)) if late.any() else chunk
        if not chunk.num_rows:
            return parts
        merger = SlidingMerger(spec, windows, self._reducers, TIME_FIELD, self._state, self._event)
        with naming_overflow(spec):
            key = [whole(chunk[name]) for name in columns.keys]
            batch = merger.read(key, _times(chunk, columns.pane), self._rows(chunk))
            found = merger.changed(batch)
        points = self._writer.put_points(
            found.points, self._encoded(found.point_rows), whole(found.point_rows[TIME_FIELD])
        )
        changes = self._writer.put(found.own, self._encoded(found.rows), whole(found.rows[TIME_FIELD]))
        parts += [(STATE, spec.name, points), (STATE, spec.name, changes)]
        if self._sender is not None:
            parts += self._sender.changed_again(found.own, event=self._event)
        if (output := self._work.updates) is not None:
            with naming_overflow(spec):
                updates = sliding_updates(merger, batch, _times(chunk, columns.record))
            parts.append(sent(spec, output, updates, TIME_FIELD))
        return parts

    def _encoded(self, rows: pa.Table) -> pa.BinaryArray:
        """Rows as the store keeps them."""
        spec = self._work.store
        return encode_rows(spec.columns, [whole(rows[name]) for name in spec.columns.names])

    def _in_sessions(self, windows: SessionWindows, chunk: pa.Table) -> list[Part]:
        spec = self._work.store
        key = [whole(chunk[name]) for name in self._work.columns.keys]
        merger = SessionMerger(spec, windows, self._reducers, TIME_FIELD, self._state, self._event)
        with naming_overflow(spec):
            groups = merger.merged(key, _times(chunk, self._work.columns.pane), self._rows(chunk))
            found = merger.changed(groups)
        parts = self._late(chunk.filter(pa.array(found.late))) if found.late.any() else []
        if not len(found.own):
            return parts
        changes = self._writer.put(found.own, self._encoded(found.rows), whole(found.rows[TIME_FIELD]))
        # Deletes first: a copy by key and start loses no session that another one begins with.
        parts += [(STATE, spec.name, deletes(stored_keys(spec, found.gone))), (STATE, spec.name, changes)]
        if self._sender is not None:
            parts += self._sender.changed(found.own, is_new=found.is_new, event=self._event)
            parts += self._sender.removed(found.gone, event=self._event)
        if (output := self._work.updates) is not None:
            numbers = _times(chunk, self._work.columns.record)
            with naming_overflow(spec):
                updates = session_updates(spec, self._reducers, TIME_FIELD, windows.gap_ms, groups, numbers)
            parts.append(sent(spec, output, updates, TIME_FIELD))
        return parts

    def _rows(self, chunk: pa.Table) -> pa.Table:
        """The rows of a chunk as rows of the store, with their latest times."""
        columns = self._work.columns
        return rows_of(self._reducers, [whole(chunk[name]) for name in (*columns.partials, columns.time)])

    def _in_windows(self, windows: TimeWindows, chunk: pa.Table) -> list[Part]:
        rows, starts = open_windows(windows, _times(chunk, self._work.columns.pane), self._event)
        is_late = np.ones(chunk.num_rows, dtype=bool)
        is_late[rows] = False
        parts = self._late(chunk.filter(pa.array(is_late))) if is_late.any() else []
        if len(rows) and self._work.updates is not None:
            parts += self._updated(chunk, rows, starts)
        elif len(rows):
            keys, times, merge = (
                self._several(chunk, rows, starts) if windows.overlap else self._alone(chunk, rows, starts)
            )
            parts += self._changed(keys, times, merge)
        return parts

    def _changed(self, keys: pa.BinaryArray, times: pa.Array, merge: Merge) -> list[Part]:
        """The changes of these windows, and which of them wait to be sent."""
        name = self._work.store.name
        with naming_keys(self._work.store, keys):
            before = self._writer.read(keys)
            changes = self._writer.merged(keys, before, times, merge)
        if self._sender is None:
            return [(STATE, name, changes)]
        return [
            (STATE, name, changes),
            *self._sender.changed(keys, is_new=before.payloads.is_null(), event=self._event),
        ]

    def _updated(self, chunk: pa.Table, rows: Times, starts: Times) -> list[Part]:
        """The changes where each row is a record, and the results of its windows after each record."""
        spec, columns = self._work.store, self._work.columns
        at = pa.array(rows)
        own = own_keys(spec, [whole(chunk[name]).take(at) for name in columns.keys], starts)
        encoded = own.dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        times, numbers = _times(chunk, columns.time)[rows], _times(chunk, columns.record)[rows]
        order = np.lexsort((numbers, times, codes))
        before = self._writer.read(encoded.dictionary)
        held = decode_rows(spec.columns, newest_rows(spec, before.payloads, before.schemas))
        stored = pa.table([*held, before.timestamps], names=[*spec.columns.names, TIME_FIELD])
        with naming_overflow(spec):
            so_far = running(self._reducers, self._rows(chunk).take(pa.array(rows[order])), codes[order])
            after = merged(self._reducers, stored.take(pa.array(codes[order])), so_far)
        last = np.flatnonzero(np.diff(codes[order], append=-1))
        newest = after.take(pa.array(last))
        changes = self._writer.put(encoded.dictionary, self._encoded(newest), whole(newest[TIME_FIELD]))
        in_time = np.lexsort((starts[order], numbers[order], times[order]))
        updates = Updates(own.take(pa.array(order[in_time])), after.take(pa.array(in_time)))
        parts = [(STATE, spec.name, changes), sent(spec, self._work.updates or "", updates, TIME_FIELD)]
        if self._sender is not None:
            parts += self._sender.changed(encoded.dictionary, is_new=before.payloads.is_null(), event=self._event)
        return parts

    def _alone(self, chunk: pa.Table, rows: Times, starts: Times) -> tuple[pa.BinaryArray, pa.Array, Merge]:
        """Windows where each row is in one window of its own: their keys, their latest times, and how they merge."""
        work, columns = self._work, self._work.columns
        if len(rows) < chunk.num_rows:
            chunk = chunk.take(pa.array(rows))
        keys = own_keys(work.store, [whole(chunk[name]) for name in columns.keys], starts)
        assert columns.time is not None
        return keys, whole(chunk[columns.time]), partial(merged_rows, work, chunk, keys)

    def _several(self, chunk: pa.Table, rows: Times, starts: Times) -> tuple[pa.BinaryArray, pa.Array, Merge]:
        """The same where a row may be in several windows, and a window may have several rows."""
        work, columns = self._work, self._work.columns
        at = pa.array(rows)
        own = own_keys(work.store, [whole(chunk[name]).take(at) for name in columns.keys], starts)
        encoded = own.dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        order = np.argsort(codes, kind="stable")
        with naming_overflow(work.store):
            found = reduced(self._reducers, self._rows(chunk).take(pa.array(rows[order])), codes[order])
        return encoded.dictionary, whole(found[TIME_FIELD]), partial(self._merged, found)

    def _merged(self, rows: pa.Table, payloads: pa.BinaryArray) -> pa.BinaryArray:
        """Rows merged into those that the store had."""
        spec = self._work.store
        held = pa.table(decode_rows(spec.columns, payloads), names=list(spec.columns.names))
        with naming_overflow(spec):
            after = merged(self._work.reducers, held, rows)
        return self._encoded(after)

    def _late(self, chunk: pa.Table) -> list[Part]:
        """Counts late rows. Returns the records themselves if anyone takes them."""
        if not chunk.num_rows:
            return []
        times = chunk[self._work.columns.rows]
        self._count(LATE_COUNT, pc.sum(times).as_py())
        if self._work.late is None:
            return []
        if not self._work.columns.late:
            raise RejectFastPlan("The batch has late records, and this plan doesn't have their columns.")
        repeated = pa.array(np.repeat(np.arange(chunk.num_rows), times.to_numpy()))
        records = whole(chunk[LATE]).take(repeated)
        rows = pa.Table.from_arrays(records.flatten(), records.type.names)
        if (columns := self._work.late_columns).fields:
            moments = whole(chunk[self._work.columns.time or ""]).take(repeated)
            rows = rows.select(columns.names).cast(columns.arrow).append_column(EVENT_TIME, moments)
        return [(OUTPUT, self._work.late, rows)]


def open_windows(windows: TimeWindows, panes: Times, event: int) -> tuple[Times, Times]:
    """The open windows of each pane: the places of the panes, and the starts of their windows.

    >>> from holdfast.topology.windows import hopping
    >>> rows, starts = open_windows(hopping("2m", every="1m"), np.array([60_000, 120_000]), event=120_000)
    >>> rows.tolist(), starts.tolist()
    ([0, 1, 1], [60000, 60000, 120000])
    """
    size, every = np.int64(windows.size_ms), np.int64(windows.every_ms)
    latest = panes - np.mod(panes, every)
    back = np.arange(-(-windows.size_ms // windows.every_ms) - 1, -1, -1) * every
    starts = latest[:, np.newaxis] - back
    is_open = (starts + size > panes[:, np.newaxis]) & (starts + size + np.int64(windows.grace_ms) > event)
    return np.nonzero(is_open)[0], starts[is_open]


@contextmanager
def naming_overflow(spec: StoreSpec) -> Iterator[None]:
    """Arrow's error about a number that doesn't fit as ours, with the store and what to do."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise Overflow(
            f"An aggregate in store {spec.name!r} left the range of its type: {error}. Nothing of the batch was "
            "committed. Cast the column to a decimal or a double before aggregating, or filter the record out."
        ) from error


def _times(chunk: pa.Table, column: str | None) -> Times:
    assert column is not None
    times: Times = whole(chunk[column]).to_numpy()
    return times


def _with_panes(windows: Windows, columns: TaskColumns, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raw records with their panes."""
    assert columns.time is not None and columns.pane is not None
    for batch in batches:
        yield batch.append_column(columns.pane, panes_of(windows, batch[columns.time]))


def panes_of(windows: Windows, times: pa.Array) -> pa.Array:
    """The pane of each time.

    >>> from holdfast.topology.windows import hopping
    >>> panes_of(hopping("5m", every="1m"), pa.array([90_000, -1])).to_pylist()
    [60000, -60000]
    """
    if not isinstance(windows, TimeWindows):
        return times
    if times.null_count:
        # Arrow's division rounds to zero, numpy's down; an unusable record may have no time.
        return pa.array(
            [None if time is None else time - time % windows.pane_ms for time in times.to_pylist()], pa.int64()
        )
    found = times.to_numpy(zero_copy_only=False)
    return pa.array(found - np.mod(found, np.int64(windows.pane_ms)))


def _joined(parts: list[Part]) -> list[Part]:
    """The parts with those of one name as one table."""
    tables: dict[tuple[str, str], list[pa.Table]] = {}
    for kind, name, table in parts:
        tables.setdefault((kind, name), []).append(table)
    return [(kind, name, pa.concat_tables(each)) for (kind, name), each in tables.items()]
