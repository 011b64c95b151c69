"""Entries with a TTL: each lies in the slice of the version that wrote it, and expires a TTL after that.

A key may have a copy in every live slice, of which the newest counts; so a read asks the slices from the newest on,
each only for the keys still missing. Nothing is deleted: a replica drops a slice whole when all of it is hidden. An
entry that has expired counts as absent, wherever its bytes are, and the key's aggregates start anew.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.keeping import Merge, ReadKeys, latest, part
from holdfast.stores.access import Now
from holdfast.stores.formats.cells import NEVER, Cells, pack_many, unpack_many
from holdfast.stores.layouts.slices import live_slices, sliced_keys
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec

_NO_NUMBER = pa.scalar(None, pa.int64())
_NO_BYTES = pa.scalar(None, pa.binary())


class Expiring:
    """A store whose entries go a TTL after they were written, in slices."""

    def __init__(self, spec: StoreSpec, now: Now, read: ReadKeys) -> None:
        self._spec = spec
        self._now = now
        self._read = read

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        slices = live_slices(self._spec, self._now.wall)
        held = visible(unpack_many(newest(keys, slices, self._read)), self._now)
        rows = merge(newest_rows(self._spec, held.payloads, held.schemas))
        expires = expiry(self._spec, self._now, len(rows))
        cells = pack_many(rows, latest(held, times), expires, schema=self._spec.schema)
        return part(sliced_keys(slices[0], keys), cells)

    def rest(self) -> None:
        return None


def newest(keys: pa.BinaryArray, slices: range, read: ReadKeys) -> pa.BinaryArray:
    """The newest copy of each key's cell, null where no slice has one."""
    missing = np.arange(len(keys))
    found: list[pa.Array] = []
    places: list[np.typing.NDArray[np.int64]] = []
    for number in slices:
        if not len(missing):
            break
        asked = keys if len(missing) == len(keys) else keys.take(pa.array(missing))
        cells = read(sliced_keys(number, asked))
        if cells.null_count == len(cells):
            continue
        there = cells.is_valid().to_numpy(zero_copy_only=False)
        found.append(cells.drop_null())
        places.append(missing[there])
        missing = missing[~there]
    if not found:
        return pa.nulls(len(keys), pa.binary())
    back = np.empty(len(keys), dtype=np.int64)
    back[np.concatenate([*places, missing])] = np.arange(len(keys))
    return pa.concat_arrays([*found, pa.nulls(len(missing), pa.binary())]).take(pa.array(back))


def visible(cells: Cells, now: Now) -> Cells:
    """The same without what has expired: null, as if it had never been."""
    gone = pc.and_(pc.not_equal(cells.expires, NEVER), pc.less_equal(cells.expires, now.wall))
    if not pc.any(gone).as_py():
        return cells
    return cells._replace(
        payloads=pc.if_else(gone, _NO_BYTES, cells.payloads),
        timestamps=pc.if_else(gone, _NO_NUMBER, cells.timestamps),
        expires=pc.if_else(gone, _NO_NUMBER, cells.expires),
    )


def expiry(spec: StoreSpec, now: Now, rows: int) -> pa.Array | None:
    """When rows written now expire; None in a store without a TTL."""
    return pa.array(np.full(rows, now.wall + spec.ttl_ms)) if spec.ttl_ms else None
