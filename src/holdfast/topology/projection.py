"""Stateless steps that only choose, rename and nest columns. In a test they need no Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.topology.plain_frames import PlainFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PlainStep(ABC):
    """A stateless step that can be applied to Arrow columns as well as to a DataFrame."""

    @abstractmethod
    def __call__(self, df: DataFrame) -> DataFrame: ...

    @abstractmethod
    def plain(self, frame: PlainFrame) -> PlainFrame:
        """The columns of records without Spark."""

    @abstractmethod
    def arrow(self, records: pa.Table) -> pa.Table:
        """The records after the step."""


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


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
