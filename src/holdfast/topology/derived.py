"""Streams that are made of a sub-topology's output: of forwarded rows, or of a table's changes.

    stream ─► process ─► forwarded rows ─► to_stream() ─► key_by("city") ─► aggregate

The second sub-topology belongs to the same version: either both of them are committed or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.errors import TopologyError
from holdfast.topology.frames import type_of
from holdfast.topology.plain_frames import PlainFrame
from holdfast.topology.topology import Branch, OutputOf

if TYPE_CHECKING:
    from holdfast.stores.formats.types import Schema
    from holdfast.topology.stream import Stream
    from holdfast.topology.topology import Topology

TIME: Final = "_time"
"""The event time of a derived record: that of the record, or of the time, that a row was made for."""

TASK: Final = "_task"
ROW: Final = "_row"
"""Task and row: the position of a derived record, which orders records of the same time."""


def hidden_of(origins: Iterable[object]) -> frozenset[str]:
    """The columns that streams of these origins have for themselves."""
    return frozenset((TIME, TASK, ROW) if any(isinstance(each, OutputOf) for each in origins) else ())


def frame_schema(columns: Schema) -> str:
    """The columns of a derived stream, as Spark writes them.

    >>> from holdfast.stores.formats.types import Schema
    >>> frame_schema(Schema.of(city="string"))
    '`city` string, _time timestamp, _task int, _row bigint'
    """
    fields = [f"`{field.name}` {field.type}" for field in columns.fields]
    return ", ".join([*fields, f"{TIME} timestamp", f"{TASK} int", f"{ROW} bigint"])


def arrow_columns(columns: Schema) -> pa.Schema:
    """The same as Arrow columns."""
    own = [(TIME, pa.timestamp("us", "UTC")), (TASK, pa.int32()), (ROW, pa.int64())]
    return pa.schema([*columns.arrow, *(pa.field(*each) for each in own)])


def names_of(key: str | Iterable[str] | None) -> tuple[str, ...]:
    """The columns that `to_stream(key=...)` names."""
    return () if key is None else (key,) if isinstance(key, str) else tuple(key)


def derive(topology: Topology, name: str, output: str, columns: Schema, key: tuple[str, ...]) -> Stream:
    """The rows of an output of the sub-topology `name` as a stream."""
    from holdfast.topology.stream import Stream

    of = topology.subtopology(name).stream
    reserved = {TIME, TASK, ROW} & set(columns.names)
    if reserved:
        raise TopologyError(
            f"to_stream(): the output {output!r} has a column {min(reserved)!r}, which a derived stream needs for "
            "itself. Give your column another name."
        )
    frame: Any = PlainFrame.of_arrow(arrow_columns(columns))
    if not isinstance(of.frame, PlainFrame):
        frame = of.frame.sparkSession.createDataFrame([], frame_schema(columns))
    for column in key:
        type_of(frame, column)
    time = TIME if of.timestamp else None
    return Stream(topology, (Branch(OutputOf(name, output), frame),), key, time, (TASK, ROW))
