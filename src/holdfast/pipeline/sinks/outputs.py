"""Reads the rows of an output from the segments of a commit.

The rows of an aggregation and of a store's changes come from its state parts, so stored and sent rows can't differ.
The store's layout knows which entries a part changes; an entry that was only rewritten to the newest schema is not
sent.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing
from holdfast.log.segments import DEAD, OUTPUT, STATE, Part
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import NO_TIMESTAMP
from holdfast.stores.kinds.base import Store
from holdfast.stores.layouts.base import Changed
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.schema.row_columns import decode_columns
from holdfast.stores.spec import SESSION, StoreSpec
from holdfast.topology.derived import TIME
from holdfast.topology.outputs import (
    DELETED,
    AggregateRows,
    ChangedEntries,
    DeadLetters,
    DerivedOutput,
    ForwardedRows,
    Output,
    as_json,
)
from holdfast.topology.sink import Rows
from holdfast.words import TaskId

logger = logging.getLogger(__name__)

_GONE = "version %d: the changes of store %r were deleted before a sink had read them: the store isn't durable"

Decode = Callable[[pa.Table], pa.Table]


def rows_of(output: Output, log: Log, commit: Commit) -> Iterator[Rows]:
    """The rows of an output in one version."""
    match output:
        case AggregateRows(store=store) | ChangedEntries(store=store) if commit.version <= store.after:
            return iter(())  # changes of a former store of this name
        case AggregateRows(store=store):
            return _decoded(log, commit, STATE, store.name, output.subtopology, partial(aggregate_rows, store))
        case ForwardedRows():
            return _decoded(log, commit, OUTPUT, output.name, output.subtopology, _without_time)
        case ChangedEntries(store=store):
            decode = partial(changed_entries, store, output.declared)
            return _decoded(log, commit, STATE, store.name, output.subtopology, decode)
        case DeadLetters():
            return _decoded(log, commit, DEAD, None, None, partial(_dead_letters, commit.version))


def _decoded(
    log: Log, commit: Commit, part: str, name: str | None, subtopology: int | None, decode: Decode
) -> Iterator[Rows]:
    for task, number, table in _parts(log, commit, part, name):
        if subtopology in (None, task.subtopology) and (rows := decode(table)).num_rows:
            yield Rows(task, number, rows)


def is_part_of(output: DerivedOutput, part: Part) -> bool:
    """Whether a part has rows of an output."""
    match output:
        case AggregateRows(store=store) | ChangedEntries(store=store):
            return part.type == STATE and part.name == store.name
        case ForwardedRows(name=name):
            return part.type == OUTPUT and part.name == name


def timed_rows(output: DerivedOutput, table: pa.Table, deleted: pa.Table | None = None) -> pa.Table:
    """The rows in a part of an output, with their event times in milliseconds, null for a row that has none.

    `deleted` has the times of deleted keys, where they are known.
    """
    match output:
        case AggregateRows(store=store):
            layout = layout_of(store)
            changed = layout.changed(table)
            times = layout.event_times(changed)
            if deleted is not None:
                at = pc.index_in(changed.keys, value_set=whole(deleted["key"]))
                times = pc.coalesce(times, whole(deleted[TIME]).take(at))
            known = pc.not_equal(times, NO_TIMESTAMP)
            return aggregate_rows(store, table).append_column(
                TIME, pc.if_else(known, times, pa.scalar(None, pa.int64()))
            )
        case ForwardedRows():
            return table if TIME in table.column_names else table.append_column(TIME, pa.nulls(len(table), pa.int64()))
        case ChangedEntries(store=store):
            rows = changed_entries(store, output.declared, table)
            times = pa.nulls(len(rows), pa.int64())
            if "timestamp" in rows.column_names:
                times = layout_of(store).event_times(_in_order(store, table))
            return rows.append_column(TIME, times)


def _without_time(table: pa.Table) -> pa.Table:
    return table.drop_columns(TIME) if TIME in table.column_names else table


def aggregate_rows(spec: StoreSpec, table: pa.Table) -> pa.Table:
    """The changed rows in a state part of an aggregation's store."""
    layout = layout_of(spec)
    changed = layout.changed(table)
    columns = layout.key_columns(changed.keys)
    results = decode_columns(spec, changed.cells.payloads, changed.cells.schemas)
    for field, column in zip(spec.columns.fields, results, strict=True):
        if not field.hidden_in:
            columns[field.name] = column
    if layout.deletes:
        columns[DELETED] = changed.gone
    return pa.table(columns)


def changed_entries(spec: StoreSpec, declared: Store[Any, Any], table: pa.Table) -> pa.Table:
    """The changed entries in a state part of a processor's store."""
    layout = layout_of(spec)
    changed = _in_order(spec, table)
    codec = declared.value_codec(spec)
    read = zip(changed.cells.payloads.to_pylist(), changed.cells.schemas.to_pylist(), strict=True)
    values = [None if value is None else as_json(codec.decode(value, schema)) for value, schema in read]
    columns = layout.key_columns(changed.keys)
    columns["value"] = pa.array(values, pa.string())
    if "timestamp" in declared.SINK_COLUMNS:
        columns["timestamp"] = changed.cells.timestamps
    columns[DELETED] = changed.gone
    return pa.table(columns)


def _in_order(spec: StoreSpec, table: pa.Table) -> Changed:
    return layout_of(spec).changed(table).in_order(deleted_first=spec.kind == SESSION)


class _Letter(msgspec.Struct):
    reason: str
    record: msgspec.Raw


def _dead_letters(version: int, table: pa.Table) -> pa.Table:
    """The reason, the record as JSON, how often it came, and in which version."""
    letters = [msgspec.json.decode(letter, type=_Letter) for letter in table["letter"].to_pylist()]
    columns = {
        "reason": pa.array([letter.reason for letter in letters], pa.string()),
        "record": pa.array([bytes(letter.record).decode() for letter in letters], pa.string()),
        "times": table["times"],
        "version": pa.repeat(pa.scalar(version, pa.int64()), len(letters)),
    }
    return pa.table(columns)


def _parts(log: Log, commit: Commit, kind: str, name: str | None) -> Iterator[tuple[TaskId, int, pa.Table]]:
    for task in sorted(map(TaskId.parse, commit.segments.keys() | commit.volatile.keys())):
        number = 0
        for ref in (*commit.of_task(task), *commit.volatile_of(task)):
            for part in ref.parts:
                if part.type == kind and name in (None, part.name):
                    try:
                        table = log.read_part(ref, part)
                    except ObjectMissing:
                        if ref not in commit.volatile_of(task):
                            raise
                        logger.warning(_GONE, commit.version, part.name)
                        continue
                    yield task, number, table
                    number += 1
