"""One task of one version: read the state of its keys at `v-1`, merge the batch into it, seal a segment.

Runs in Spark's Python workers, on whole Arrow columns. Each key comes once, from Spark or from `grouping`, so a task
works through its rows in chunks, each chunk a segment of its own, and needs the memory of one chunk whatever the
batch's size. It writes nothing but segments, under names nobody else has: Spark may run it twice, or after its driver
has gone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from holdfast import faults
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.log.segments import STATE, SegmentRef
from holdfast.pipeline.bounded import Bounded
from holdfast.pipeline.chunks import chunks
from holdfast.pipeline.expiring import Expiring
from holdfast.pipeline.grouping import NeedsCare, grouped
from holdfast.pipeline.keeping import Keeping, Plain, ReadKeys, ScanKeys, part
from holdfast.pipeline.layout import DEAD, Layout
from holdfast.pipeline.remembering import Remembering
from holdfast.pipeline.results import Tally, TaskError, TaskResult, encode, of_store
from holdfast.stores.access import Now
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.partition import partitions_of
from holdfast.stores.formats.rows import DamagedRow, decode_rows, encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.schema.row_rewrite import RowRewriter
from holdfast.stores.spec import StoreSpec
from holdfast.topology.reducers import Overflow, Reducer
from holdfast.words import TaskId, Version

READ_ROWS = 200_000
"""How many keys a task asks for at once."""

Part = tuple[str, str, pa.Table]
ReadState = Callable[[TaskId, str, Version, pa.Array], pa.Array]
"""(task, store, version, keys) → the cells of these keys at exactly that version, null where there is none."""

ScanState = Callable[[TaskId, str, Version, bytes, bytes, int], pa.Array]
"""(task, store, version, start, stop, limit) → the first keys with start <= key < stop at exactly that version."""

CountState = Callable[[TaskId, str], int]
"""(task, store) → about how many entries there are."""


class WrongPartition(HoldfastError):
    """A key came to a task that doesn't own it: the exchange was not by key."""

    category = ErrorCategory.BUG


@dataclass(frozen=True)
class TaskWork:
    """What every task of one sub-topology in one version does. Travels from the driver to the workers."""

    topology: int
    version: Version
    store: StoreSpec
    reducers: tuple[Reducer, ...]
    chunk_rows: int
    inline_limit: int
    partitions: int
    layout: Layout
    now: Now
    rewrite_entries: int = 0


def run(
    work: TaskWork,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    log: Log,
    read: ReadState,
    scan: ScanState,
    count: CountState = lambda task, store: 0,
) -> TaskResult:
    """The whole task. A refusal is a result too, so that Spark doesn't try the same rows again."""
    task = TaskId(work.topology, partition)
    tally = Tally()
    volatile = () if work.store.durable else (work.store.name,)
    written = WrittenSegments()
    if work.layout.inputs is not None:
        batches = grouped(work.layout, work.reducers, batches, work.chunk_rows)
    try:
        segments = _segments(work, task, batches, _keeping(work, task, read, scan, tally), tally)
        if work.rewrite_entries:
            segments = _begun_with(_rewritten(work, task, read, scan, count, tally), segments)
        for parts in segments:
            written += log.write_parts(task, work.version, parts, inline_limit=work.inline_limit, volatile=volatile)
    except HoldfastError as error:
        return refused(task, error)
    return TaskResult(str(task), written.segments, tally.counts, tally.event_time, volatile=written.volatile)


def refused(task: TaskId, error: HoldfastError) -> TaskResult:
    """A task that can't do its part, and why."""
    return TaskResult(
        str(task), error=TaskError(type(error).__name__, str(error), retry=error.category is ErrorCategory.RETRY)
    )


def _keeping(work: TaskWork, task: TaskId, read: ReadState, scan: ScanState, tally: Tally) -> Keeping:
    """How this store keeps its rows, over its state at `v-1`."""
    spec, get = work.store, _getter(work, task, read)
    if spec.max_entries:

        def counted(what: str, number: int) -> None:
            tally.add(of_store(spec.name, what), number)

        return Bounded(spec, work.version, work.now, get, _scanner(work, task, scan), counted)
    if spec.retention_ms:
        return Remembering(spec, work.now, get)
    return Expiring(spec, work.now, get) if spec.slice_ms else Plain(spec, get)


def _getter(work: TaskWork, task: TaskId, read: ReadState) -> ReadKeys:
    def get(keys: pa.Array) -> pa.Array:
        faults.point("state.read")
        return read(task, work.store.name, Version(work.version - 1), keys)

    return get


def _scanner(work: TaskWork, task: TaskId, scan: ScanState) -> ScanKeys:
    return partial(scan, task, work.store.name, Version(work.version - 1))


def _segments(
    work: TaskWork, task: TaskId, batches: Iterable[pa.RecordBatch], keeping: Keeping, tally: Tally
) -> Iterator[list[Part]]:
    """The parts of one segment after the other, each of about `chunk_rows` keys.

    Within a segment the state is asked for in steps that bound a message. Smaller ones, which overlap with the
    JVM still turning rows into Arrow, were no faster (docs/decisions/0005).
    """
    gathered: dict[tuple[str, str], list[pa.Table]] = {}
    rows = 0
    for chunk in chunks(batches, min(READ_ROWS, work.chunk_rows)):
        for kind, name, table in _parts(work, task, chunk, keeping, tally):
            gathered.setdefault((kind, name), []).append(table)
        rows += chunk.num_rows
        if rows >= work.chunk_rows:
            yield [(kind, name, pa.concat_tables(tables)) for (kind, name), tables in gathered.items()]
            gathered, rows = {}, 0
    if (rest := keeping.rest()) is not None:
        gathered.setdefault((STATE, work.store.name), []).append(rest)
    if gathered:
        yield [(kind, name, pa.concat_tables(tables)) for (kind, name), tables in gathered.items()]


