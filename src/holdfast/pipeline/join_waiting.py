"""Records without a match so far, in the order in which their windows close.

An entry has the records of one key and one time: they have the same matches. It is deleted when a match arrives, or
when the window has closed; then its records come out. Nothing else notes whether a record has come out unmatched, so it
does so exactly once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.pipeline.join_buffer import Keys, distinct
from holdfast.pipeline.matching import JoinRecords, Numbers
from holdfast.pipeline.task import READ_ROWS
from holdfast.stores.access import StoreColumns
from holdfast.stores.formats.buckets import Buckets, decode_buckets, encode_buckets
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.cells import pack_many, unpack_many
from holdfast.stores.formats.keys import FORMAT, decode_keys, encode_key, encode_keys
from holdfast.stores.formats.rows import decode_rows, encode_rows
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.base import part
from holdfast.stores.spec import StoreSpec
from holdfast.topology.joining import RECORDS


class Unmatched(NamedTuple):
    """Records whose windows have closed without a match."""

    keys: list[pa.Array]
    times: Numbers
    rows: pa.BinaryArray
    deletes: pa.Table
    """What their end changes in the store."""


class Waiting:
    """The store of one stream's records that wait, at `v-1`."""

    def __init__(self, spec: StoreSpec, state: StoreColumns) -> None:
        self._spec, self._state = spec, state

    def closed(self, open_from: int) -> Iterator[Unmatched]:
        """All records of before this time."""
        start, stop = FORMAT, encode_key(Schema(self._spec.key.fields[:1]), [open_from])
        while True:
            page = self._state.scan(start, stop, limit=READ_ROWS)
            if not page.num_rows:
                return
            stored = whole(page["key"])
            _, *keys = decode_keys(self._spec.key, stored)
            buckets = self._buckets(whole(page["value"]))
            owners = pa.array(buckets.owners)
            everything = np.ones(len(buckets.times), dtype=bool)
            gone = part(stored, pa.nulls(len(stored), pa.binary()))
            yield Unmatched([column.take(owners) for column in keys], buckets.times, buckets.rows(everything), gone)
            if page.num_rows < READ_ROWS:
                return
            start = stored[-1].as_py() + b"\x00"

    def changes(self, keys: Keys, arrived: JoinRecords, rows: pa.BinaryArray, matched: JoinRecords) -> pa.Table:
        """What changes if these records have arrived without a match, and stored ones have been matched.

        No record is among both: a stored record and an arrived one of the same key and time have the same new matches.
        """
        pairs = matched + arrived
        numbers, times, places = distinct(pairs.keys, pairs.times)
        stored = encode_keys(self._spec.key, [pa.array(times), *keys.take(numbers)])
        cells = self._state.get(stored)
        there = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
        is_matched = np.zeros(len(numbers), dtype=bool)
        is_matched[places[: len(matched)]] = True
        ended = pa.array(there[is_matched[there]])
        gone = part(stored.take(ended), pa.nulls(len(ended), pa.binary()))
        if not len(arrived):
            return gone
        before = self._buckets(cells.drop_null())
        entries = there[before.owners]
        kept = ~is_matched[entries]
        kept &= np.isin(entries, places[len(matched) :])
        at = np.concatenate([entries[kept], places[len(matched) :]])
        order = np.argsort(at, kind="stable")
        together = pa.concat_arrays([before.rows(kept), rows]).take(pa.array(order))
        changed, counts = np.unique(at, return_counts=True)
        buckets = encode_buckets(np.zeros(len(changed), dtype=np.int64), counts, times[at[order]], together)
        put = part(stored.take(pa.array(changed)), pack_many(encode_rows(RECORDS, [buckets])))
        return pa.concat_tables([gone, put])

    def _buckets(self, cells: pa.BinaryArray) -> Buckets:
        (buckets,) = decode_rows(RECORDS, unpack_many(cells).payloads)
        return decode_buckets(buckets, self._spec.name)
