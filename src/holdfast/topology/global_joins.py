"""Joins of a stream with a global table: each record looks up a row by any columns or expressions.

    orders    ── o1, tea-7 ──── o2, null ──►      products: 7 → tea      on="CAST(right(code, 1) AS int)"
    inner        o1, tea-7, tea
    left         o1, tea-7, tea  o2, null, null

The stream is not shuffled: its records stay in the partitions that they come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Field, FieldType, Schema
from holdfast.topology.frames import expression_type, key_of, type_of
from holdfast.topology.global_tables import GlobalTable
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.joined import Joined
from holdfast.topology.lookups import How, LooksUp
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.topology import SubTopology

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.topology.stream import Stream


@dataclass(frozen=True)
class GlobalJoin(LooksUp):
    """A join of records with the rows of a global table."""

    table: str
    how: How
    on: tuple[str | Column, ...]
    """What each column of the table's key is compared with: a column of the stream, or an expression."""
    columns: tuple[str, ...]
    """The columns of the stream."""
    output: Schema
    """The columns of the stream, then those of the table."""

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        return (ForwardedRows(subtopology.name, subtopology.number, self.output),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield f"{self.how} join with the global table {self.table} on {', '.join(map(_text, self.on))}, not shuffled"

    def next_due(self, before: Now, event: int | None) -> int | None:
        return None


def add_global_join(
    stream: Stream,
    table: GlobalTable,
    within: JoinWindow | None,
    how: str,
    name: str | None,
    on: str | Column | Iterable[str | Column] | None,
    prefix: str,
) -> Joined:
    """Adds a join of a stream with a global table."""
    where = f"join({table.name!r})"
    if within is not None:
        raise TopologyError(
            f"{where}: within= is for a join of two streams. A record is joined with the row that the table has when "
            "it arrives. Leave within= out."
        )
    if how not in get_args(How):
        raise TopologyError(f"{where}: how={how!r} is not known. {did_you_mean(how, get_args(How))}Use inner or left.")
    if name is None:
        raise TopologyError(f"{where} needs a name: the log keeps its sinks' positions under it. Add name='...'.")
    if table.topology is not stream.topology:
        raise TopologyError(f"{where}: the table belongs to another app. Join tables and streams of one app.")
    chosen = _chosen(stream, table, on, where)
    columns = tuple(stream.columns)
    added = [Field(prefix + each.name, each.type) for each in table.spec.columns.fields if not each.hidden_in]
    if twice := sorted({field.name for field in added} & set(columns)):
        raise TopologyError(
            f"{where}: the stream and the table both have the column {twice[0]!r}. Give the table's columns a prefix: "
            "join(..., prefix='...')."
        )
    own = [Field(column, str(FieldType.parse(type_of(stream.frame, column)))) for column in columns]
    output = Schema((*own, *added))
    stream.topology.check_free(name, (), "Give the join another name: join(..., name='...').")
    operator = GlobalJoin(table.name, "left" if how == "left" else "inner", chosen, columns, output)
    stream.topology.add(name, stream, key_of(stream.frame, stream.key), (), operator)
    return Joined(stream.topology, name, output, stream.key)


def _chosen(
    stream: Stream, table: GlobalTable, on: str | Column | Iterable[str | Column] | None, where: str
) -> tuple[str | Column, ...]:
    """What is looked up, one expression per column of the table's key."""
    key = table.spec.key
    if on is None:
        chosen: tuple[str | Column, ...] = stream.key
    else:
        chosen = tuple(on) if isinstance(on, tuple | list) else (on,)  # type: ignore[assignment]
    if len(chosen) != len(key.fields):
        raise TopologyError(
            f"{where}: on= has {len(chosen)} column(s), and the table's key ({key}) has {len(key.fields)}. Name one "
            "column or expression of the stream for each: join(..., on=('a', 'b'))."
        )
    for each, field in zip(chosen, key.fields, strict=True):
        if isinstance(each, str) and each in stream.frame.columns:
            found = type_of(stream.frame, each)
        else:
            found = expression_type(stream.frame, each, f"{where}, on={each!r}")
        if str(FieldType.parse(found)) != field.type:
            raise TopologyError(
                f"{where}: on={_text(each)!r} is of type {found}, and the table's key is ({key}). Cast it: "
                f"on='CAST({_text(each)} AS {field.type})'."
            )
    return chosen


def _text(on: str | Column) -> str:
    """
    >>> _text("upper(code)")
    'upper(code)'
    """
    return str(on).removeprefix("Column<'").removesuffix("'>")