def _rewritten(
    work: TaskWork, task: TaskId, read: ReadState, scan: ScanState, count: CountState, tally: Tally
) -> list[Part]:
    """Some rows of older layouts in the newest, as they were at `v-1`."""
    spec = work.store
    step = RowRewriter(spec, work.now).step(
        _getter(work, task, read),
        _scanner(work, task, scan),
        partial(count, task, spec.name),
        work.rewrite_entries,
    )
    if step is None:
        return []
    if step.rewritten:
        tally.add(of_store(spec.name, "rewritten"), step.rewritten)
    return [(STATE, spec.name, part(step.keys, step.cells))]


def _begun_with(first: list[Part], segments: Iterator[list[Part]]) -> Iterator[list[Part]]:
    """Puts some parts before all others: of two changes of one key the later one counts, and that is the batch's."""
    yield [*first, *next(segments, [])]
    yield from segments


def _parts(work: TaskWork, task: TaskId, chunk: pa.Table, keeping: Keeping, tally: Tally) -> list[Part]:
    parts = []
    layout = work.layout
    tally.add("records", pc.sum(chunk[layout.rows]).as_py())
    if not layout.dead and any(chunk[name].null_count for name in layout.keys):
        raise NeedsCare("The batch has records that can't be used.")
    if layout.dead and chunk[DEAD].null_count < chunk.num_rows:
        dead = chunk.filter(pc.is_valid(chunk[DEAD]))
        tally.add("dead", pc.sum(dead[layout.rows]).as_py())
        letters = pa.table({"letter": dead[DEAD], "times": dead[layout.rows]})
        parts.append((DEAD_PART, work.store.name, letters))
        chunk = chunk.filter(pc.is_null(chunk[DEAD]))
    if chunk.num_rows:
        key = [whole(chunk[name]) for name in layout.keys]
        check_own(work.store.key, key, task, work.partitions)
        keys = encode_keys(work.store.key, key)
        times = None if layout.time is None else whole(chunk[layout.time])
        try:
            changes = keeping.changes(keys, times, partial(_merged, work, chunk, keys))
        except DamagedRow as error:
            where = f"Store {work.store.name!r}, key {_key(work.store, keys, error.row)}: "
            raise DamagedRow(error.row, f"{error.fact} Nothing of the batch was committed.", where) from error
        if changes is not None:
            parts.append((STATE, work.store.name, changes))
        tally.add("keys", chunk.num_rows)
        if layout.time is not None:
            tally.saw(pc.max(chunk[layout.time]).as_py())
    return parts


def _merged(work: TaskWork, chunk: pa.Table, keys: pa.Array, payloads: pa.Array) -> pa.Array:
    """The rows of the chunk's keys after the batch; `payloads` is what they were before."""
    spec = work.store
    assert spec.value is not None
    held = dict(zip((f.name for f in spec.value.fields), decode_rows(spec.value, payloads), strict=True))
    columns: dict[str, pa.Array] = {}
    delivered = iter(work.layout.partials)
    for reducer in work.reducers:
        partials = [whole(chunk[next(delivered)]).cast(partial.field_type.arrow) for partial in reducer.partials]
        try:
            merged = reducer.merge([held[f.name] for f in reducer.fields], partials)
        except pa.ArrowInvalid as error:
            raise _overflow(spec, reducer, keys, held, partials, error) from error
        columns.update({f.name: column for f, column in zip(reducer.fields, merged, strict=True)})
    return encode_rows(spec.value, [columns[f.name] for f in spec.value.fields])


def check_own(schema: Schema, key: Sequence[pa.Array], task: TaskId, partitions: int) -> None:
    """That the exchange was by key: each key hashes to this very partition."""
    where = partitions_of(schema, key, partitions)
    strays = (where != task.partition).nonzero()[0]
    if len(strays):
        stray = int(strays[0])
        raise WrongPartition(
            f"Key {[column[stray].as_py() for column in key]} came to task {task} and belongs to partition "
            f"{where[stray]}. Nothing was written. Please report this with the pipeline's df.explain()."
        )


def _overflow(
    spec: StoreSpec,
    reducer: Reducer,
    keys: pa.Array,
    held: Mapping[str, pa.Array],
    partials: list[pa.Array],
    error: pa.ArrowInvalid,
) -> HoldfastError:
    """Says which key it was: the merge of a column only knows that there was one."""
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
    return [column[0].as_py() for column in decode_keys(spec.key, keys.slice(n, 1))]


def to_batch(result: TaskResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode(result)], pa.binary())], names=["result"])


def segments_of(results: Iterable[TaskResult]) -> dict[str, tuple[SegmentRef, ...]]:
    """The commit's list: task → segments, tasks without any left out."""
    return {result.task: result.segments for result in results if result.segments}
