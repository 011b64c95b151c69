"""Stateless steps of a stream. Those that only choose, rename and nest columns need no Spark in a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.stores.formats.types import Schema
from holdfast.topology.plain_frames import PlainFrame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.processor import OnError


class PlainStep(ABC):
    """A stateless step that can be applied to Arrow columns as well as to a DataFrame."""

    keeps_records: ClassVar[bool] = True
    """Whether it gives one record per record."""

    @abstractmethod
    def __call__(self, df: DataFrame) -> DataFrame: ...

    @abstractmethod
    def plain(self, frame: PlainFrame) -> PlainFrame:
        """The columns of records without Spark."""

    @abstractmethod
    def arrow(self, records: pa.Table) -> pa.Table:
        """The records after the step."""

    @abstractmethod
    def reads(self, names: Collection[str]) -> set[str]:
        """The columns that it needs of records to give them these."""

    def time_before(self, name: str) -> str | None:
        """The column with the event times that have this name after the step; None if it computes them anew."""
        read = self.reads({name})
        return name if name in read else next(iter(read), None)


@dataclass(frozen=True, eq=False)
class Projection(PlainStep):
    """Some columns under their own or other names: (column, name)."""

    columns: tuple[tuple[str, str], ...]

    def __call__(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.select(*(F.col(quoted(column)).alias(name) for column, name in self.columns))

    def plain(self, frame: PlainFrame) -> PlainFrame:
        from pyspark.sql.types import StructField, StructType

        fields = [(frame.schema[column], name) for column, name in self.columns]
        return PlainFrame(StructType([StructField(name, field.dataType) for field, name in fields]))

    def arrow(self, records: pa.Table) -> pa.Table:
        """The chosen columns of records.

        >>> Projection((("b", "c"),)).arrow(pa.table({"a": [1], "b": [2]})).to_pylist()
        [{'c': 2}]
        """
        return pa.table({name: records[column] for column, name in self.columns})

    def reads(self, names: Collection[str]) -> set[str]:
        return {column for column, name in self.columns if name in names}


@dataclass(frozen=True, eq=False)
class WithText(PlainStep):
    """Adds a column with the same text in each record."""

    name: str
    text: str

    def __call__(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.withColumn(self.name, F.lit(self.text))

    def plain(self, frame: PlainFrame) -> PlainFrame:
        from pyspark.sql.types import StringType, StructField, StructType

        return PlainFrame(StructType([*frame.schema.fields, StructField(self.name, StringType())]))

    def arrow(self, records: pa.Table) -> pa.Table:
        return records.append_column(self.name, pa.repeat(pa.scalar(self.text), records.num_rows))

    def reads(self, names: Collection[str]) -> set[str]:
        return {*names} - {self.name}


@dataclass(frozen=True, eq=False)
class WithNulls(PlainStep):
    """Adds columns of these types that are null in each record."""

    columns: Schema

    def __call__(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.select("*", *(F.lit(None).cast(field.type).alias(field.name) for field in self.columns.fields))

    def plain(self, frame: PlainFrame) -> PlainFrame:
        from pyspark.sql.types import StructType

        return PlainFrame(StructType([*frame.schema.fields, *PlainFrame.of_arrow(self.columns.arrow).schema.fields]))

    def arrow(self, records: pa.Table) -> pa.Table:
        for field in self.columns.arrow:
            records = records.append_column(field, pa.nulls(records.num_rows, field.type))
        return records

    def reads(self, names: Collection[str]) -> set[str]:
        return {*names} - {*self.columns.names}


@dataclass(frozen=True, eq=False)
class Filter:
    """A step that keeps some records, unchanged."""

    condition: str | Column

    def __call__(self, df: DataFrame) -> DataFrame:
        return df.where(self.condition)


@dataclass(frozen=True, eq=False)
class FlatMap:
    """A step that makes several records of one: one per item of an array, in a column of this name."""

    values: str | Column
    name: str

    def __call__(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        items = F.explode(F.expr(self.values) if isinstance(self.values, str) else self.values)
        others = [quoted(column) for column in df.columns if column != self.name]
        return df.select(*others, items.alias(self.name))


@dataclass(frozen=True, eq=False)
class Computed:
    """A step with expressions or functions of the user's, which can fail for a record."""

    apply: Callable[[DataFrame], DataFrame]
    label: str
    """The step as the user wrote it, for the reason of a dead letter."""
    on_error: OnError
    keeps: bool = False
    """Whether records stay as they are: what is computed of them is for the operator that follows."""

    def __call__(self, df: DataFrame) -> DataFrame:
        return df if self.keeps else self.apply(df)


@dataclass(frozen=True, eq=False)
class HasValue(Filter, PlainStep):
    """Keeps the records whose column is not null."""

    keeps_records = False
    column: str

    @classmethod
    def of(cls, column: str) -> HasValue:
        return cls(f"{quoted(column)} IS NOT NULL", column)

    def plain(self, frame: PlainFrame) -> PlainFrame:
        return frame

    def arrow(self, records: pa.Table) -> pa.Table:
        return records.filter(records[self.column].is_valid())

    def reads(self, names: Collection[str]) -> set[str]:
        return {*names, self.column}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
