"""How a table's store keeps its rows: what a task reads for its keys, and what it writes for the merged rows.

Merging is the same for every store; what lies around it is not. There are four ways, one a module: plain entries here,
entries that expire in `expiring`, a bounded number of them in `bounded`, those with a history in `remembering`. A task
has one of them for a version, hands it one chunk of keys after the other, and asks at the end what is left to write.
"""

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.log.segments import STATE_SCHEMA
from holdfast.stores.formats.cells import NO_TIMESTAMP, Cells, pack_many, unpack_many
from holdfast.stores.schema.row_columns import newest_rows
from holdfast.stores.spec import StoreSpec

ReadKeys = Callable[[pa.Array], pa.Array]
"""Keys → their cells at `v-1`, null where there is none."""

ScanKeys = Callable[[bytes, bytes, int], pa.Array]
"""(start, stop, limit) → the first keys at `v-1` with start <= key < stop, in order."""

Merge = Callable[[pa.BinaryArray], pa.BinaryArray]
"""The rows a chunk's keys had, null where they had none → their rows after the batch."""


class Keeping(Protocol):
    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table | None:
        """What a chunk of keys changes: a state part, or nothing yet. `times` are its latest event times, in ms."""

    def rest(self) -> pa.Table | None:
        """What is left to write when all chunks have come."""


class Plain:
    """Every key has its entry, under itself, for good."""

    def __init__(self, spec: StoreSpec, read: ReadKeys) -> None:
        self._spec = spec
        self._read = read

    def changes(self, keys: pa.BinaryArray, times: pa.Array | None, merge: Merge) -> pa.Table:
        held = unpack_many(self._read(keys))
        rows = merge(newest_rows(self._spec, held.payloads, held.schemas))
        return part(keys, pack_many(rows, latest(held, times), schema=self._spec.schema))

    def rest(self) -> None:
        return None


def part(keys: pa.BinaryArray, cells: pa.BinaryArray) -> pa.Table:
    """Keys and their cells as a state part; a null cell is a tombstone."""
    return pa.table([keys, cells], schema=STATE_SCHEMA)


def latest(held: Cells, times: pa.Array | None) -> pa.Array | None:
    """The event times of the merged rows: no row goes back in time."""
    return None if times is None else pc.fill_null(pc.max_element_wise(held.timestamps, times), NO_TIMESTAMP)
