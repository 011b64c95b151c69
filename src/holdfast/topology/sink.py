"""What a sink is: told a version and its rows, after that version exists.

An implementation must be able to see the same version twice, since a crash can come between the write and the mark
of it; `pipeline.sinks` has the ones that come with Holdfast.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class Rows:
    """The rows that one task changed in one version, or a part of them: the `number`-th."""

    task: TaskId
    number: int
    table: pa.Table


@runtime_checkable
class Sink(Protocol):
    """Takes each version's rows in the order of versions."""

    @property
    def kind(self) -> str:
        """One word for the name of a sink that the user gave none."""

    def open(self, log: str) -> None:
        """Called once before the first version, with the id of the log the versions are from."""

    def write(self, version: Version, rows: Iterator[Rows]) -> None:
        """Writes one version whole. When this returns, the version counts as written."""
