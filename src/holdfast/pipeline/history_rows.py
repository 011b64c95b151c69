"""The rows of a table with a history, as they were at the times of records.

The latest rows are read in bulk, and the history only of keys whose latest row is newer than a record.
"""

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.record_columns import last_per_key
from holdfast.pipeline.table_rows import FoundRows, TableRows
from holdfast.stores.formats.cells import unpack_many
from holdfast.stores.formats.keys import decode_keys
from holdfast.stores.layouts.as_of import beginnings, history_in, in_history, valid_at
from holdfast.stores.layouts.key_ranges import ranges_of_keys
from holdfast.stores.layouts.timed import noted_number
from holdfast.stores.layouts.versioned import DELETED


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
        coded = asked.dictionary_encode()
        earliest = np.full(len(coded.dictionary), np.iinfo(np.int64).max)
        np.minimum.at(earliest, coded.indices.to_numpy(), times.to_numpy() + 1)
        ranges = ranges_of_keys(self._store, self._before.store(self._store.name), coded.dictionary, earliest)
        found = self._before.scan_many(self._store.name, ranges)
        olds = last_per_key(pa.concat_tables([found, self._sealed_olds]), ("key",))
        return valid_at(key, asked, times, olds.filter(pc.is_valid(olds["value"])))

    @cached_property
    def _sealed_olds(self) -> pa.Table:
        """What this version has changed in the history."""
        return history_in(self._changes)
