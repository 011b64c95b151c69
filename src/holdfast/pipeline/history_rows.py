"""The rows of a table with a history, as they were at the times of records.

The latest rows are read in bulk, and the history only of keys whose latest row is newer than a record.
"""

from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.record_columns import last_per_key
from holdfast.pipeline.store_state import Budget, StoreState, united
from holdfast.pipeline.table_rows import FoundRows, TableRows
from holdfast.stores.formats.cells import unpack_many
from holdfast.stores.formats.keys import decode_keys
from holdfast.stores.layouts.as_of import beginnings, history_in, in_history, valid_at
from holdfast.stores.layouts.timed import noted_number
from holdfast.stores.layouts.versioned import DELETED, VersionedEntries

_RANGES: Final = 20_000
"""How many ranges are read at once."""


class HistoryRows(TableRows):
    """The rows of a table with a history in one partition, after this version's changes."""

    def as_of(self, keys: pa.BinaryArray, times: pa.Array) -> FoundRows:
        """The rows that these keys had at these times."""
        cells = self._cells(keys)
        latest = unpack_many(cells)
        deleted = noted_number(self._cells(pa.array([DELETED], pa.binary()))[0].as_py())
        old = in_history(self._store, self._now, latest, deleted, times)
        cells = pc.if_else(pc.greater_equal(times, latest.timestamps), cells, pa.scalar(None, pa.binary()))
        if pc.any(old).as_py():
            cells = pc.replace_with_mask(cells, old, self._valid_at(keys.filter(old), times.filter(old)))
        return self._found(cells)

    def _valid_at(self, keys: pa.BinaryArray, times: pa.Array) -> pa.BinaryArray:
        key = self._store.key
        asked = beginnings(key, decode_keys(key, keys))
        bytes_ = StoreState(self._store.name, self._before, Budget(0))
        entries = VersionedEntries(self._store, bytes_, self._now)
        ranges = united(entries.ranges(asked.to_pylist(), times.to_pylist(), bytes, lambda first, _: (first + 1, None)))
        parts = (ranges[first : first + _RANGES] for first in range(0, len(ranges), _RANGES))
        found = [self._before.scan_many(self._store.name, part) for part in parts]
        olds = last_per_key(pa.concat_tables([*found, self._sealed_olds]), ("key",))
        return valid_at(key, asked, times, olds.filter(pc.is_valid(olds["value"])))

    @cached_property
    def _sealed_olds(self) -> pa.Table:
        """What this version has changed in the history."""
        return history_in(self._changes)
