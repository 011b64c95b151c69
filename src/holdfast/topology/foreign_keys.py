"""Joins of two tables by a foreign key: columns of the left table's rows are the key of the right table.

    orders     o1 → ann, 3 ─── o2 → ann, 5 ─────────────────────────── o1 → bob, 3 ──►
    customers  ──────────────────────────────── ann → Bern ──────────────────────────►
    left       o1 → 3, null    o2 → 5, null     o1 → 3, Bern           o1 → 3, null
                                                o2 → 5, Bern

The result has the left table's key. The row on the right is in another partition, so a version takes three steps, each
a sub-topology:

    orders ──► links ──── by customer ───► index ──── by order ───► join
                          customers ─────►

`links` says which foreign key a changed row has and which it had. `index` keeps the keys of the left table by foreign
key; it answers with the row of the right table, for each new link and, if that row changes, for all its links. `join`
puts the answers together with the rows of the left table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.spec import KEY_VALUE, RowValues, StoreSpec
from holdfast.topology.aggregation import Table
from holdfast.topology.derived import derive
from holdfast.topology.lookups import How, check_lookup
from holdfast.topology.outputs import AggregateRows, ForwardedRows, Output, forwarded_to
from holdfast.topology.steps import WithNulls
from holdfast.topology.table_joins import changed_keys, check_same_times, joined_fields, joined_store, needs_name
from holdfast.topology.tables import row_store
from holdfast.topology.topology import Operator, SubTopology

LINKED: Final = "$$linked"
"""Of a link: whether the row has this foreign key now, or had it before. Null for a changed row of the right table."""

FOREIGN: Final = "$$foreign"
"""Of an answer: the foreign key that it answers, as bytes. Null for a row that has none."""

THERE: Final = "$$there"
"""Of an answer: whether the right table has a row."""

UNLINKED: Final = "unlinked"
"""The output with the keys of changed rows that have no foreign key, as answers."""

LINK_VALUE: Final = Schema.of(linked="boolean")


@dataclass(frozen=True)
class Links(Operator):
    """The foreign keys that changed rows of the left table have and had."""

    left: str
    on: tuple[str, ...]
    links: Schema
    """Foreign key, key, and whether they are linked."""
    answers: Schema
    """Key, foreign key, the columns of the right table, and whether it has a row."""

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.left,)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        name, number = subtopology.name, subtopology.number
        return (
            ForwardedRows(name, number, self.links),
            ForwardedRows(forwarded_to(name, UNLINKED), number, self.answers),
        )

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        by = ", ".join(subtopology.key.names)
        yield f"foreign keys of the table {self.left}, re-keyed from {by} to {', '.join(self.on)}"


@dataclass(frozen=True)
class ForeignKeyIndex(Operator):
    """The keys of the left table by foreign key, and the right table's rows for those that change."""

    left: str
    right: str
    answers: Schema
    key: tuple[str, ...]
    """The key of the left table."""

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.right,)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        return (ForwardedRows(subtopology.name, subtopology.number, self.answers),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield (
            f"keys of the table {self.left} by foreign key, with the rows of {self.right}, re-keyed to "
            f"{', '.join(self.key)}"
        )


@dataclass(frozen=True)
class ForeignKeyJoin(Operator):
    """Keeps one row per key of the left table, with the columns of both."""

    left: str
    right: str
    how: How
    on: tuple[str, ...]
    foreign: Schema
    answers: Schema

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.left,)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        (store,) = subtopology.stores
        return (AggregateRows(subtopology.name, subtopology.number, store),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield f"{self.how} join of the tables {self.left} and {self.right} by the foreign key {', '.join(self.on)}"


def join_by_foreign_key(
    left: Table, right: Table, on: str | Iterable[str], how: str, name: str | None, prefix: str
) -> Table:
    """Adds a table with the rows of the left table and, by a foreign key, those of the right one."""
    columns = (on,) if isinstance(on, str) else tuple(on)
    where = f"join({right.name!r}, on={on!r})"
    if how not in ("inner", "left"):
        hint = did_you_mean(how, ("inner", "left"))
        raise TopologyError(
            f"{where}: how={how!r} is not possible. {hint}The result has the key of {left.name!r}, so every row comes "
            "from there. Use inner or left."
        )
    chosen: How = "left" if how == "left" else "inner"
    name = needs_name(name, where)
    for table in (left, right):
        check_lookup(table, left.topology, where)
    check_same_times(left, right, name)
    foreign = _foreign_key(left, right, columns, where)
    key, topology = left.spec.key, left.topology
    fields, added = joined_fields(left, right, prefix, name, where)
    links = Schema((*foreign.fields, *key.fields, Field(LINKED, "boolean")))
    renamed = [Field(f"${field.name}", field.type) for field in added]
    answers = Schema((*key.fields, Field(FOREIGN, "binary"), *renamed, Field(THERE, "boolean")))
    linking, indexing = f"{name}-links", f"{name}-index"
    index = _index(indexing, foreign, key, topology.engine)
    stream = changed_keys(left, key.names)
    spec = joined_store(row_store(stream, name, key, Schema((*fields, *added)), {}), left, right, how)
    for each, stores in ((linking, ()), (indexing, (index,)), (name, (spec,))):
        topology.check_free(each, stores, "Give the join another name: join(..., name='...').")
    topology.add(linking, stream, key, (), Links(left.name, columns, links, answers))
    of_right = changed_keys(right, foreign.names).transform(WithNulls(Schema(links.fields[len(columns) :])))
    both = derive(topology, linking, linking, links, foreign.names).merge(of_right)
    topology.add(indexing, both, foreign, (index,), ForeignKeyIndex(left.name, right.name, answers, key.names))
    answered = derive(topology, indexing, indexing, answers, key.names)
    unlinked = derive(topology, linking, forwarded_to(linking, UNLINKED), answers, key.names)
    operator = ForeignKeyJoin(left.name, right.name, chosen, columns, foreign, answers)
    topology.add(name, answered.merge(unlinked), key, (spec,), operator)
    return Table(topology, name)


def _foreign_key(left: Table, right: Table, columns: tuple[str, ...], where: str) -> Schema:
    """The columns by which the right table is looked up, under names that no column of a user has."""
    known = {field.name: field for field in (*left.spec.key.fields, *left.spec.columns.fields) if not field.hidden_in}
    for column in columns:
        if column not in known:
            raise TopologyError(
                f"{where}: the table {left.name!r} has no column {column!r}. {did_you_mean(column, known)}It has "
                f"{', '.join(known)}."
            )
    foreign = Schema(tuple(Field(f"${column}", known[column].type) for column in columns))
    theirs = right.spec.key
    if [field.type for field in foreign.fields] != [field.type for field in theirs.fields]:
        mine = ", ".join(f"{column} {known[column].type}" for column in columns)
        raise TopologyError(
            f"{where}: the columns ({mine}) and the key of {right.name!r} ({theirs}) have different types. Name as "
            "many columns as the key has, of its types, or cast them where the table is made."
        )
    return foreign


def _index(name: str, foreign: Schema, key: Schema, engine: str) -> StoreSpec:
    """The store of links: foreign key, then key, so that the links of one foreign key are a range."""
    by_foreign_key = Schema(foreign.fields + key.fields)
    made = store_spec(
        name, KEY_VALUE, key=by_foreign_key, value=RowValues(LINK_VALUE), codec=ROWS, default_engine=engine
    )
    return msgspec.structs.replace(made, stream_key=foreign)
