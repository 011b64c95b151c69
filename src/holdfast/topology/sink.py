"""The protocol of sinks: a sink gets each version's rows after the version is committed.

A sink may get the same version twice, since a crash can come between the write and the mark of it. `pipeline.sinks`
has the built-in sinks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class Rows:
    """The rows that one task changed in one version, or the `number`-th part of them."""

    task: TaskId
    number: int
    table: pa.Table


@runtime_checkable
class Sink(Protocol):
    """Takes each version's rows in the order of versions."""

    @property
    def kind(self) -> str:
        """One word for the default name of the sink."""

    def open(self, log: str) -> None:
        """Called once before the first version, with the id of the versions' log."""

    def write(self, version: Version, rows: Iterator[Rows]) -> None:
        """Writes one whole version. When this returns, the version counts as written."""
