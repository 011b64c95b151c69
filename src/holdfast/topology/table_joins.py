"""Joins of two tables by their keys. The result is a table too, and follows every change of either side.

players   ann → Bern ───────────────────────── ann deleted ──►
scores    ─────────────── ann → 3 ── bob → 1 ────────────────►
inner                     ann → Bern, 3        ann deleted
left      ann → Bern, null   ann → Bern, 3     ann deleted
outer     ann → Bern, null   ann → Bern, 3  bob → null, 1   ann → null, 3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import StoreSpec
from holdfast.topology.aggregation import Table, check_unused
from holdfast.topology.derived import ROW, TASK, TIME
from holdfast.topology.lookups import check_lookup
from holdfast.topology.outputs import DELETED, AggregateRows, Output
from holdfast.topology.steps import Projection
from holdfast.topology.tables import row_store
from holdfast.topology.topology import Operator, SubTopology

if TYPE_CHECKING:
    from holdfast.topology.stream import Stream

HowTables = Literal["inner", "left", "outer"]


@dataclass(frozen=True)
class TableTableJoin(Operator):
    """Keeps one row per key of two tables, with the columns of both."""

    left: str
    right: str
    how: HowTables

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.left, self.right)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        (store,) = subtopology.stores
        return (AggregateRows(subtopology.name, subtopology.number, store),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield f"{self.how} join of the tables {self.left} and {self.right}"


def join_tables(
    left: Table, right: Table, how: str, name: str | None, prefix: str, options: Mapping[str, Any]
) -> Table:
    """Adds a table with the rows of two tables that have the same key."""
    where = f"join({right.name!r})"
    if how not in get_args(HowTables):
        raise TopologyError(
            f"{where}: how={how!r} is not known. {did_you_mean(how, get_args(HowTables))}Use inner, left or outer."
        )
    name = needs_name(name, where)
    check_lookup(left, left.topology, where)
    check_lookup(right, left.topology, where)
    check_same_times(left, right, name)
    mine, theirs = left.spec.key, right.spec.key
    if [field.type for field in mine.fields] != [field.type for field in theirs.fields]:
        raise TopologyError(
            f"{where}: the tables have the keys ({mine}) and ({theirs}), and a join needs keys of the same types. If "
            f"columns of {left.name!r} are the key of {right.name!r}, name them: join(..., on='column')."
        )
    fields, added = joined_fields(left, right, prefix, name, where)
    stream = changed_keys(left, mine.names).merge(changed_keys(right, mine.names))
    chosen: HowTables = "inner" if how == "inner" else "left" if how == "left" else "outer"
    operator = TableTableJoin(left.name, right.name, chosen)
    spec = joined_store(row_store(stream, name, mine, Schema((*fields, *added)), options), left, right, how)
    stream.topology.check_free(name, (spec,), "Give the join another name: join(..., name='...').")
    stream.topology.add(name, stream, mine, (spec,), operator)
    return Table(stream.topology, name)


def needs_name(name: str | None, where: str) -> str:
    if name is None:
        raise TopologyError(f"{where} needs a name: the result is kept in a store of that name. Add name='...'.")
    return name


def check_same_times(left: Table, right: Table, name: str) -> None:
    """Raises if one table has event times and the other has none: the result could have neither."""
    timed, untimed = left.name, right.name
    if _has_times(right):
        timed, untimed = untimed, timed
    if _has_times(left) != _has_times(right):
        raise TopologyError(
            f"join(name={name!r}): the table {untimed!r} has no event times, and the table {timed!r} has. A join needs "
            f"them in both or in none. Name the column of {untimed!r}: app.table(..., timestamp=...), "
            "app.stream(..., timestamp=...)."
        )


def _has_times(table: Table) -> bool:
    return table.topology.subtopology(table.name).stream.timestamp is not None


def joined_fields(
    left: Table, right: Table, prefix: str, name: str, where: str
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The columns of a joined row: those of the left table, and those of the right one with the prefix."""
    fields = tuple(field for field in left.spec.columns.fields if not field.hidden_in)
    added = tuple(Field(prefix + field.name, field.type) for field in right.spec.columns.fields if not field.hidden_in)
    own = {*left.spec.key.names, *(field.name for field in fields)}
    if twice := sorted(own & {field.name for field in added}):
        raise TopologyError(
            f"{where}: both tables have the column {twice[0]!r}. Give the other table's columns a prefix: "
            "join(..., prefix='...')."
        )
    check_unused(DELETED, [*own, *(field.name for field in added)], name, "sinks see that a key was deleted")
    return fields, added


def joined_store(spec: StoreSpec, left: Table, right: Table, how: str) -> StoreSpec:
    """The store of joined rows. What is joined can't change in place: rows that don't change would stay as they are."""
    return msgspec.structs.replace(spec, fixed=(*spec.fixed, ("join", f"{how} of {left.name} and {right.name}")))


def changed_keys(table: Table, names: Sequence[str]) -> Stream:
    """The keys whose rows change, with columns of these names."""
    keys = zip(table.spec.key.names, names, strict=True)
    return table.to_stream().transform(Projection((*keys, (TIME, TIME), (TASK, TASK), (ROW, ROW)))).key_by(*names)
