"""Joins of a stream with a table: each record looks up the row of its key.

    games    ── ann, 3 ──────── bob, 1 ──►        players:  ann → Bern
    inner       ann, 3, Bern
    left        ann, 3, Bern    bob, 1, null

In a version the changes of the table come first: a record sees the table as it is after this version's changes. If the
table has a history, a record gets the row that was valid at its own event time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.formats.types import Field, FieldType, Schema
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import VERSIONED
from holdfast.topology.aggregation import Table
from holdfast.topology.frames import key_of, type_of
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.joined import Joined
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.topology import Operator, SubTopology, Topology

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.topology.stream import Stream

    On = str | Column | Iterable[str | Column]
    """What a join looks up: columns of the stream, or expressions."""

How = Literal["inner", "left"]


class OfStream(Operator):
    """A join whose rows have the key of the stream."""

    output: Schema
    """Their columns."""


@dataclass(frozen=True)
class TableJoin(OfStream):
    """A join of records with the rows of a table, by the key that the sub-topology is partitioned by."""

    table: str
    how: How
    columns: tuple[str, ...]
    """The columns of the stream."""
    output: Schema
    """The columns of the stream, then those of the table."""
    key: tuple[str, ...]
    """The key of the stream."""
    as_of: bool = False
    """Whether a record gets the row of its own time: the table has a history."""

    keeps_key = True
    beside_tables = True

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        return (ForwardedRows(subtopology.name, subtopology.number, self.output),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        by = ", ".join(subtopology.key.names)
        rekeyed = "" if tuple(subtopology.key.names) == self.key else f", re-keyed from {', '.join(self.key)}"
        as_of = ", as of the record's time" if self.as_of else ""
        yield f"{self.how} join with the table {self.table} by {by}{as_of}{rekeyed}"


def check_table(other: object, is_what: str) -> None:
    """Raises for something that has no rows to look up, such as a DataFrame."""
    from holdfast.topology.aggregation import Table
    from holdfast.topology.reducing import NO_COLUMNS, ReducedTable

    if isinstance(other, Table):
        return
    if isinstance(other, ReducedTable):
        raise TopologyError(f"join({other.name!r}): a join adds a table's columns to a record or row. {NO_COLUMNS}")
    given = other.__name__ if isinstance(other, type) else type(other).__name__
    raise TopologyError(
        f"join(): {given} is {is_what}. Tables are the results of app.table(), app.global_table() and .store(). What "
        "has to_stream() can be joined as a stream, and a stream with a table: stream.join(table)."
    )


def check_lookup(table: Table, topology: Topology, where: str) -> None:
    """Raises for a table whose rows a join of this app can't look up."""
    if table.topology is not topology:
        raise TopologyError(f"{where}: the table belongs to another app. Join tables and streams of one app.")
    if table.spec.one_partition:
        raise TopologyError(
            f"{where}: {table.name!r} is a global table, which only streams can be joined with. Use app.table(), or "
            "join a stream: table.to_stream().join(...)."
        )
    if not layout_of(table.spec).one_place:
        raise TopologyError(
            f"{where}: table {table.name!r} keeps its rows by time (ttl= or windows), and a join looks them up by key. "
            "Join a table without these options."
        )


def _check_times(stream: Stream, table: Table, where: str) -> None:
    """Raises unless the table's history and the stream's records have the same kind of time."""
    for what, each in (
        ("the stream", stream),
        (f"table {table.name!r}", table.topology.subtopology(table.name).stream),
    ):
        if each.timestamp is None:
            raise TopologyError(
                f"{where}: a table with history= is joined as of the record's event time, and {what} has none. Name "
                "its column: app.stream(df, key=..., timestamp=...); or join a table without history=."
            )


def add_lookup(
    stream: Stream,
    table: Table,
    within: JoinWindow | None,
    how: str,
    name: str | None,
    on: On | None,
    prefix: str,
) -> Joined:
    """Adds a join of a stream with a table."""
    where = f"join({table.name!r})"
    chosen, name = checked(within, how, name, where)
    check_lookup(table, stream.topology, where)
    spec = table.spec
    if spec.kind == VERSIONED:
        _check_times(stream, table, where)
    key = key_of(stream.frame, stream.key if on is None else _names(on, where))
    mine, theirs = [field.type for field in key.fields], [field.type for field in spec.key.fields]
    if mine != theirs:
        raise TopologyError(
            f"{where}: the stream's key ({key}) and the table's ({spec.key}) have different types, so they are in "
            "different partitions. Cast the stream's columns, or name others: join(..., on='column')."
        )
    output = output_of(stream, table, prefix, where)
    operator = TableJoin(table.name, chosen, tuple(stream.columns), output, stream.key, as_of=spec.kind == VERSIONED)
    return add_join(stream, name, key, operator)


def checked(within: JoinWindow | None, how: str, name: str | None, where: str) -> tuple[How, str]:
    """The kind and the name of a join with a table. Raises if they, or a window, can't be."""
    if within is not None:
        raise TopologyError(
            f"{where}: within= is for a join of two streams. A record is joined with the row that the table has when "
            "it arrives. Leave within= out."
        )
    if how not in get_args(How):
        raise TopologyError(f"{where}: how={how!r} is not known. {did_you_mean(how, get_args(How))}Use inner or left.")
    if name is None:
        raise TopologyError(f"{where} needs a name: the log keeps its sinks' positions under it. Add name='...'.")
    return "left" if how == "left" else "inner", name


def output_of(stream: Stream, table: Table, prefix: str, where: str) -> Schema:
    """The columns of a joined row: those of the stream, and those of the table with the prefix."""
    added = [Field(prefix + field.name, field.type) for field in table.spec.columns.fields if not field.hidden_in]
    if twice := sorted({field.name for field in added} & set(stream.columns)):
        raise TopologyError(
            f"{where}: the stream and the table both have the column {twice[0]!r}. Give the table's columns a prefix: "
            "join(..., prefix='...')."
        )
    own = [Field(column, str(FieldType.parse(type_of(stream.frame, column)))) for column in stream.columns]
    return Schema((*own, *added))


def add_join(stream: Stream, name: str, key: Schema, operator: OfStream) -> Joined:
    """Adds the sub-topology of a join, which reads the stream by this key."""
    stream.topology.check_free(name, (), "Give the join another name: join(..., name='...').")
    stream.topology.add(name, stream, key, (), operator)
    return Joined(stream.topology, name, operator.output, stream.key)


def expressions_of(on: On) -> tuple[str | Column, ...]:
    """What `on=` names, one or several."""
    from pyspark.sql import Column

    return (on,) if isinstance(on, str | Column) else tuple(on)


def _names(on: On, where: str) -> tuple[str, ...]:
    names = []
    for each in expressions_of(on):
        if not isinstance(each, str):
            raise TopologyError(
                f"{where}: on={each!r} is an expression, and records are shuffled by the columns that they look up. "
                "Add it as a column first, stream.with_column('x', ...), and name that: on='x'."
            )
        names.append(each)
    return tuple(names)
