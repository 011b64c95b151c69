"""Reads Spark's checkpoint: the query's id and a batch's entry in the offset log, unchanged.

Spark writes the entry before it calls `foreachBatch`. The files are read through Hadoop's file systems, so a checkpoint
may be in any storage that Spark supports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import SparkBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointUnreadable(HoldfastError):
    category = ErrorCategory.DATA


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint folder of the app's query."""

    session: SparkSession
    location: str

    def query_id(self) -> str | None:
        """The query's id; None where there is no checkpoint yet."""
        text = self._read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError) as error:
            raise CheckpointUnreadable(
                f"{self.location}/metadata holds {text[:200]!r}, which is not the id of a query. "
                "Restore the checkpoint from a copy, or remove all of it."
            ) from error

    def has_done_batches(self) -> bool:
        """Whether Spark has marked any batch as done."""
        if "://" not in self.location:
            folder = Path(self.location, "commits")
            return folder.exists() and any(path.name.isdigit() for path in folder.iterdir())
        path, system = self._hadoop("commits")
        return bool(system.exists(path)) and any(s.getPath().getName().isdigit() for s in system.listStatus(path))

    def batch(self, number: int) -> SparkBatch:
        """The batch that Spark is about to run."""
        query, offsets = self.query_id(), self._read(f"offsets/{number}")
        if query is None or offsets is None:
            raise CheckpointUnreadable(
                f"Spark runs batch {number} and {self.location} has no entry of it: was the folder removed while the "
                "app ran? Start the app again."
            )
        return SparkBatch(query=query, batch=number, offsets=offsets)

    def _read(self, name: str) -> str | None:
        if "://" not in self.location:
            path = Path(self.location, name)
            return path.read_text() if path.exists() else None
        path, system = self._hadoop(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            jvm: Any = self.session._jvm
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _hadoop(self, name: str) -> tuple[Any, Any]:
        """A path below the checkpoint and its file system, as objects of the JVM."""
        jvm: Any = self.session._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")
        return path, path.getFileSystem(self.session._jsparkSession.sessionState().newHadoopConf())
