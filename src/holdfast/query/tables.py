"""Stores as tables: which columns a store has, which stored keys a reader needs, and entries as record batches.

A table is made from the store's spec alone. Its columns are

    the columns of the key
    window_start, window_end    of windows and sessions
    the columns of the value    of an aggregate without the hidden ones; of a Python type see `value_columns`
    valid_from                  of a versioned store, whose latest values are in the table
    timestamp                   of aggregates and timestamped stores: the event time of the entry, null if it has none

Names are unique without regard to case, as SQL needs it: a column of the value, or a time of windows, whose name is
taken begins with `value_`, and `timestamp` and `valid_from` give way to a column of the store itself.
"""

from collections.abc import Container, Generator, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import TopologyError
from holdfast.instance.column_scans import newest_of
from holdfast.query.value_columns import MOMENT, NotAsColumns, ValueColumns
from holdfast.stores.access import ColumnBlock, ColumnBytes, Now
from holdfast.stores.formats.cells import NO_TIMESTAMP, Cells
from holdfast.stores.formats.keys import decode_keys
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_class
from holdfast.stores.kinds.base import Store
from holdfast.stores.layouts.blocks import ALL_KEYS, ALWAYS, KeyRange, TimeRange, blocks_of, oldest_kept
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.layouts.windowed import WINDOW_END, WINDOW_START, WindowedLayout
from holdfast.stores.layouts.windowed_rows import are_points
from holdfast.stores.schema.row_columns import decode_columns
from holdfast.stores.spec import SESSION, TIMESTAMPED, VERSIONED, RowValues, StoreSpec

TIMESTAMP: Final = "timestamp"
VALID_FROM: Final = "valid_from"


class StoreTable:
    """A store as a table."""

    def __init__(self, spec: StoreSpec) -> None:
        if ":" in spec.kind and not _own_kind(spec).BY_KEY:
            raise NotAsColumns(
                f"store {spec.name!r} is of the kind {spec.kind}, whose entries only its own code can read. Ask it by "
                f"its own queries: /v1/stores/{spec.name}/..."
            )
        self.spec = spec
        self._layout = layout_of(spec)
        self.is_windowed = isinstance(self._layout, WindowedLayout)
        self._values = None if isinstance(spec.value, RowValues) else ValueColumns(spec)
        names = _Names()
        keys = [(names.own(field.name), field.field_type.arrow) for field in spec.key.fields]
        self.key_names = tuple(name for name, _ in keys)
        self.time_names = tuple(names.own(name) for name in (WINDOW_START, WINDOW_END)) if self.is_windowed else ()
        """The columns of the starts and the ends of windows or sessions."""
        times = [(name, MOMENT) for name in self.time_names]
        self._value_names = {stored: names.own(stored) for stored, _ in self._value_types()}
        values = [(self._value_names[stored], type_) for stored, type_ in self._value_types()]
        moment = self._moment_name()
        self._moment = moment if moment is not None and names.is_free(moment) else None
        last = [] if self._moment is None else [(self._moment, MOMENT)]
        self.schema: pa.Schema = pa.schema([*keys, *times, *values, *last])
        self.own_schema = _own_schema(spec) if self.is_windowed else spec.key
        """The columns that are encoded in an entry's own key."""

    def _value_types(self) -> list[tuple[str, pa.DataType]]:
        if isinstance(self.spec.value, RowValues):
            return [(field.name, field.field_type.arrow) for field in self.spec.value.shown.fields]
        assert self._values is not None
        return [(name, type_.arrow) for name, type_ in self._values.types.items()]

    def _moment_name(self) -> str | None:
        if self.spec.kind == VERSIONED:
            return VALID_FROM
        return TIMESTAMP if isinstance(self.spec.value, RowValues) or self.spec.kind == TIMESTAMPED else None

    def columns(self, names: Sequence[str] | None) -> list[str]:
        """The names of all columns, or these, if the table has them."""
        if names is None:
            return list(self.schema.names)
        if unknown := [name for name in names if name not in self.schema.names]:
            raise NotAsColumns(
                f"store {self.spec.name!r} has no column {unknown[0]!r}. It has {', '.join(self.schema.names)}."
            )
        return list(names)

    def read(
        self,
        bytes_: ColumnBytes,
        now: Now,
        columns: Sequence[str],
        keys: Sequence[KeyRange] = (ALL_KEYS,),
        times: TimeRange = ALWAYS,
    ) -> Generator[pa.RecordBatch, None, None]:
        """The entries of one task whose keys are in the ranges, which don't overlap. `times` may leave out windows.

        Readers filter by time themselves: all entries of a slice come that has one of these times.
        """
        for block in self._blocks(bytes_, now, keys, times):
            batch = self._decoded(block, now, columns)
            del block
            if batch.num_rows:
                yield batch

    def _blocks(
        self, bytes_: ColumnBytes, now: Now, keys: Sequence[KeyRange], times: TimeRange
    ) -> Iterator[ColumnBlock]:
        """The entries by their own keys."""
        for each in keys:
            for parts in blocks_of(self.spec, bytes_, now, each, times):
                yield from parts[0] if len(parts) == 1 else newest_of(parts)

    def _decoded(self, block: ColumnBlock, now: Now, columns: Sequence[str]) -> pa.RecordBatch:
        keys, cells = block.keys, self._layout.shown(block.values, now)
        there = cells.payloads.is_valid()
        found: dict[str, pa.Array] = {}
        if self.is_windowed:
            if self.spec.option("sliding"):
                there = pc.and_(there, pc.invert(are_points(keys)))
            keys, cells = _filtered(keys, cells, there)
            *own, starts, ends = self._own_columns(keys)
            kept = pc.greater(ends if self.spec.kind == SESSION else starts, oldest_kept(self.spec, now))
            own, (starts, ends) = [each.filter(kept) for each in own], (starts.filter(kept), ends.filter(kept))
            keys, cells = _filtered(keys, cells, kept)
            found |= zip(self.time_names, (_moments(starts), _moments(ends)), strict=True)
        else:
            keys, cells = _filtered(keys, cells, there)
            own = decode_keys(self.own_schema, keys) if any(name in columns for name in self.key_names) else []
        found |= dict(zip(self.key_names, own, strict=False))
        found |= self._value_columns(cells, columns)
        if self._moment is not None and self._moment in columns:
            found[self._moment] = _moments(cells.timestamps)
        schema = pa.schema([self.schema.field(name) for name in columns])
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(keys), pa.struct([])))
        return pa.record_batch([found[name] for name in columns], schema=schema)

    def _own_columns(self, keys: pa.BinaryArray) -> list[pa.Array]:
        """The key of windows or sessions, their starts and their ends."""
        columns = decode_keys(self.own_schema, keys)
        parts = len(self.spec.key.fields)
        own, times = columns[:parts], columns[parts:]
        if self.spec.kind == SESSION:
            return [*own, times[1], times[0]]
        return [*own, times[0], pc.add(times[0], pa.scalar(self.spec.option("window_ms"), pa.int64()))]

    def _value_columns(self, cells: Cells, columns: Container[str]) -> dict[str, pa.Array]:
        wanted = {stored: name for stored, name in self._value_names.items() if name in columns}
        if self._values is not None:
            decoded = self._values.decode(cells.payloads, cells.schemas, wanted)
            return {wanted[stored]: column for stored, column in decoded.items()}
        if not wanted:
            return {}
        rows = decode_columns(self.spec, cells.payloads, cells.schemas, wanted)
        names = [field.name for field in self.spec.columns.fields if field.name in wanted]
        return {wanted[stored]: column for stored, column in zip(names, rows, strict=True)}


