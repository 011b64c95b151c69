"""Sliding windows of one task: what the batch's records change in the windows around them.

Beside its windows, the store keeps one row per key and millisecond that has records, a point. A window that gets a
record of the batch, or begins right after one, is made anew from its points. So records may come in any order, and the
windows are the same for any batches. A window of n points costs n merges each time it changes.
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
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec
from holdfast.topology.reducers import Reducer
from holdfast.topology.row_merging import reduced
from holdfast.topology.windows import SlidingWindows

BLOCK: Final = 2_000_000
"""How many points of windows are merged at a time."""


class Points(NamedTuple):
    """Points of keys, which are numbers here, in the order of keys and times."""

    keys: Times
    times: Times
    rows: pa.Table
    of_batch: npt.NDArray[np.bool_]


class ChangedWindows(NamedTuple):
    """Windows, and the points of the batch."""

    own: pa.BinaryArray
    rows: pa.Table
    points: pa.BinaryArray
    point_rows: pa.Table


@dataclass(frozen=True)
class SlidingMerger:
    """Makes the windows of one task anew. A reducer named `time` keeps the latest event time of rows."""

    spec: StoreSpec
    windows: SlidingWindows
    reducers: tuple[Reducer, ...]
    time: str
    state: TaskState
    event: int

    def changed(self, key: list[pa.Array], times: Times, rows: pa.Table) -> ChangedWindows:
        """The windows that rows with these keys and times change; none of the rows is late."""
        encoded = beginnings_of(self.spec, own_keys(self.spec, key, times)).dictionary_encode()
        keys = encoded.indices.to_numpy().astype(np.int64)
        _, some = np.unique(keys, return_index=True)
        points = self._points(encoded.dictionary, keys, times, rows)
        of_keys = [column.take(pa.array(some)) for column in key]

        def own(numbers: Times, starts: Times) -> pa.BinaryArray:
            return own_keys(self.spec, [column.take(pa.array(numbers)) for column in of_keys], starts)

        found = list(self._windows(points))
        starts = np.concatenate([block[1] for block in found]) if found else np.empty(0, dtype=np.int64)
        numbers = np.concatenate([block[0] for block in found]) if found else np.empty(0, dtype=np.int64)
        tables = [block[2] for block in found]
        batch = points.of_batch
        return ChangedWindows(
            own(numbers, starts),
            pa.concat_tables(tables) if tables else points.rows.slice(0, 0),
            own(points.keys[batch], points.times[batch]),
            points.rows.filter(pa.array(batch)),
        )

    def _points(self, beginnings: pa.BinaryArray, keys: Times, times: Times, rows: pa.Table) -> Points:
        """The batch's points and the stored ones near them, one per key and time."""
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
        stored = pa.table({name: named[name] for name in rows.column_names})
        numbers = pc.index_in(beginnings_of(self.spec, own), value_set=beginnings).to_numpy().astype(np.int64)
        all_keys = np.concatenate([keys, numbers])
        all_times = np.concatenate([times, split_own_keys(self.spec, own).starts])
        order = np.lexsort((all_times, all_keys))
        all_keys, all_times = all_keys[order], all_times[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (all_keys[1:] != all_keys[:-1]) | (all_times[1:] != all_times[:-1])
        groups = np.cumsum(is_first) - 1
        merged = reduced(self.reducers, pa.concat_tables([rows, stored]).take(pa.array(order)), groups)
        of_batch = np.zeros(int(is_first.sum()), dtype=bool)
        of_batch[groups[order < len(times)]] = True
        return Points(all_keys[is_first], all_times[is_first], merged, of_batch)

    def _windows(self, points: Points) -> Iterator[tuple[Times, Times, pa.Table]]:
        """Keys, starts and rows of the open windows that the batch changes, in blocks."""
        if not len(points.keys):
            return
        size, first = np.int64(self.windows.size_ms), points.times.min()
        span = int(points.times.max() - first) + 2 * self.windows.size_ms + 4
        at_once = max(1, 2**62 // span)
        last_key = int(points.keys[-1])
        for low in range(0, last_key + 1, at_once):
            those = (points.keys >= low) & (points.keys < low + at_once)
            keys, times, of_batch = points.keys[those] - low, points.times[those], points.of_batch[those]
            rows = points.rows.filter(pa.array(those))
            # One number per point, such that windows of two keys are apart.
            places = keys * np.int64(span) + (times - first) + size + 1
            for starts, begin, end in affected(places, of_batch, self.windows.size_ms):
                numbers = starts // np.int64(span)
                moments = starts - numbers * np.int64(span) - size - 1 + first
                is_open = moments + size + np.int64(self.windows.grace_ms) > self.event
                starts, begin, end = moments[is_open], begin[is_open], end[is_open]
                if len(starts):
                    members, groups = _expanded(begin, end)
                    after = reduced(self.reducers, rows.take(pa.array(members)), groups)
                    yield numbers[is_open] + low, starts, after


def affected(places: Times, of_batch: npt.NDArray[np.bool_], size: int) -> Iterator[tuple[Times, Times, Times]]:
    """The windows that points of the batch change: their starts, and where their points begin and end.

    >>> [(starts, begin, end)] = affected(np.array([20, 25, 40]), np.array([False, True, False]), 10)
    >>> starts.tolist(), begin.tolist(), end.tolist()
    ([15, 21], [0, 1], [2, 2])
    """
    starts = np.unique(np.concatenate([places - size, places + 1]))
    begin = np.searchsorted(places, starts, side="left")
    end = np.searchsorted(places, starts + size, side="right")
    seen = np.concatenate([[0], np.cumsum(of_batch)])
    after_one = np.isin(starts - 1, places[of_batch])
    chosen = (end > begin) & ((seen[end] > seen[begin]) | after_one)
    starts, begin, end = starts[chosen], begin[chosen], end[chosen]
    cuts = np.searchsorted(np.cumsum(end - begin), np.arange(BLOCK, int((end - begin).sum()) + 1, BLOCK), side="left")
    for low, high in zip([0, *(cuts + 1)], [*(cuts + 1), len(starts)], strict=True):
        if high > low:
            yield starts[low:high], begin[low:high], end[low:high]


def _expanded(begin: Times, end: Times) -> tuple[Times, Times]:
    """The points of each window, and the number of their window."""
    counts = end - begin
    groups = np.repeat(np.arange(len(begin)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(len(groups)) - before + np.repeat(begin, counts), groups
