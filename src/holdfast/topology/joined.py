"""What a join of any kind gives: rows that sinks take, and that are a stream again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.stores.formats.types import Schema
from holdfast.topology.derived import derive
from holdfast.topology.sink import Sink
from holdfast.topology.topology import Topology

if TYPE_CHECKING:
    from holdfast.topology.stream import Stream


@dataclass(frozen=True)
class Joined:
    """The rows of a join."""

    topology: Topology
    name: str
    columns: Schema
    key: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Joined({self.name!r}, key={[*self.key]!r}, columns={str(self.columns)!r})"

    def sink(self, sink: Sink, *, name: str | None = None) -> Joined:
        """Sends the rows of every version to `sink`, after the version is committed. Returns this join."""
        self.topology.add_sink(self.name, sink, name)
        return self

    def to_stream(self) -> Stream:
        """The rows of every version as a stream, by the key of the joined stream; `key_by` gives it another one.

        A row's event time is that of its record; of two records, the later one.
        """
        return derive(self.topology, self.name, self.name, self.columns, self.key)
