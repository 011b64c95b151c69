"""Windows and sessions of an aggregate as columns: their keys, and what a task reads and writes of them.

An own key is the key of the record, then the times of the window (`windowed` has the bytes). `starts` and `ends` are
columns of milliseconds.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.stores.access import Now, StoreColumns
from holdfast.stores.formats.byte_columns import cut, numbers_at, offsets_of
from holdfast.stores.formats.cells import Cells, pack_many, unpack_many
from holdfast.stores.formats.keys import decode_keys, encode_keys
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.layouts.areas import unflip_signs
from holdfast.stores.layouts.base import BatchWriter, Count, Merge, latest, note_part, part, read_note
from holdfast.stores.layouts.slices import sliced_keys, slices_of, split_sliced_keys
from holdfast.stores.layouts.timed import NEWEST, noted_number, number_note
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import SESSION, StoreSpec
from holdfast.words import Version

Times = npt.NDArray[np.int64]

_START, _END = Field("$start", "bigint"), Field("$end", "bigint")
_TIME_BYTES: Final = 8
_NOTHING = pa.scalar(b"", pa.binary())


POINT: Final = b"\x00"
"""Begins the key of a point in a slice, before the own key: sliding windows are made of the points of their records."""

_POINT = pa.scalar(POINT, pa.binary())


class WindowKeys(NamedTuple):
    """Own keys taken apart."""

    key: list[pa.Array]
    starts: Times
    ends: Times


def own_keys(spec: StoreSpec, key: list[pa.Array], starts: Times, ends: Times | None = None) -> pa.BinaryArray:
    """The own keys of windows, or of sessions, which have an end of their own."""
    times = [starts] if ends is None else [ends, starts]
    return encode_keys(_schema(spec), [*key, *map(pa.array, times)])


def split_own_keys(spec: StoreSpec, own: pa.BinaryArray) -> WindowKeys:
    columns = decode_keys(_schema(spec), own)
    starts = columns[-1].to_numpy()
    if spec.kind == SESSION:
        return WindowKeys(columns[:-2], starts, columns[-2].to_numpy())
    return WindowKeys(columns[:-1], starts, starts + np.int64(spec.option("window_ms")))


def stored_keys(spec: StoreSpec, own: pa.BinaryArray) -> pa.BinaryArray:
    """Own keys with their slices before them: of a window that of its start, of a session that of its end."""
    place = np.int32(_TIME_BYTES * (2 if spec.kind == SESSION else 1))
    times = unflip_signs(numbers_at(own, offsets_of(own)[1:] - place, ">u8"))
    return sliced_keys(slices_of(times, spec.slice_ms), own)


def own_keys_of(stored: pa.BinaryArray) -> pa.BinaryArray:
    """Stored keys without their slices."""
    return split_sliced_keys(stored)[1]


def stored_points(spec: StoreSpec, own: pa.BinaryArray) -> pa.BinaryArray:
    """The stored keys of points: of a key and a time, in the slice of that time."""
    return sliced_keys(slices_of(_times(own), spec.slice_ms), pc.binary_join_element_wise(_POINT, own, _NOTHING))


def own_keys_of_points(stored: pa.BinaryArray) -> pa.BinaryArray:
    """The key and time of each point."""
    own = own_keys_of(stored)
    offsets = offsets_of(own)
    return cut(own, offsets[:-1] + np.int32(1), offsets[1:])


def are_points(own: pa.BinaryArray) -> pa.BooleanArray:
    return pc.starts_with(own, POINT)


def _times(own: pa.BinaryArray) -> Times:
    return unflip_signs(numbers_at(own, offsets_of(own)[1:] - np.int32(_TIME_BYTES), ">u8"))


def _schema(spec: StoreSpec) -> Schema:
    return Schema((*spec.key.fields, *((_END, _START) if spec.kind == SESSION else (_START,))))


class WindowedWriter(BatchWriter):
    """Rows of an aggregate per window. The keys of its chunks are own keys."""

    def __init__(self, spec: StoreSpec, version: Version, now: Now, state: StoreColumns, count: Count) -> None:
        super().__init__(spec, version, now, state, count)
        self._newest: int | None = None
        """The last slice that this version wrote to."""

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        return self.merged(keys, self.read(keys), times, merge)

    def merged(self, keys: pa.BinaryArray, before: Cells, times: pa.Array | None, merge: Merge) -> pa.Table:
        """What a chunk of keys changes, given their cells at `v-1`."""
        rows = merge(newest_rows(self._spec, before.payloads, before.schemas))
        return self.put(keys, rows, latest(before, times))

    def read(self, keys: pa.BinaryArray) -> Cells:
        """The cells at `v-1`, null where there is none."""
        return unpack_many(self._state.get(stored_keys(self._spec, keys)))

    def put(self, keys: pa.BinaryArray, rows: pa.BinaryArray, timestamps: pa.Array | None) -> pa.Table:
        """A state part that sets these windows."""
        return self._put(stored_keys(self._spec, keys), rows, timestamps)

    def put_points(self, own: pa.BinaryArray, rows: pa.BinaryArray, timestamps: pa.Array) -> pa.Table:
        """A state part that sets these points."""
        return self._put(stored_points(self._spec, own), rows, timestamps)

    def _put(self, stored: pa.BinaryArray, rows: pa.BinaryArray, timestamps: pa.Array | None) -> pa.Table:
        if len(stored):
            newest = int(unflip_signs(numbers_at(stored, offsets_of(stored)[:-1] + np.int32(1), ">u8")).max())
            self._newest = newest if self._newest is None else max(self._newest, newest)
        return part(stored, pack_many(rows, timestamps, schema=self._spec.schema))

    def rest(self) -> pa.Table | None:
        """The note of the newest slice, if this version wrote to a newer one."""
        if self._newest is None:
            return None
        before = noted_number(read_note(self._state, NEWEST))
        if before is not None and before >= self._newest:
            return None
        return note_part(NEWEST, number_note(self._newest))
