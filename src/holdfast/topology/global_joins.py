"""Joins of a stream with a global table: each record looks up a row by any columns or expressions.

    orders    ── o1, tea-7 ──── o2, null ──►      products: 7 → tea      on="CAST(right(code, 1) AS int)"
    inner        o1, tea-7, tea
    left         o1, tea-7, tea  o2, null, null

The stream is not shuffled: its records stay in the partitions that they come in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import FieldType, Schema
from holdfast.topology.frames import expression_type, key_of, type_of
from holdfast.topology.global_tables import GlobalTable
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.joined import Joined
from holdfast.topology.lookups import How, OfStream, add_join, checked, expressions_of, output_of
from holdfast.topology.outputs import ForwardedRows, Output
from holdfast.topology.topology import SubTopology

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.topology.lookups import On
    from holdfast.topology.stream import Stream


@dataclass(frozen=True)
class GlobalJoin(OfStream):
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


def add_global_join(
    stream: Stream,
    table: GlobalTable,
    within: JoinWindow | None,
    how: str,
    name: str | None,
    on: On | None,
    prefix: str,
) -> Joined:
    """Adds a join of a stream with a global table."""
    where = f"join({table.name!r})"
    kind, name = checked(within, how, name, where)
    if table.topology is not stream.topology:
        raise TopologyError(f"{where}: the table belongs to another app. Join tables and streams of one app.")
    chosen, output = _chosen(stream, table, on, where), output_of(stream, table, prefix, where)
    operator = GlobalJoin(table.name, kind, chosen, tuple(stream.columns), output)
    return add_join(stream, name, key_of(stream.frame, stream.key), operator)


def _chosen(stream: Stream, table: GlobalTable, on: On | None, where: str) -> tuple[str | Column, ...]:
    """What is looked up, one expression per column of the table's key."""
    key = table.spec.key
    chosen = stream.key if on is None else expressions_of(on)
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
