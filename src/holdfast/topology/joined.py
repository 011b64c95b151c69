"""What a join of any kind gives: rows that sinks take, and that are a stream again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Schema
from holdfast.topology.derived import derive, names_of
from holdfast.topology.other_names import Named
from holdfast.topology.sink import Sink
from holdfast.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.topology.stream import Stream


@dataclass(frozen=True)
class Joined(Named):
    """The rows of a join."""

    CALLED: ClassVar[str] = "A join"
    topology: Topology
    name: str
    columns: Schema
    key: tuple[str, ...]
    late_output: str | None = None
    """The output with the late records; None for a join in which no record can be late."""
    output: str | None = None
    """The output with these rows; None is the main one."""

    def __repr__(self) -> str:
        return f"Joined({self.name!r}, key={[*self.key]!r}, columns={str(self.columns)!r})"

    def sink(self, sink: Sink, *, name: str | None = None) -> Joined:
        """Sends the rows of every version to `sink`, after the version is committed. Returns this join."""
        self.topology.add_sink(self.output or self.name, sink, name)
        return self

    @property
    def late(self) -> Joined:
        """The records that came too late to be joined, as rows in which the columns of the other side are null."""
        if self.late_output is None:
            raise TopologyError(
                f"late: no record of the join {self.name!r} is late: a record is joined with the table when it "
                "arrives. Leave it out; only a join of two streams has late records."
            )
        return replace(self, output=self.late_output, late_output=None)

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The rows of every version as a stream, by the key of the joined stream, or by these columns.

        A row's event time is that of its record; of two records, the later one.
        """
        return derive(self.topology, self.name, self.output or self.name, self.columns, names_of(key) or self.key)
