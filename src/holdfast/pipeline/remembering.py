"""Entries with a history: each key's latest row, and the rows it had before for as long as `retention`.

The layout is the versioned store's (`stores.kinds.versioned`), so whoever reads one reads the other. A row is valid
from the largest event time its key had by then or, in a stream without event time, from the wall clock of the version
that wrote it. So a key's rows come in the order of time, and nothing is ever put in between: a row that begins later
than the one before it ends that one, which goes into the slice of its end; one that begins when it did replaces it. A
late record changes the latest row and leaves the history as it is.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.keeping import Merge, ReadKeys, latest, part
from holdfast.stores.access import Now
from holdfast.stores.formats.cells import pack_many, unpack_many
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds.timed import NEWEST, noted_number, number_note
from holdfast.stores.layouts.slices import kept_after, sliced_keys, slices_of
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec

_VALIDITY = (Field("$valid_to", "bigint"), Field("$valid_from", "bigint"))
"""What follows the key of an old row."""


class _Old(NamedTuple):
    """Rows that are no longer the latest: where they go, their cells, and the last of the slices they go to."""

    keys: pa.BinaryArray
    cells: pa.BinaryArray
    newest: int


class Remembering:
    """A store that keeps the rows its keys had, as far back as its retention."""

    def __init__(self, spec: StoreSpec, now: Now, read: ReadKeys) -> None:
        self._spec = spec
        self._now = now
        self._read = read
        self._newest: int | None = None
        """The last slice that anything of this version went to."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        cells = self._read(keys)
        held = unpack_many(cells)
        since = latest(held, pa.array(np.full(len(keys), self._now.wall)) if times is None else times)
        before = newest_rows(self._spec, held.payloads, held.schemas)
        changed = part(keys, pack_many(merge(before), since, schema=self._spec.schema))
        if before is not held.payloads:
            # The past is written in the newest layout too, or the pass over old rows could miss it behind its back.
            cells = pack_many(before, held.timestamps, schema=self._spec.schema)
        if (old := self._ended(keys, cells, held.timestamps, since)) is None:
            return changed
        self._newest = old.newest if self._newest is None else max(self._newest, old.newest)
        return pa.concat_tables([changed, part(old.keys, old.cells)])

    def _ended(self, keys: pa.Array, cells: pa.Array, began: pa.Array, ended: pa.Array) -> _Old | None:
        """The rows that were the latest and no longer are, unless they would be hidden at once."""
        over = pc.and_(pc.less(began, ended), pc.greater(ended, kept_after(self._spec, self._now)))
        keys, cells, began, ended = (column.filter(over) for column in (keys, cells, began, ended))
        if not len(keys):
            return None
        slices = slices_of(ended, self._spec.slice_ms)
        schema = Schema(self._spec.key.fields + _VALIDITY)
        own = encode_keys(schema, [*decode_keys(self._spec.key, keys), ended, began])
        return _Old(sliced_keys(slices, own), cells, int(slices.max()))

    def rest(self) -> pa.Table | None:
        """The note of how far slices go, where this version went further."""
        if self._newest is None:
            return None
        before = noted_number(self._read(pa.array([NEWEST], pa.binary()))[0].as_py())
        if before is not None and before >= self._newest:
            return None
        return part(pa.array([NEWEST], pa.binary()), pa.array([number_note(self._newest)], pa.binary()))
