"""Several sources in one streaming query: a union of rows with a struct per source.

The struct of a row's source has its columns, and those of the others are null: this is the row's tag. An app with one
source has no structs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TaggedUnion:
    """The frames of all sources as one, and each source's rows back from a batch of it."""

    def __init__(self, sources: Sequence[tuple[str, DataFrame]]) -> None:
        self._columns = {name: f"s{n}" for n, (name, _) in enumerate(sources)}
        self._schemas = {name: frame.schema for name, frame in sources}
        if len(sources) == 1:
            self.frame = sources[0][1]
        else:
            self.frame = reduce(lambda one, other: one.unionAll(other), (self._tagged(*each) for each in sources))

    def _tagged(self, source: str, frame: DataFrame) -> DataFrame:
        structs = [
            (F.struct("*") if name == source else F.lit(None).cast(self._schemas[name])).alias(column)
            for name, column in self._columns.items()
        ]
        return frame.select(*structs)

    @property
    def is_tagged(self) -> bool:
        return len(self._columns) > 1

    def tag(self, source: str) -> str | None:
        """The struct of a source's columns; None if there is only one source."""
        return self._columns[source] if self.is_tagged else None

    def of_source(self, batch: DataFrame, source: str) -> DataFrame:
        """The rows of one source."""
        if not self.is_tagged:
            return batch
        return batch.where(F.col(self._columns[source]).isNotNull()).select(f"{self._columns[source]}.*")
