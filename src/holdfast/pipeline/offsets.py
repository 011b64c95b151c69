"""Spark's checkpoint: the query's id, a batch's entry in the offset log, unchanged, and the files of file sources.

Spark writes the entry before it calls `foreachBatch`. The location is resolved as Spark does it: `file:/`, `dbfs:/` or
`hdfs://`, or a path on the default file system. Where that is the local one, files are read directly, without the JVM.
Everything is written through Hadoop's file systems, which also write the checksums that Spark checks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import SparkBatch
from holdfast.log.documents import checksum
from holdfast.pipeline.protocol import REPAIR
from holdfast.pipeline.source_order import EMPTY, with_room

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointUnreadable(HoldfastError):
    category = ErrorCategory.DATA


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint folder of the app's query."""

    session: SparkSession
    location: str
    sources: tuple[str, ...] = ()
    """The names of the query's sources in the order of its entries."""

    def query_id(self) -> str | None:
        """The query's id; None where there is no checkpoint yet."""
        text = self.read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError) as error:
            raise CheckpointUnreadable(
                f"{self.location}/metadata holds {text[:200]!r}, which is not the id of a query. "
                f"Restore the checkpoint from a copy, or repair it with {REPAIR}."
            ) from error

    def damaged(self) -> list[str]:
        """The names of the entries that Spark reads when it starts, and can't: the newest ones are torn, say."""
        newest = [f"offsets/{n}" for n in self.numbers("offsets")[-2:]]
        newest += [f"commits/{n}" for n in self.numbers("commits")[-1:]]
        return [name for name in newest if not self._is_readable(name)]

    def _is_readable(self, name: str) -> bool:
        try:
            return is_entry(self._read_as_spark_does(name))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "org.apache.hadoop.fs.ChecksumException":
                raise
            return False

    def last_done(self) -> int | None:
        """The last batch that Spark has marked as done."""
        return max(self.numbers("commits"), default=None)

    def batch(self, number: int) -> SparkBatch:
        """The batch that Spark is about to run."""
        query, offsets = self.query_id(), self.read(f"offsets/{number}")
        if query is None or offsets is None:
            raise CheckpointUnreadable(
                f"Spark runs batch {number} and {self.location} has no entry of it: was the folder removed while the "
                "app ran? Start the app again."
            )
        files = self.files_of(offsets)
        return SparkBatch(query=query, batch=number, offsets=offsets, files=files, sources=self.sources)

    def make_room(self) -> None:
        """Adds an empty position per source that the newest entries lack. Only while no query runs on the checkpoint.

        Spark reads the last two entries when it starts.
        """
        for number in self.numbers("offsets")[-2:]:
            entry = self.read(f"offsets/{number}")
            if entry is not None and (changed := with_room(entry, len(self.sources))) is not None:
                self.write(f"offsets/{number}", changed)

    def forget_planned(self, recorded: int) -> None:
        """Removes the entries after the batch that the log has, unless Spark has done them: it plans them again.

        Only while no query runs on the checkpoint.

        The batch that a driver was about to compute may have records of a source that the code no longer has: its next
        batch has them when it comes back.
        """
        last = max(recorded, -1 if (done := self.last_done()) is None else done)
        for number in self.numbers("offsets"):
            if number > last:
                self.delete(f"offsets/{number}")

    def files_of(self, entry: str) -> tuple[str, ...]:
        """Per source of an entry, a checksum of the files behind its offset; "" for a source that isn't of files."""
        return tuple(self._files(n, line) for n, line in enumerate(entry.splitlines()[2:]))

    def _files(self, source: int, line: str) -> str:
        """Every tenth batch Spark writes the files of all batches so far, into a file with a name of its own."""
        if (number := file_offset(line)) is None:
            return ""
        name = f"sources/{source}/{number}"
        text = self.read(name) or self.read(f"{name}.compact") or ""
        own = [line for line in text.splitlines() if line.endswith(f'"batchId":{number}}}')]
        return checksum("\n".join(sorted(json.loads(line)["path"] for line in own)).encode()) if own else ""

    # Files

    def read(self, name: str) -> str | None:
        """The text of a file; None if there is none."""
        if self._folder is not None:
            path = self._folder / name
            return path.read_text(errors="replace") if path.exists() else None
        return self._read_as_spark_does(name) if self._system.exists(self._path(name)) else None

    def _read_as_spark_does(self, name: str) -> str:
        """The text of a file that is there. On a local file system its checksum is compared too."""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def numbers(self, folder: str) -> list[int]:
        """The numbers of the entries in a folder, in order."""
        if self._folder is not None:
            path = self._folder / folder
            names = [each.name for each in path.iterdir()] if path.exists() else []
        else:
            place = self._path(folder)
            found = self._system.listStatus(place) if self._system.exists(place) else []
            names = [each.getPath().getName() for each in found]
        return sorted(int(name) for name in names if name.isdigit())

    def write(self, name: str, text: str) -> None:
        """Creates or replaces a file."""
        stream = self._system.create(self._path(name), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        self._system.delete(self._path(name), False)

    @property
    def is_local(self) -> bool:
        """Whether it is on the local file system."""
        return self._folder is not None

    @cached_property
    def _folder(self) -> Path | None:
        """The folder, if it is on the local file system."""
        where = self._system.makeQualified(self._path("")).toUri()
        return Path(str(where.getPath())) if str(where.getScheme()) == "file" else None

    @cached_property
    def _system(self) -> Any:
        return self._path("").getFileSystem(self.session._jsparkSession.sessionState().newHadoopConf())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")

    @property
    def _jvm(self) -> Any:
        return self.session._jvm


def is_entry(text: str) -> bool:
    """Whether a text can be an entry of Spark's offset log or commit log: a format, then JSON or empty positions.

    >>> is_entry('v1\\n{"batchTimestampMs":7}\\n{"logOffset":3}\\n-'), is_entry('v1\\n{"batchTime'), is_entry("")
    (True, False, False)
    """
    version, *lines = text.splitlines() or [""]
    try:
        known = [line if line == EMPTY else json.loads(line) for line in lines]
    except ValueError:
        return False
    return version.startswith("v") and bool(known) and isinstance(known[0], dict) and "\ufffd" not in text


def file_offset(line: str) -> int | None:
    """The number that a file source has as its offset; None for another source.

    >>> file_offset('{"logOffset":12}'), file_offset('{"topic":{"0":5}}'), file_offset("-")
    (12, None, None)
    """
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return int(found["logOffset"]) if isinstance(found, dict) and found.keys() == {"logOffset"} else None
