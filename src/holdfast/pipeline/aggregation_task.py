"""One task of an aggregation: reads the state of its keys at `v-1`, merges the batch into it, writes segments.

It runs in Spark's Python workers, on whole Arrow columns. Each key comes once, from Spark or from `grouping`. So a task
processes its rows in chunks, writes one segment per chunk, and needs the memory of one chunk for any size of batch. It
writes only segments, under unique names: Spark may run it twice, or after its driver has ended.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.log.log import Log
from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.log.segments import SEGMENT_BYTES, STATE
from holdfast.pipeline.grouping import RejectFastPlan, grouped, timed
from holdfast.pipeline.results import Tally, TaskResult, of_store
from holdfast.pipeline.rewriting import rewritten
from holdfast.pipeline.task import READ_LARGE_ROWS, READ_ROWS, Limits, Part, check_own, chunks
from holdfast.pipeline.task_columns import DEAD, OF_SOURCE, TaskColumns, number_of
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.writing import write_segments
from holdfast.stores.access import Now, StoreColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.rows import DamagedRow, decode_rows, encode_rows
from holdfast.stores.layouts.base import BatchWriter
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec
from holdfast.topology.reducers import Overflow, Reducer, chosen_records
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class AggregationWork:
    """What every task of an aggregation does in one version. The driver sends it to the workers."""

    subtopology: int
    version: Version
    store: StoreSpec
    reducers: tuple[Reducer, ...]
    columns: TaskColumns
    now: Now
    limits: Limits

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        volatile = () if self.store.durable else (self.store.name,)
        segments = self._all_segments(task, batches, state, tally)
        return write_segments(
            log, task, self.version, segments, tally, inline_limit=self.limits.inline_limit, volatile=volatile
        )

    def _all_segments(
        self, task: TaskId, batches: Iterable[pa.RecordBatch], state: TaskState, tally: Tally
    ) -> Iterator[list[Part]]:
        before = state.store(self.store.name)
        if self.columns.inputs is not None:
            raw = timed(self.columns, counted(self.columns, batches, tally))
            batches = grouped(self.columns, self.reducers, raw, self.limits.chunk_rows)
        segments = _segments(self, task, batches, self._writer(before, tally), tally)
        if first := rewritten(self.store, self.now, self.limits.rewrite_entries, before, tally):
            segments = _preceded_by(first, segments)
        yield from segments

    @property
    def read_rows(self) -> int:
        """How many keys are read at once."""
        most = READ_LARGE_ROWS if any(reducer.is_large for reducer in self.reducers) else READ_ROWS
        return min(most, self.limits.chunk_rows)

    def _writer(self, before: StoreColumns, tally: Tally) -> BatchWriter:
        def counted(what: str, number: int) -> None:
            tally.add(of_store(self.store.name, what), number)

        return layout_of(self.store).writer(self.version, self.now, before, counted)


def _segments(
    work: AggregationWork, task: TaskId, batches: Iterable[pa.RecordBatch], writer: BatchWriter, tally: Tally
) -> Iterator[list[Part]]:
    """The parts of each segment, of about `chunk_rows` keys or `SEGMENT_BYTES` each.

    The state is read in steps that bound the size of a message. Smaller steps, which overlap with the JVM's conversion
    of rows to Arrow, were no faster (docs/decisions/0005).
    """
    gathered: dict[tuple[str, str], list[pa.Table]] = {}
    rows = size = 0
    for chunk in chunks(batches, work.read_rows):
        for kind, name, table in _parts(work, task, chunk, writer, tally):
            gathered.setdefault((kind, name), []).append(table)
            size += table.nbytes
        rows += chunk.num_rows
        if rows >= work.limits.chunk_rows or size >= SEGMENT_BYTES:
            yield [(kind, name, pa.concat_tables(tables)) for (kind, name), tables in gathered.items()]
            gathered, rows, size = {}, 0, 0
    if (rest := writer.rest()) is not None:
        gathered.setdefault((STATE, work.store.name), []).append(rest)
    if gathered:
        yield [(kind, name, pa.concat_tables(tables)) for (kind, name), tables in gathered.items()]


def _preceded_by(first: list[Part], segments: Iterator[list[Part]]) -> Iterator[list[Part]]:
    """Puts some parts before all others."""
    yield [*first, *next(segments, [])]
    yield from segments


def counted(columns: TaskColumns, batches: Iterable[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
    """Raw records, after those of each source were counted."""
    for batch in batches:
        if columns.sources:
            tally.read_numbered(columns.sources, batch[OF_SOURCE])
        yield batch


def usable(work: AggregationWork, chunk: pa.Table, tally: Tally) -> tuple[list[Part], pa.Table]:
    """Counts the records of a chunk. Returns its dead letters and the other rows, or rejects the plan."""
    columns = work.columns
    tally.records += pc.sum(chunk[columns.rows]).as_py()
    if columns.inputs is None:
        for number, source in enumerate(columns.sources):
            tally.read(source, pc.sum(chunk[number_of(number)]).as_py())
    if not columns.dead and any(chunk[name].null_count for name in columns.keys):
        raise RejectFastPlan("The batch has records that can't be used.")
    if not columns.dead or chunk[DEAD].null_count == chunk.num_rows:
        return [], chunk
    dead = chunk.filter(pc.is_valid(chunk[DEAD]))
    tally.add("dead", pc.sum(dead[columns.rows]).as_py())
    letters = pa.table({"letter": dead[DEAD], "times": dead[columns.rows]})
    return [(DEAD_PART, work.store.name, letters)], chunk.filter(pc.is_null(chunk[DEAD]))


def _parts(work: AggregationWork, task: TaskId, chunk: pa.Table, writer: BatchWriter, tally: Tally) -> list[Part]:
    columns = work.columns
    parts, chunk = usable(work, chunk, tally)
    if chunk.num_rows:
        key = [whole(chunk[name]) for name in columns.keys]
        check_own(work.store.key, key, task, work.limits.partitions)
        keys = encode_keys(work.store.key, key)
        times = None if columns.time is None else whole(chunk[columns.time])
        with naming_keys(work.store, keys):
            changes = writer.changes(keys, times, partial(merged_rows, work, chunk, keys))
        if changes is not None:
            parts.append((STATE, work.store.name, changes))
        tally.add("keys", chunk.num_rows)
        for source, name in columns.clocks:
            tally.saw(source, pc.max(chunk[name]).as_py())
    return parts


@contextmanager
def naming_keys(spec: StoreSpec, keys: pa.Array) -> Iterator[None]:
    """Adds the key to the error about a damaged row of these keys."""
    try:
        yield
    except DamagedRow as error:
        where = f"Store {spec.name!r}, key {_key(spec, keys, error.row)}: "
        raise DamagedRow(error.row, f"{error.fact} Nothing of the batch was committed.", where) from error


def merged_rows(work: AggregationWork, chunk: pa.Table, keys: pa.Array, payloads: pa.Array) -> pa.Array:
    """The rows of the chunk's keys after the batch; `payloads` are the rows before it."""
    spec = work.store
    held = dict(zip((f.name for f in spec.columns.fields), decode_rows(spec.columns, payloads), strict=True))
    columns: dict[str, pa.Array] = {}
    delivered = iter(work.columns.partials)
    old = [[held[field.name] for field in reducer.fields] for reducer in work.reducers]
    new = [[whole(chunk[next(delivered)]).cast(f.field_type.arrow) for f in each.partials] for each in work.reducers]
    chosen = chosen_records(work.reducers, old, new)
    for reducer, before, partials, takes_new in zip(work.reducers, old, new, chosen, strict=True):
        try:
            merged = reducer.merge(before, partials, takes_new)
        except pa.ArrowInvalid as error:
            raise _overflow(spec, reducer, keys, held, partials, error) from error
        columns.update({f.name: column for f, column in zip(reducer.fields, merged, strict=True)})
    return encode_rows(spec.columns, [columns[f.name] for f in spec.columns.fields])


