"""Tables from a changelog: a stream of rows and tombstones, of which a store keeps the newest row per key.

players  ── ann, Bern ──●── ann, Basel ──●── ann, deleted ──►
table       ann: Bern      ann: Basel       (no ann)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.layouts.base import TOMBSTONES
from holdfast.stores.options import Length
from holdfast.stores.spec import KEY_VALUE, VERSIONED, RowValues, StoreSpec
from holdfast.topology.aggregation import Table, check_unused
from holdfast.topology.frames import expression_type, key_of, type_of
from holdfast.topology.outputs import DELETED, AggregateRows, Output
from holdfast.topology.topology import Operator, SubTopology

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.topology.stream import Stream

TIME_OF_ROW = "row#time"
"""The hidden column with the event time of a row, in milliseconds. No column of a user can have this name."""


@dataclass(frozen=True)
class Changelog(Operator):
    """Keeps the newest row per key, by event time, then by source position. A tombstone deletes the key."""

    columns: tuple[str, ...]
    """The stream's columns that rows have."""
    deleted: str | Column | None
    """True for a tombstone."""

    keeps_key = True

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        (store,) = subtopology.stores
        return (AggregateRows(subtopology.name, subtopology.number, store),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield "newest row per key" + ("" if self.deleted is None else f", deleted where {self.deleted}")


def add_table(
    stream: Stream, name: str, deleted: str | Column | None, history: Length | None, options: Mapping[str, Any]
) -> Table:
    """Adds a table with the newest row per key of a stream, in a store with these options."""
    columns, spec = rows_of(stream, name, deleted, options, history)
    stream.topology.check_free(name, (spec,), "Give the table another name.")
    stream.topology.add(name, stream, spec.key, (spec,), Changelog(columns, deleted))
    return Table(stream.topology, name)


def rows_of(
    stream: Stream, name: str, deleted: str | Column | None, options: Mapping[str, Any], history: Length | None = None
) -> tuple[tuple[str, ...], StoreSpec]:
    """The columns of a stream's rows beside its key, and the spec of the store that keeps the newest row per key."""
    frame, key = stream.frame, key_of(stream.frame, stream.key)
    if deleted is not None:
        where = f"table({name!r}, deleted={deleted!r})"
        if (kind := expression_type(frame, deleted, where)) != "boolean":
            raise TopologyError(
                f"{where}: the condition is of type {kind}, and must be true or false, such as "
                "deleted=\"op = 'DELETE'\"."
            )
    columns = tuple(column for column in frame.columns if column not in (*stream.key, deleted))
    if not columns:
        raise TopologyError(f"table({name!r}): the stream has no column beside its key. Add one, such as a constant.")
    check_unused(DELETED, [*stream.key, *columns], name, "sinks see that a key was deleted")
    if history is not None and stream.timestamp is None:
        raise TopologyError(
            f"table({name!r}, history={history!r}): a row is valid from its event time on, and the stream has none. "
            "Name its column: app.table(..., timestamp='...')."
        )
    time = (Field(TIME_OF_ROW, "bigint", columns[0]),) if stream.timestamp and history is None else ()
    fields = tuple(Field(column, type_of(frame, column)) for column in columns)
    return columns, row_store(stream, name, key, Schema(fields + time), options, history)


def row_store(
    stream: Stream,
    name: str,
    key: Schema,
    columns: Schema,
    options: Mapping[str, Any],
    history: Length | None = None,
) -> StoreSpec:
    """The spec of a store with one row per key, whose keys can be deleted."""
    made = store_spec(
        name,
        KEY_VALUE if history is None else VERSIONED,
        key=key,
        value=RowValues(columns),
        codec=ROWS,
        default_engine=stream.topology.engine,
        retention=history,
        where=f"table({name!r})",
        **options,
    )
    # A column that is added later is null in a row until the row is written again.
    shown = tuple(field.name for field in columns.fields if not field.hidden_in)
    return msgspec.structs.replace(stream.timed(made), fixed=(*made.fixed, (TOMBSTONES, True)), from_now=shown)
