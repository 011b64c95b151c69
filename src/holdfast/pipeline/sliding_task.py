"""Sliding windows of one task: what the batch's records change in the windows around them.

Beside its windows, the store keeps one row per key and millisecond that has records, a point. A window that gets a
record of the batch, or is new because it begins right after one, is computed from its points. So records may come in
any order, and the windows are the same for any batches. A window of n points costs n merges each time it changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.task_state import TaskState
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import unpack_many
from holdfast.stores.formats.rows import decode_rows
from holdfast.stores.layouts.key_ranges import beginnings_of, ranges_of_keys
from holdfast.stores.layouts.windowed_rows import POINT, Times, own_keys, own_keys_of_points, split_own_keys
from holdfast.stores.ranges import expanded
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.topology.reducers import Reducer
from holdfast.topology.row_merging import reduced
from holdfast.topology.windows import SlidingWindows

BLOCK: Final = 2_000_000
"""How many points of windows are merged at a time."""

_NONE: Final[Times] = np.empty(0, dtype=np.int64)


class Points(NamedTuple):
    """Points of keys, which are numbers here, in the order of keys and times."""

    keys: Times
    times: Times
    rows: pa.Table
    of_batch: npt.NDArray[np.bool_]
    stored: npt.NDArray[np.bool_]
    """Which points were there before. A point of the batch may be one of them."""


class Batch(NamedTuple):
    """The rows of a batch, and the stored points near them."""

    key: list[pa.Array]
    """The key of each number."""
    keys: Times
    times: Times
    rows: pa.Table
    """The rows of the batch, then those of stored points, as in `keys` and `times`."""
    number: int
    """How many rows the batch has."""


class ChangedWindows(NamedTuple):
    """Windows, and the points of the batch."""

    own: pa.BinaryArray
    rows: pa.Table
    points: pa.BinaryArray
    point_rows: pa.Table


class Block(NamedTuple):
    """Some open windows that a batch changes."""

    keys: Times
    starts: Times
    begin: Times
    end: Times
    """Where the points of each window begin and end among those of the block."""
    at: Times
    """The places of the starts."""
    places: Times
    """The places of the block's points: one number per point, such that windows of two keys are apart."""
    those: Times
    """The numbers of the block's points."""