def _overflow(
    spec: StoreSpec,
    reducer: Reducer,
    keys: pa.Array,
    held: Mapping[str, pa.Array],
    partials: list[pa.Array],
    error: pa.ArrowInvalid,
) -> HoldfastError:
    """The error with the key, which the merge of a whole column does not know."""
    for n in range(len(keys)):
        try:
            reducer.merge([held[f.name].slice(n, 1) for f in reducer.fields], [p.slice(n, 1) for p in partials])
        except pa.ArrowInvalid:
            key = _key(spec, keys, n)
            now = {f.name: held[f.name][n].as_py() for f in reducer.fields}
            batch = [p[n].as_py() for p in partials]
            return Overflow(
                f"{reducer.name} of key {key} in store {spec.name!r} left the range of {reducer.fields[0].type}: it "
                f"holds {now} and the batch brings {batch}. Nothing of the batch was committed. Cast the column "
                "to a decimal or a double before aggregating, or filter the record out."
            )
    return Overflow(f"{reducer.name} in store {spec.name!r}: {error}")


def _key(spec: StoreSpec, keys: pa.Array, n: int) -> list[object]:
    """A key for a message; that of a window with its times."""
    return [column[0].as_py() for column in layout_of(spec).key_columns(keys.slice(n, 1)).values()]