class _Names:
    """The names of a table so far."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def is_free(self, name: str) -> bool:
        return name.casefold() not in self._taken

    def own(self, name: str) -> str:
        """The name of a column of the store itself."""
        while not self.is_free(name):
            name = f"value_{name}"
        self._taken.add(name.casefold())
        return name


@lru_cache(maxsize=256)
def table_of(spec: StoreSpec) -> StoreTable:
    """The table of a store.

    >>> spec = StoreSpec(name="scores", key=Schema.of(player="string"), value=RowValues(Schema.of(points="bigint")),
    ...     codec="rows/1")
    >>> table_of(spec).schema.names
    ['player', 'points', 'timestamp']
    """
    return StoreTable(spec)


def _own_kind(spec: StoreSpec) -> type[Store[Any, Any]]:
    try:
        return store_class(spec.kind)
    except TopologyError as error:
        raise NotAsColumns(
            f"store {spec.name!r} is of the app's own kind {spec.kind}, which this instance can't import; its log says "
            f"why. Make the module {spec.kind.partition(':')[0]} importable where it runs, and restart it."
        ) from error


def _own_schema(spec: StoreSpec) -> Schema:
    times = ("$end", "$start") if spec.kind == SESSION else ("$start",)
    put = ("$put",) if spec.option("duplicates") else ()
    return Schema((*spec.key.fields, *(Field(name, "bigint") for name in (*times, *put))))


def _filtered(keys: pa.BinaryArray, cells: Cells, there: pa.BooleanArray) -> tuple[pa.BinaryArray, Cells]:
    if there.true_count == len(there):
        return keys, cells
    return keys.filter(there), Cells(*(each.filter(there) for each in cells))


def _moments(times: pa.Int64Array) -> pa.Array:
    """Milliseconds since 1970 as timestamps, null where there is none."""
    known = times.to_numpy(zero_copy_only=False)
    # A time that microseconds can't hold is beyond the year 290,000: no clock shows it.
    fits = (known != NO_TIMESTAMP) & (np.abs(known // 1_000) < 2**63 // 1_000_000)
    column = pa.array(np.where(fits, known, 0) * 1_000, pa.int64(), mask=~fits)
    return column.cast(MOMENT)
