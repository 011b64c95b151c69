"""The common shape of the two streams in a join: key, event time, and one column per side with its columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.types import Schema
from holdfast.topology.join_windows import JoinWindow
from holdfast.topology.plain_frames import PlainFrame, arrow_schema
from holdfast.topology.steps import PlainStep, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class JoinSide:
    """One of the two streams in a join."""

    column: str
    """The column of the merged stream with its columns."""
    columns: Schema
    """The columns that its rows have, without the key."""
    window: JoinWindow
    """Seen from its own records."""
    buffer: str
    """The name of the store with its records."""
    unmatched: str | None
    """The name of the store with its records that wait for the end of their windows, if these come out unmatched."""


@dataclass(frozen=True, eq=False)
class JoinShape(PlainStep):
    """The step that gives the records of one side this shape."""

    keys: tuple[tuple[str, str], ...]
    """The key columns of the stream, each with its name in the join."""
    time: tuple[str, str]
    """The same for the event time."""
    sides: tuple[JoinSide, JoinSide]
    own: JoinSide

    def __call__(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        def column(side: JoinSide) -> Column:
            if side is self.own:
                return F.struct(*(F.col(quoted(name)) for name in side.columns.names))
            fields = ", ".join(f"{quoted(field.name)}: {field.type}" for field in side.columns.fields)
            return F.lit(None).cast(f"struct<{fields}>")

        keys = [F.col(quoted(column)).alias(name) for column, name in self.keys]
        moment = F.col(quoted(self.time[0])).cast("timestamp").alias(self.time[1])
        return df.select(*keys, moment, *(column(side).alias(side.column) for side in self.sides))

    def plain(self, frame: PlainFrame) -> PlainFrame:
        return PlainFrame.of_arrow(self.arrow(arrow_schema(frame).empty_table()).schema)

    def arrow(self, records: pa.Table) -> pa.Table:
        columns = {name: records[column] for column, name in self.keys}
        columns[self.time[1]] = records[self.time[0]].cast(pa.timestamp("us", "UTC"))
        for side in self.sides:
            kind = pa.struct(list(side.columns.arrow))
            if side is self.own:
                values = [whole(records[field.name]).cast(field.type) for field in kind]
                columns[side.column] = pa.StructArray.from_arrays(values, fields=list(kind))
            else:
                columns[side.column] = pa.nulls(records.num_rows, kind)
        return pa.table(columns)

    def reads(self, names: Collection[str]) -> set[str]:
        return {*(column for column, _ in self.keys), self.time[0], *self.own.columns.names}

    def time_before(self, name: str) -> str | None:
        return self.time[0] if name == self.time[1] else None
