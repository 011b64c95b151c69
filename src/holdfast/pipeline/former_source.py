"""A stand-in for a source that the code no longer has, so that its position stays in Spark's checkpoint.

Spark knows sources by their place in the query alone: without one of them, it refuses the checkpoint. The stand-in
stays at the recorded position and has no records. When the source comes back, it goes on from there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from holdfast.pipeline.source_order import EMPTY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_POSITION, _SCHEMA = "position", "nothing boolean"
_empty_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Until Python ends: Spark lists them at every look."""


def stand_in(session: SparkSession, position: str) -> DataFrame:
    """A stream without records that is always at a position, as Spark's offset log has it."""
    if position == EMPTY:  # only a source of files can have none
        folder = tempfile.TemporaryDirectory(prefix="holdfast-no-files-")
        _empty_folders.append(folder)
        return session.readStream.schema(_SCHEMA).parquet(f"file://{folder.name}")
    session.dataSource.register(FormerSource)
    return session.readStream.format(FormerSource.name()).option(_POSITION, position).load()


class FormerSource(DataSource):
    """The stand-in, as Spark's Python workers make it."""

    @classmethod
    def name(cls) -> str:
        return "holdfast_former_source"

    def schema(self) -> str:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's names
        return _Nothing(json.loads(self.options[_POSITION]))


class _Nothing(DataSourceStreamReader):
    def __init__(self, position: Any) -> None:
        self._position = position

    def initialOffset(self) -> Any:  # noqa: N802
        return self._position

    def latestOffset(self) -> Any:  # type: ignore[override]  # noqa: N802  as in Spark 4.1, which 4.2 takes too
        return self._position

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        """None, also between two positions: Spark writes the recorded one in its own way first."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[bool]]:
        return iter(())
