"""Aggregations: the operator that keeps one row of aggregates per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.topology.aggregates import Aggregate
from holdfast.topology.derived import derive, names_of
from holdfast.topology.frames import input_type, key_of, type_of
from holdfast.topology.other_names import Named
from holdfast.topology.outputs import DELETED, AggregateRows, ForwardedRows, Output
from holdfast.topology.reducers import Reducer, bind
from holdfast.topology.sink import Sink
from holdfast.topology.topology import Operator, SubTopology, Topology

if TYPE_CHECKING:
    from holdfast.topology.reducing import ReducedTable
    from holdfast.topology.stream import Stream

Aggregates = tuple[tuple[str, Aggregate], ...]


@dataclass(frozen=True)
class Aggregation(Operator):
    """Named aggregates, and how each is merged into the row of its key."""

    aggregates: Aggregates
    reducers: tuple[Reducer, ...]

    keeps_key = True

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        (store,) = subtopology.stores
        return (AggregateRows(subtopology.name, subtopology.number, store),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        for (name, aggregate), reducer in zip(self.aggregates, self.reducers, strict=True):
            yield f"aggregate {name} {reducer.fields[0].type} = {aggregate}"


@dataclass(frozen=True)
class Table(Named):
    """An aggregation of an app: a store that the stream keeps up to date."""

    CALLED: ClassVar[str] = "A table"
    topology: Topology
    name: str

    def __repr__(self) -> str:
        key, values = self.spec.key.fields, [each for each in self.spec.columns.fields if not each.hidden_in]
        return f"{type(self).__name__}({self.name!r}, key={_columns(key)!r}, columns={_columns(values)!r})"

    @property
    def spec(self) -> StoreSpec:
        (store,) = self.topology.subtopology(self.name).stores
        return store

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The changed rows of each version as a stream, by the table's key, or by these columns.

        A row's event time is the latest of the records that its key had; that of a joined row is the later one of the
        two rows that it is made of. A row that a tombstone deletes has the time of the tombstone.
        """
        output = self.topology.outputs[self.name]
        assert isinstance(output, AggregateRows | ForwardedRows)
        return derive(
            self.topology, self.name, output.name, output.columns, names_of(key) or tuple(self.spec.key.names)
        )

    def join(
        self,
        other: Table,
        *,
        on: str | Iterable[str] | None = None,
        how: str = "inner",
        name: str | None = None,
        prefix: str = "",
    ) -> Table:
        """Joins the rows of two tables that have the same key: "inner", "left" or "outer". The result is a table.

        It has the columns of this table, then those of the other one, with `prefix` before their names, and follows
        every change of either: `players.join(scores, how="left", name="players-with-scores")`.

        `on` names columns of this table that are the key of the other one, "inner" or "left":
        `orders.join(customers, on="customer_id", name="orders-with-customers")`. The result has this table's key.
        """
        from holdfast.topology.foreign_keys import join_by_foreign_key
        from holdfast.topology.lookups import check_table
        from holdfast.topology.table_joins import join_tables

        check_table(other, "not a table")
        if on is not None:
            return join_by_foreign_key(self, other, on, how, name, prefix)
        return join_tables(self, other, how, name, prefix, {})

    def top(self, n: int, *, by: str, name: str, per: str | Iterable[str] | None = None) -> ReducedTable:
        """The `n` rows with the largest values in the column `by`, in a store of this name: a leaderboard.

        `totals.top(3, by="points", per="game", name="top3")`: per group, by columns of the table's key; without `per`
        of the whole table, under the key `all`. A value is a list of rows, the best one first.
        """
        from holdfast.topology.ranking import add_top

        return add_top(self, n, by, per, name)

    def sink(self, sink: Sink, *, name: str | None = None) -> Table:
        """Sends the changed rows of every version to `sink`, after the version is committed. Returns this table."""
        self.topology.add_sink(self.name, sink, name)
        return self


def _columns(fields: Iterable[Field]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)


def add_aggregation(
    stream: Stream, columns: tuple[str, ...], aggregates: Aggregates, name: str, make: Callable[..., StoreSpec]
) -> Table:
    """Adds an aggregation by these columns. `make` returns the spec of its store, given key and value."""
    spec, operator = bound(stream, columns, aggregates, make)
    results = [field.name for reducer in operator.reducers for field in reducer.fields[:1]]
    if layout_of(spec).deletes:
        check_unused(DELETED, [*spec.key.names, *results], name, "sinks see that a key was evicted or has expired")
    add_operator(stream, spec, operator)
    return Table(stream.topology, name)


def bound(
    stream: Stream, columns: tuple[str, ...], aggregates: Aggregates, make: Callable[..., StoreSpec]
) -> tuple[StoreSpec, Aggregation]:
    """The spec of the store and the operator of an aggregation by these columns."""
    key = key_of(stream.frame, columns)
    if stream.timestamp:
        type_of(stream.frame, stream.timestamp)
    in_time = any(aggregate.needs_time for _, aggregate in aggregates)
    position = [type_of(stream.frame, column) for column in stream.position] if in_time else []
    reducers = tuple(
        bind(label, aggregate, input_type(stream.frame, label, aggregate), position) for label, aggregate in aggregates
    )
    results = tuple(reducer.fields[0] for reducer in reducers)
    hidden = tuple(field for reducer in reducers for field in reducer.fields[1:])
    spec = msgspec.structs.replace(
        stream.timed(make(key=key, value=RowValues(Schema(results + hidden)))),
        from_now=tuple(label for label, aggregate in aggregates if aggregate.from_now),
        aggregates=tuple((label, aggregate.meaning) for label, aggregate in aggregates),
    )
    return spec, Aggregation(aggregates, reducers)


def check_unused(column: str, names: Iterable[str], store: str, use: str) -> None:
    """Raises if a column of the user's has the name of one that sinks get. `use` says what for."""
    if column in names:
        raise TopologyError(
            f"store({store!r}): a column is named {column!r}, the column in which {use}. Give your column another name."
        )


def add_operator(stream: Stream, spec: StoreSpec, operator: Aggregation) -> None:
    """Adds an aggregation that keeps this store."""
    stream.topology.check_free(spec.name, (spec,), "Give the store another name: .store('...').")
    stream.topology.add(spec.name, stream, spec.key, (spec,), operator)
