"""One result per record: what each record makes of its windows, for `emit="updates"`.

Records of a version come in the order of their event times. What the store gets is the same as without updates: only
the rows that are sent differ.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.segments import OUTPUT
from holdfast.pipeline.session_task import MergedSessions
from holdfast.pipeline.sinks.outputs import aggregate_rows
from holdfast.pipeline.sliding_task import Batch, Block, Points, SlidingMerger
from holdfast.pipeline.task import Part
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.layouts.base import part
from holdfast.stores.layouts.windowed_rows import Times, own_keys, stored_keys
from holdfast.stores.ranges import expanded
from holdfast.stores.spec import StoreSpec
from holdfast.topology.derived import TIME
from holdfast.topology.reducers import Reducer
from holdfast.topology.row_merging import running

Flags = npt.NDArray[np.bool_]


class Updates(NamedTuple):
    """Windows after each record, in the order in which they are sent."""

    own: pa.BinaryArray
    rows: pa.Table
    gone: Flags | None = None
    """Sessions that are part of others now. Their rows are those of the other ones."""


def sent(spec: StoreSpec, output: str, updates: Updates, time: str) -> Part:
    """The part with these rows. The column `time` of the rows has their event times."""
    rows = encode_rows(spec.columns, [whole(updates.rows[name]) for name in spec.columns.names])
    cells = pack_many(rows, whole(updates.rows[time]), schema=spec.schema)
    if updates.gone is not None:
        cells = pc.if_else(pa.array(updates.gone), pa.scalar(None, pa.binary()), cells)
    table = aggregate_rows(spec, part(stored_keys(spec, updates.own), cells))
    return OUTPUT, output, table.append_column(TIME, updates.rows[time])


def session_updates(
    spec: StoreSpec, reducers: tuple[Reducer, ...], time: str, gap: int, found: MergedSessions, numbers: Times
) -> Updates:
    """The session of each record after it, and before it the sessions that it ends.

    Records come in the order of their times, so all records of a session that begin it have come: its start is the one
    that it has in the end, and only its end moves. A stored session becomes part of it with the first record that is at
    most a gap before it, or later.
    """
    members, groups = found.union.of_groups(found.chosen)
    is_record = members < len(found.times)
    starts = np.concatenate([found.times, found.stored.starts])[members]
    ends = np.concatenate([found.times, found.stored.ends])[members]
    number = np.concatenate([numbers, np.zeros(len(found.stored.starts), dtype=np.int64)])[members]
    last = np.full(len(found.chosen), np.iinfo(np.int64).min)
    np.maximum.at(last, groups[is_record], starts[is_record])
    joins = np.where(is_record, starts, np.minimum(starts - np.int64(gap), last[groups]))
    order = np.lexsort((number, is_record, joins, groups))
    members, groups, is_record = members[order], groups[order], is_record[order]
    starts, ends, number = starts[order], ends[order], number[order]
    so_far = running(reducers, found.rows.take(pa.array(members)), groups)
    at = np.flatnonzero(is_record)
    begin, end = found.union.starts[groups[at]], whole(so_far[time]).to_numpy()[at]
    # The session that the record before in the group has left, if this record has moved its end.
    moved = np.flatnonzero((groups[at][1:] == groups[at][:-1]) & (end[1:] != end[:-1])) + 1
    stored = np.flatnonzero(~is_record)
    taken_by = np.searchsorted(at, stored)
    other = (starts[stored] != begin[taken_by]) | (ends[stored] != end[taken_by])
    stored, taken_by = stored[other], taken_by[other]
    by = np.concatenate([np.arange(len(at)), moved, taken_by])
    all_starts = np.concatenate([begin, begin[moved], starts[stored]])
    all_ends = np.concatenate([end, end[moved - 1], ends[stored]])
    gone = np.arange(len(by)) >= len(at)
    in_time = np.lexsort((all_starts, all_ends, ~gone, number[at][by], found.times[members[at]][by]))
    by, gone = by[in_time], gone[in_time]
    key = [column.take(pa.array(members[at][by])) for column in found.key]
    return Updates(own_keys(spec, key, all_starts[in_time], all_ends[in_time]), so_far.take(pa.array(at[by])), gone)


class SlidingSteps(NamedTuple):
    """Sliding windows after single records: keys, starts and rows of windows, and the places of the records."""

    keys: Times
    starts: Times
    rows: pa.Table
    records: Times


def sliding_steps(reducers: tuple[Reducer, ...], size: int, points: Points, block: Block) -> SlidingSteps:
    """The windows of a block after each record that changes them. Each record is a point of its own here.

    A window is there when a record is at its end, or right before its start. The second one has come before all
    records in the window. So after a record of the batch, a window that it is in is there, unless only a later record
    of the batch is at its end. The window right after a record is sent too if it is new and has stored points.
    """
    of_batch, places = points.of_batch[block.those], block.places
    members, windows = expanded(block.begin, block.end)
    order = np.lexsort((members, of_batch[members], windows))
    members = members[order]
    so_far = running(reducers, points.rows.take(pa.array(block.those[members])), windows)
    stored = places[~of_batch]
    ends_stored = np.isin(block.at + size, stored)
    is_there = ends_stored | np.isin(block.at - 1, places)
    is_record = of_batch[members]
    after = is_record & (is_there[windows] | (places[members] == block.at[windows] + size))
    is_new = np.isin(block.at - 1, places[of_batch]) & ~np.isin(block.at - 1, stored) & ~ends_stored
    last_stored = ~is_record & np.append(is_record[1:] | (windows[1:] != windows[:-1]), True)
    begins = last_stored & is_new[windows]
    chosen = np.flatnonzero(after | begins)
    right_before = np.searchsorted(places, block.at - 1)[windows[chosen]]
    records = block.those[np.where(begins[chosen], right_before, members[chosen])]
    return SlidingSteps(
        block.keys[windows[chosen]], block.starts[windows[chosen]], so_far.take(pa.array(chosen)), records
    )


def sliding_updates(merger: SlidingMerger, batch: Batch, numbers: Times) -> Updates:
    """The sliding windows after each record, in the order of records and of starts."""
    number = np.concatenate([numbers, np.zeros(len(batch.keys) - batch.number, dtype=np.int64)])
    of_batch = np.arange(len(batch.keys)) < batch.number
    order = np.lexsort((number, of_batch, batch.times, batch.keys))
    rows = batch.rows.take(pa.array(order))
    points = Points(batch.keys[order], batch.times[order], rows, of_batch[order], ~of_batch[order])
    none = np.empty(0, dtype=np.int64)
    found = [SlidingSteps(none, none, rows.slice(0, 0), none)]
    found += [sliding_steps(merger.reducers, merger.windows.size_ms, points, each) for each in merger.blocks(points)]
    keys, starts, records = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("keys", "starts", "records")
    )
    in_time = np.lexsort((starts, number[order][records], points.times[records]))
    own = merger.own(batch, keys[in_time], starts[in_time])
    return Updates(own, pa.concat_tables([each.rows for each in found]).take(pa.array(in_time)))
