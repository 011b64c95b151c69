"""Joins of two tables by their keys. The result is a table too, and follows every change of either side.

players   ann → Bern ───────────────────────── ann deleted ──►
scores    ─────────────── ann → 3 ── bob → 1 ────────────────►
inner                     ann → Bern, 3        ann deleted
left      ann → Bern, null   ann → Bern, 3     ann deleted
outer     ann → Bern, null   ann → Bern, 3  bob → null, 1   ann → null, 3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.access import Now
from holdfast.stores.formats.types import Field, Schema
from holdfast.topology.aggregation import Table, check_unused
from holdfast.topology.derived import ROW, TASK, TIME
from holdfast.topology.lookups import LooksUp, check_lookup
from holdfast.topology.outputs import DELETED, AggregateRows, Output
from holdfast.topology.steps import Projection
from holdfast.topology.tables import row_store
from holdfast.topology.topology import SubTopology

if TYPE_CHECKING:
    from holdfast.topology.stream import Stream

HowTables = Literal["inner", "left", "outer"]


@dataclass(frozen=True)
class TableTableJoin(LooksUp):
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

    def next_due(self, before: Now, event: int | None) -> int | None:
        return None


def join_tables(
    left: Table, right: Table, how: str, name: str | None, prefix: str, options: Mapping[str, Any]
) -> Table:
    """Adds a table with the rows of two tables that have the same key."""
    where = f"join({right.name!r})"
    if how not in get_args(HowTables):
        raise TopologyError(
            f"{where}: how={how!r} is not known. {did_you_mean(how, get_args(HowTables))}Use inner, left or outer."
        )
    if name is None:
        raise TopologyError(f"{where} needs a name: the result is kept in a store of that name. Add name='...'.")
    check_lookup(left, left.topology, where)
    check_lookup(right, left.topology, where)
    mine, theirs = left.spec.key, right.spec.key
    if [field.type for field in mine.fields] != [field.type for field in theirs.fields]:
        raise TopologyError(
            f"{where}: the tables have the keys ({mine}) and ({theirs}), and a join needs keys of the same types."
        )
    fields = [field for field in left.spec.columns.fields if not field.hidden_in]
    added = [Field(prefix + field.name, field.type) for field in right.spec.columns.fields if not field.hidden_in]
    own = {*mine.names, *(field.name for field in fields)}
    if twice := sorted(own & {field.name for field in added}):
        raise TopologyError(
            f"{where}: both tables have the column {twice[0]!r}. Give the other table's columns a prefix: "
            "join(..., prefix='...')."
        )
    check_unused(DELETED, [*own, *(field.name for field in added)], name, "sinks see that a key was deleted")
    stream = _keys(left, mine).merge(_keys(right, mine))
    spec = row_store(stream, name, mine, Schema((*fields, *added)), options)
    stream.topology.check_free(name, (spec,), "Give the join another name: join(..., name='...').")
    chosen: HowTables = "inner" if how == "inner" else "left" if how == "left" else "outer"
    stream.topology.add(name, stream, mine, (spec,), TableTableJoin(left.name, right.name, chosen))
    return Table(stream.topology, name)


def _keys(table: Table, names: Schema) -> Stream:
    """The keys whose rows change, under the names of the left table's key columns."""
    keys = zip(table.spec.key.names, names.names, strict=True)
    return table.to_stream().transform(Projection((*keys, (TIME, TIME), (TASK, TASK), (ROW, ROW)))).key_by(*names.names)