@dataclass(frozen=True)
class SlidingMerger:
    """Recomputes the windows of one task. A reducer named `time` keeps the latest event time of rows."""

    spec: StoreSpec
    windows: SlidingWindows
    reducers: tuple[Reducer, ...]
    time: str
    state: TaskState
    event: int

    def read(self, key: list[pa.Array], times: Times, rows: pa.Table) -> Batch:
        """Rows with these keys and times, of which none is late, and the stored points near them."""
        encoded = beginnings_of(self.spec, own_keys(self.spec, key, times)).dictionary_encode()
        keys = encoded.indices.to_numpy().astype(np.int64)
        _, some = np.unique(keys, return_index=True)
        stored_keys, stored_times, stored = self._stored(encoded.dictionary, keys, times, rows.column_names)
        return Batch(
            [column.take(pa.array(some)) for column in key],
            np.concatenate([keys, stored_keys]),
            np.concatenate([times, stored_times]),
            pa.concat_tables([rows, stored]),
            len(times),
        )

    def own(self, batch: Batch, keys: Times, starts: Times) -> pa.BinaryArray:
        """The own keys of windows, or of points."""
        return own_keys(self.spec, [column.take(pa.array(keys)) for column in batch.key], starts)

    def changed(self, batch: Batch) -> ChangedWindows:
        """The windows that the batch changes."""
        points = self._merged(batch)
        keys, starts, tables = [_NONE], [_NONE], [points.rows.slice(0, 0)]
        for block in self.blocks(points):
            members, windows = expanded(block.begin, block.end)
            tables.append(reduced(self.reducers, points.rows.take(pa.array(block.those[members])), windows))
            keys.append(block.keys)
            starts.append(block.starts)
        of_batch = points.of_batch
        return ChangedWindows(
            self.own(batch, np.concatenate(keys), np.concatenate(starts)),
            pa.concat_tables(tables),
            self.own(batch, points.keys[of_batch], points.times[of_batch]),
            points.rows.filter(pa.array(of_batch)),
        )

    def _stored(
        self, beginnings: pa.BinaryArray, keys: Times, times: Times, names: list[str]
    ) -> tuple[Times, Times, pa.Table]:
        """The stored points near the batch: keys, times and rows."""
        reach = np.int64(self.windows.size_ms + 1)
        earliest = np.full(len(beginnings), np.iinfo(np.int64).max)
        latest = np.full(len(beginnings), np.iinfo(np.int64).min)
        np.minimum.at(earliest, keys, times - reach)
        np.maximum.at(latest, keys, times + reach)
        ranges = ranges_of_keys(self.spec, self.state.store(self.spec.name), beginnings, earliest, latest, lead=POINT)
        found = self.state.scan_many(self.spec.name, ranges)
        own = own_keys_of_points(whole(found["key"]))
        cells = unpack_many(whole(found["value"]))
        columns = decode_rows(self.spec.columns, newest_rows(self.spec, cells.payloads, cells.schemas))
        named = dict(zip(self.spec.columns.names, columns, strict=True)) | {self.time: cells.timestamps}
        numbers = pc.index_in(beginnings_of(self.spec, own), value_set=beginnings).to_numpy().astype(np.int64)
        return numbers, split_own_keys(self.spec, own).starts, pa.table({name: named[name] for name in names})

    def _merged(self, batch: Batch) -> Points:
        """The points of the batch and the stored ones, one per key and time."""
        order = np.lexsort((batch.times, batch.keys))
        keys, times = batch.keys[order], batch.times[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])
        groups = np.cumsum(is_first) - 1
        rows = reduced(self.reducers, batch.rows.take(pa.array(order)), groups)
        of_batch, stored = (np.zeros(int(is_first.sum()), dtype=bool) for _ in range(2))
        of_batch[groups[order < batch.number]] = True
        stored[groups[order >= batch.number]] = True
        return Points(keys[is_first], times[is_first], rows, of_batch, stored)

    def blocks(self, points: Points) -> Iterator[Block]:
        """The open windows that points of the batch change."""
        if not len(points.keys):
            return
        size, first = np.int64(self.windows.size_ms), points.times.min()
        span = int(points.times.max() - first) + 2 * self.windows.size_ms + 4
        at_once = max(1, 2**62 // span)
        last_key = int(points.keys[-1])
        for low in range(0, last_key + 1, at_once):
            those = np.flatnonzero((points.keys >= low) & (points.keys < low + at_once))
            places = (points.keys[those] - low) * np.int64(span) + (points.times[those] - first) + size + 1
            for at, begin, end in affected(places, points.of_batch[those], points.stored[those], self.windows.size_ms):
                keys = at // np.int64(span)
                starts = at - keys * np.int64(span) - size - 1 + first
                is_open = starts + size + np.int64(self.windows.grace_ms) >= self.event
                if is_open.any():
                    keys, starts, at = keys[is_open] + low, starts[is_open], at[is_open]
                    yield Block(keys, starts, begin[is_open], end[is_open], at, places, those)


def affected(
    places: Times, of_batch: npt.NDArray[np.bool_], stored: npt.NDArray[np.bool_], size: int
) -> Iterator[tuple[Times, Times, Times]]:
    """The windows that points of the batch change: their starts, and where their points begin and end.

    >>> of_batch = np.array([False, True, False])
    >>> [(starts, begin, end)] = affected(np.array([20, 25, 40]), of_batch, ~of_batch, 10)
    >>> starts.tolist(), begin.tolist(), end.tolist()
    ([15, 21], [0, 1], [2, 2])
    """
    starts = np.unique(np.concatenate([places - size, places + 1]))
    begin = np.searchsorted(places, starts, side="left")
    end = np.searchsorted(places, starts + size, side="right")
    seen = np.concatenate([[0], np.cumsum(of_batch)])
    # The window right after a point is new, unless that point was there before, or one at the window's end.
    is_new = np.isin(starts - 1, places[of_batch & ~stored]) & ~np.isin(starts + size, places[stored])
    chosen = (end > begin) & ((seen[end] > seen[begin]) | is_new)
    starts, begin, end = starts[chosen], begin[chosen], end[chosen]
    cuts = np.searchsorted(np.cumsum(end - begin), np.arange(BLOCK, int((end - begin).sum()) + 1, BLOCK), side="left")
    for low, high in zip([0, *(cuts + 1)], [*(cuts + 1), len(starts)], strict=True):
        if high > low:
            yield starts[low:high], begin[low:high], end[low:high]
