"""Global tables: tables in one partition, whose rows the tasks of all other sub-topologies can read.

    orders    ── o1, product 7 ──── o2, product 9 ──►      products: 7 → tea
    joined       o1, 7, tea

The rows come from a changelog stream, or from a static DataFrame, which is read once per start: the first version after
it has the changes since the rows that the log has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa

from holdfast.errors import TopologyError
from holdfast.topology.aggregation import Table
from holdfast.topology.outputs import AggregateRows, Output
from holdfast.topology.plain_frames import PlainFrame, StaticFrame
from holdfast.topology.tables import Changelog, rows_of
from holdfast.topology.topology import Branch, Operator, StaticRows, SubTopology, Topology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.stream import Stream


@dataclass(frozen=True, repr=False)
class GlobalTable(Table):
    """A table whose every row every task can read."""


@dataclass(frozen=True)
class StaticTable(Operator):
    """Keeps the rows of a static DataFrame."""

    columns: tuple[str, ...]
    """The columns that rows have beside their key."""

    only_with_rows = True
    """What was due may have been read meanwhile, and without rows a task would delete them all."""

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        (store,) = subtopology.stores
        return (AggregateRows(subtopology.name, subtopology.number, store),)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        yield "the rows of a static DataFrame"


def as_frame(df: object) -> DataFrame:
    """What a user gave as a global table's rows, as a frame. Arrow columns stand for a static DataFrame."""
    from pyspark.sql import DataFrame

    if isinstance(df, pa.Table):
        return cast("DataFrame", StaticFrame(df))
    if not isinstance(df, DataFrame | PlainFrame):
        raise TopologyError(
            f"app.global_table() takes a streaming or static DataFrame or a pyarrow.Table, not {type(df).__name__}."
        )
    return cast("DataFrame", df)


def add_global_table(
    stream: Stream, name: str, deleted: str | Column | None, options: Mapping[str, Any]
) -> GlobalTable:
    """Adds a global table of a changelog stream or, if the stream is one of `static_stream`, of static rows."""
    columns, spec = rows_of(stream, name, deleted, {**options, "everywhere": True})
    spec = msgspec.structs.replace(spec, one_partition=True)
    stream.topology.check_free(name, (spec,), "Give the table another name.")
    static = isinstance(stream.branches[0].origin, StaticRows)
    if static and not spec.durable:
        raise TopologyError(
            f"global_table({name!r}, durable=False) of a static DataFrame would be empty on an instance that starts "
            "over, until the app starts again: static rows are read once per start. Leave durable= out."
        )
    operator = StaticTable(columns) if static else Changelog(columns, deleted)
    stream.topology.add(name, stream, spec.key, (spec,), operator)
    return GlobalTable(stream.topology, name)


def static_stream(topology: Topology, frame: DataFrame, name: str, key: tuple[str, ...], given: list[str]) -> Stream:
    """The rows of a static DataFrame as what a sub-topology reads. `given` are options that it can't have."""
    from holdfast.topology.stream import Stream

    if given:
        raise TopologyError(
            f"global_table({name!r}, {given[0]}=...) is for a changelog stream, and this DataFrame is static: all its "
            f"rows count, one per key. Leave {given[0]}= out, and filter the DataFrame before."
        )
    return Stream(topology, (Branch(StaticRows(name, frame), frame),), key, None, ())


def check_sources(topology: Topology) -> None:
    """Raises for an app that reads nothing but static rows."""
    if not topology.used_sources:
        raise TopologyError(
            "The app reads static DataFrames alone, and only the batches of a stream make versions. Add one: "
            "app.stream(df, key=...), with an operator that reads it."
        )
