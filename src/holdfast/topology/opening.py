"""Opening a stream: a streaming DataFrame with its key, event time and position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.errors import TopologyError
from holdfast.topology.frames import key_of, type_of
from holdfast.topology.parsing import TEXT, UNREADABLE, JsonTexts, Parse, Readable, Unreadable
from holdfast.topology.steps import HasValue, Projection
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
    parse: JsonTexts | None = None,
) -> Stream:
    """Adds a streaming DataFrame to the app as a stream, of its records or of those in its texts."""
    if not frame.isStreaming:
        raise TopologyError("app.stream() takes a streaming DataFrame, from spark.readStream. This one is a batch.")
    keys = (key,) if isinstance(key, str) else tuple(key)
    positions = (position,) if isinstance(position, str) else tuple(position)
    if not positions and all(column in frame.columns for column in KAFKA_POSITION):
        positions = KAFKA_POSITION
    if parse is not None:
        return _open_parsed(topology, frame, Parse(parse, keys, timestamp), positions, name, whole_dead_letters)
    _check_columns(frame, keys, timestamp, positions)
    source = topology.add_source(frame, name, whole_dead_letters)
    return Stream(topology, (Branch(source, frame),), keys, timestamp, positions)


def _open_parsed(
    topology: Topology, frame: DataFrame, parse: Parse, positions: tuple[str, ...], name: str | None, whole: bool
) -> Stream:
    """The stream of the records in a source's texts. Their source also has texts that can't be read."""
    if not isinstance(parse.json, JsonTexts):
        raise TopologyError(f"parse={parse.json!r} is not a way to read texts. Use hf.json('value', 'player string').")
    is_new = topology.source_of(frame, parse) is None
    source = topology.add_source(frame, name, whole, parse)
    read = Branch(source, source.frame)
    records = read.after(Readable())
    _check_columns(records.frame, parse.key, parse.timestamp, positions)
    if is_new:
        column = parse.json.column
        shown = tuple(each for each in frame.columns if each != column) if whole else positions
        chosen = dict.fromkeys((TEXT, UNREADABLE, *parse.key, *shown))
        texts = read.after(HasValue.of(UNREADABLE)).after(Projection(tuple((each, each) for each in chosen)))
        stream = Stream(topology, (texts,), parse.key, None, ())
        topology.check_free(own := f"{source.name}-unreadable", (), "Give the source another name.")
        topology.add(own, stream, key_of(texts.frame, parse.key), (), Unreadable(column, shown))
    return Stream(topology, (records,), parse.key, parse.timestamp, positions)


def _check_columns(frame: DataFrame, keys: tuple[str, ...], timestamp: str | None, positions: tuple[str, ...]) -> None:
    for column in (*keys, *([timestamp] if timestamp else []), *positions):
        type_of(frame, column)
    if timestamp is not None and (kind := type_of(frame, timestamp)) not in ("timestamp", "timestamp_ntz"):
        raise TopologyError(
            f"The event time {timestamp!r} is of type {kind}, and must be a timestamp. For milliseconds since "
            f"1970: df.withColumn({timestamp!r}, F.timestamp_millis({timestamp!r}))."
        )
