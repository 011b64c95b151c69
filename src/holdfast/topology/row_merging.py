"""Merges rows of aggregates with each other, as columns: many panes into a window, sessions into one session.

A table of rows has one column per field of the reducers, by name. Merges are associative, so rows of one group are
merged in pairs, then pairs of pairs: a group of a thousand rows takes ten rounds, each over whole columns.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.reducers import Reducer, chosen_records

Groups = npt.NDArray[np.int64]
"""The group of each row, in ascending order."""


def rows_of(reducers: Sequence[Reducer], partials: Sequence[pa.Array]) -> pa.Table:
    """Rows from the partial results of a batch alone; `partials` are those of all reducers, in order."""
    delivered = iter(partials)
    old, new = list[list[pa.Array]](), list[list[pa.Array]]()
    for reducer in reducers:
        new.append([next(delivered).cast(partial.field_type.arrow) for partial in reducer.partials])
        old.append([pa.nulls(len(new[-1][0]), field.field_type.arrow) for field in reducer.fields])
    return _table(reducers, old, new)


def merged(reducers: Sequence[Reducer], rows: pa.Table, others: pa.Table) -> pa.Table:
    """Each row with the other row at its place. Of `rows`, a row of nulls counts as none."""
    old, new = (
        [[whole(table[field.name]) for field in reducer.fields] for reducer in reducers] for table in (rows, others)
    )
    new = [reducer.as_partials(each) for reducer, each in zip(reducers, new, strict=True)]
    return _table(reducers, old, new)


def reduced(reducers: Sequence[Reducer], rows: pa.Table, groups: Groups) -> pa.Table:
    """One row per group, in the order of groups.

    >>> from holdfast.topology.aggregates import count
    >>> from holdfast.topology.reducers import bind
    >>> counts = pa.table({"n": [1, 2, 4, 8]})
    >>> reduced([bind("n", count(), None)], counts, np.array([0, 5, 5, 5]))["n"].to_pylist()
    [1, 14]
    """
    while True:
        first = starts_of(groups)
        if first.all():
            return rows
        second = _places(first) % 2 == 1
        right = np.flatnonzero(second)
        left = right - 1
        alone = ~second
        alone[left] = False
        pairs = merged(reducers, rows.take(pa.array(left)), rows.take(pa.array(right)))
        others = np.flatnonzero(alone)
        order = np.argsort(np.concatenate([left, others]), kind="stable")
        rows = pa.concat_tables([pairs, rows.take(pa.array(others))]).take(pa.array(order))
        groups = groups[~second]


def running(reducers: Sequence[Reducer], rows: pa.Table, groups: Groups) -> pa.Table:
    """Each row merged with all rows before it in its group.

    >>> from holdfast.topology.aggregates import count
    >>> from holdfast.topology.reducers import bind
    >>> counts = pa.table({"n": [1, 2, 4, 8]})
    >>> running([bind("n", count(), None)], counts, np.array([0, 5, 5, 5]))["n"].to_pylist()
    [1, 2, 6, 14]
    """
    places, step = _places(starts_of(groups)), 1
    while (later := np.flatnonzero(places >= step)).size:
        # Each row has the `step` rows up to it so far. Rows before these are added.
        longer = merged(reducers, rows.take(pa.array(later - step)), rows.take(pa.array(later)))
        earlier = np.flatnonzero(places < step)
        order = np.argsort(np.concatenate([earlier, later]), kind="stable")
        rows = pa.concat_tables([rows.take(pa.array(earlier)), longer]).take(pa.array(order))
        step *= 2
    return rows


def starts_of(groups: Groups) -> npt.NDArray[np.bool_]:
    """Where a new group starts."""
    first = np.ones(len(groups), dtype=bool)
    first[1:] = groups[1:] != groups[:-1]
    return first


def _places(first: npt.NDArray[np.bool_]) -> Groups:
    """The place of each row within its group, from 0 on."""
    begins = np.flatnonzero(first)
    places: Groups = np.arange(len(first)) - begins[np.cumsum(first) - 1]
    return places


def _table(reducers: Sequence[Reducer], old: Sequence[list[pa.Array]], new: Sequence[list[pa.Array]]) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    chosen = chosen_records(reducers, old, new)
    for reducer, before, partials, takes_new in zip(reducers, old, new, chosen, strict=True):
        merged = reducer.merge(before, partials, takes_new)
        columns.update({field.name: column for field, column in zip(reducer.fields, merged, strict=True)})
    return pa.table(columns)
