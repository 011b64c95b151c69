"""Opening a stream: a streaming DataFrame with its key, event time and position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.errors import TopologyError
from holdfast.topology.frames import type_of
from holdfast.topology.stream import Stream
from holdfast.topology.topology import Branch, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KAFKA_POSITION = ("partition", "offset")
"""The columns in which Spark's Kafka source has a record's position. Where a stream has them, they break ties."""


def open_stream(
    topology: Topology,
    frame: DataFrame,
    key: str | Iterable[str],
    timestamp: str | None,
    position: str | Iterable[str],
    name: str | None = None,
    whole_dead_letters: bool = False,
) -> Stream:
    """Adds a streaming DataFrame to the app as a stream."""
    if not frame.isStreaming:
        raise TopologyError("app.stream() takes a streaming DataFrame, from spark.readStream. This one is a batch.")
    keys = (key,) if isinstance(key, str) else tuple(key)
    positions = (position,) if isinstance(position, str) else tuple(position)
    if not positions and all(column in frame.columns for column in KAFKA_POSITION):
        positions = KAFKA_POSITION
    for column in (*keys, *([timestamp] if timestamp else []), *positions):
        type_of(frame, column)
    if timestamp is not None and (kind := type_of(frame, timestamp)) not in ("timestamp", "timestamp_ntz"):
        raise TopologyError(
            f"The event time {timestamp!r} is of type {kind}, and must be a timestamp. For milliseconds since "
            f"1970: df.withColumn({timestamp!r}, F.timestamp_millis({timestamp!r}))."
        )
    source = topology.add_source(frame, name, whole_dead_letters)
    return Stream(topology, (Branch(source, frame),), keys, timestamp, positions)
