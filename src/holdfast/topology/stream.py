"""Streams, groups and tables: the words a user writes a pipeline with.

Streams are DataFrames: every stateless step is plain PySpark, taken down as a function and applied twice, once to the
streaming DataFrame, so that a wrong column is an error on the line that wrote it, and once to each batch. Nothing
here starts or reads anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Never

import msgspec
import pyarrow as pa

from holdfast.errors import TopologyError
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.rows import ROWS
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.options import ROCKSDB, Length, check_options, known_engine
from holdfast.stores.spec import KEY_VALUE, VERSIONED, StoreSpec, check_name
from holdfast.topology.aggregates import Aggregate
from holdfast.topology.events import shape_of
from holdfast.topology.frames import input_type, type_of
from holdfast.topology.processor import (
    OF_STORE,
    Processed,
    Processor,
    check_processor,
    key_as_python,
    name_of,
    parse_output,
    specs_of,
    stores_of,
    two_stores,
)
from holdfast.topology.reducers import HIDDEN, Reducer, bind
from holdfast.topology.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Step = Callable[["DataFrame"], "DataFrame"]

KAFKA_POSITION = ("partition", "offset")
"""Spark's Kafka source names a record's place with these columns; where a stream has them they break ties."""


@dataclass(frozen=True)
class Stream:
    """A streaming DataFrame with a key and, if it has one, an event time."""

    builder: Builder
    frame: DataFrame
    """The source with all steps so far: for its columns and types."""
    key: tuple[str, ...]
    timestamp: str | None
    position: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def transform(self, step: Step) -> Stream:
        """Any stateless PySpark: `stream.transform(lambda df: df.withColumn("day", F.to_date("ts")))`."""
        return replace(self, frame=step(self.frame), steps=(*self.steps, step))

    def where(self, condition: str | Column) -> Stream:
        """Keeps the records for which the condition is true."""
        return self.transform(lambda df: df.where(condition))

    filter = where

    def select(self, *columns: str | Column) -> Stream:
        """Keeps these columns or expressions. Key and event time have to be among them."""
        return self.transform(lambda df: df.select(*columns))

    def with_column(self, name: str, value: str | Column) -> Stream:
        """Adds or replaces a column; a string is a SQL expression."""

        def step(df: DataFrame) -> DataFrame:
            if isinstance(value, str):
                return df.selectExpr(*[f"`{c}`" for c in df.columns if c != name], f"{value} AS `{name}`")
            return df.withColumn(name, value)

        return self.transform(step)

    def drop(self, *columns: str) -> Stream:
        """Leaves these columns out."""
        return self.transform(lambda df: df.drop(*columns))

    def group_by(self, *columns: str) -> Grouped:
        """Groups by these columns, or by the stream's key when none are named."""
        for column in columns:
            type_of(self.frame, column)
        return Grouped(self, tuple(columns) or self.key)

    def process(self, processor: type[Processor], *, output: str | None = None, name: str | None = None) -> Processed:
        """Hands every record to a processor of the user's own, by the stream's key.

        `output` names the columns of what it forwards, `"player string, n bigint"`, key first; `name` is what its
        output goes by, the class's unless given.
        """
        return self.builder.add_processor(self, processor, output, name)

    def timed(self, spec: StoreSpec) -> StoreSpec:
        """The spec of a store of this stream: its retention goes by event time if the stream has one."""
        if not spec.retention_ms:
            return spec
        return msgspec.structs.replace(spec, clock="wall" if self.timestamp is None else "event")


@dataclass(frozen=True)
class Grouped:
    """A stream whose records meet by key."""

    stream: Stream
    columns: tuple[str, ...]

    def aggregate(self, **aggregates: Aggregate) -> Aggregated:
        """Any number of aggregates at once: `.aggregate(beats=hf.count(), peak=hf.max("bpm"))`."""
        if not aggregates:
            raise TopologyError("aggregate() needs at least one aggregate, such as aggregate(n=hf.count()).")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise TopologyError(f"{name}={aggregate!r} is no aggregate. Take hf.count(), hf.sum('column') ...")
            if name in self.columns:
                raise TopologyError(
                    f"{name!r} is both a group column and an aggregate. Give the aggregate another name."
                )
            if aggregate.needs_time and self.stream.timestamp is None:
                raise TopologyError(
                    f"{name}={aggregate} goes by event time, and the stream has none. "
                    "Name its column: app.stream(df, key=..., timestamp=...)."
                )
        return Aggregated(self, tuple(aggregates.items()))

    def count(self) -> Aggregated:
        """How many records each key has, as `count`."""
        from holdfast.topology.aggregates import count

        return self.aggregate(count=count())


@dataclass(frozen=True)
class Aggregated:
    """Aggregates without a home yet; `.store(name)` gives them one."""

    grouped: Grouped
    aggregates: tuple[tuple[str, Aggregate], ...]

    def store(
        self,
        name: str,
        *,
        engine: str | None = None,
        max_entries: int | None = None,
        ttl: Length | None = None,
        retention: Length | None = None,
        durable: bool = True,
        profile: str = "balanced",
        everywhere: bool = False,
        rocksdb_options: str | None = None,
        **unknown: Never,
    ) -> Table:
        """Keeps the aggregates in a store of this name: durable, restored after a crash and open to queries.

        `ttl="1h"`: a key that no record came for in that time is gone, and starts anew with its next one. Nothing is
        sent to sinks when it goes. `max_entries=1000`: each partition keeps the keys touched last; one that is evicted,
        or has expired where there is a `ttl` too, is a delete in the log and in the sinks, where `_deleted` is true.
        `retention="7d"`: beside its latest results a key keeps what they were, a row a version, for so long by event
        time; `/v1/stores/{name}/history/{key}` has them, and sinks get the latest as ever. Not with the other two.
        `engine` is the setting `state.engine` unless named here. The other options mean what they mean for a
        processor's store.
        """
        builder = self.grouped.stream.builder
        where = f"store({name!r})"
        check_options(unknown, _STORE_OPTIONS, where)
        for option, given in (("ttl", ttl), ("max_entries", max_entries)):
            if retention is not None and given is not None:
                raise TopologyError(
                    f"{where}: {option}={given!r} and retention={retention!r} can't be had together: with "
                    "retention the latest results stay for good, and what they were before goes. Leave out one of them."
                )
        make = partial(
            store_spec,
            name,
            KEY_VALUE if retention is None else VERSIONED,
            codec=ROWS,
            engine=engine,
            default_engine=builder.engine,
            ttl=ttl,
            max_entries=max_entries,
            retention=retention,
            durable=durable,
            everywhere=everywhere,
            profile=profile,
            rocksdb_options=rocksdb_options,
            where=where,
        )
        return builder.add_table(self, name, make)


_STORE_OPTIONS = frozenset(Aggregated.store.__kwdefaults__ or ())


@dataclass(frozen=True)
class Table:
    """A store that the stream keeps up to date, with everything the batch needs to do so."""

    builder: Builder
    topology: int
    spec: StoreSpec
    stream: Stream
    aggregates: tuple[tuple[str, Aggregate], ...]
    reducers: tuple[Reducer, ...]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def results(self) -> Schema:
        """The columns a reader sees: the key's and the aggregates'."""
        assert self.spec.value is not None
        return Schema(self.spec.key.fields + tuple(f for f in self.spec.value.fields if HIDDEN not in f.name))

    def sink(self, sink: Sink, *, name: str | None = None) -> Table:
        """Sends every version's changed rows to `sink`, after the version exists. Returns the table again."""
        self.builder.add_sink(self.name, sink, name)
        return self


@dataclass(frozen=True)
class SinkNode:
    """A sink, what it is fed from, and the name under which the log keeps its position."""

    name: str
    source: str
    sink: Sink


DELETED = "_deleted"
"""The column by which a sink tells a deleted key, in the rows of a store that can delete."""

LONGEST_SINK_NAME = 100

DEAD_LETTERS = "dead-letters"
"""The output of records that can't be used: no key, no event time, or too far ahead of the clock."""


class Builder:
    """What a pipeline has so far. An app has one; it turns into tasks, stores and sinks at start."""

    def __init__(self, engine: str = ROCKSDB) -> None:
        self.engine = known_engine(engine, "the setting state.engine")
        self.source: DataFrame | None = None
        self.tables: list[Table] = []
        self.processors: list[Processed] = []
        self.sinks: list[SinkNode] = []

    def add_stream(
        self, frame: DataFrame, key: str | Iterable[str], timestamp: str | None, position: str | Iterable[str]
    ) -> Stream:
        if not frame.isStreaming:
            raise TopologyError("app.stream() takes a streaming DataFrame, from spark.readStream. This one is a batch.")
        if self.source is not None and self.source is not frame:
            raise TopologyError(
                "An app has one source today, and this is a second DataFrame. Join the sources with df.unionByName() "
                "before app.stream(), or start a second app."
            )
        keys = (key,) if isinstance(key, str) else tuple(key)
        positions = (position,) if isinstance(position, str) else tuple(position)
        if not positions and all(column in frame.columns for column in KAFKA_POSITION):
            positions = KAFKA_POSITION
        for column in (*keys, *([timestamp] if timestamp else []), *positions):
            type_of(frame, column)
        if timestamp is not None and (kind := type_of(frame, timestamp)) not in ("timestamp", "timestamp_ntz"):
            raise TopologyError(
                f"The event time {timestamp!r} is of type {kind}, and has to be a timestamp. For milliseconds since "
                f"1970: df.withColumn({timestamp!r}, F.timestamp_millis({timestamp!r}))."
            )
        self.source = frame
        return Stream(self, frame, keys, timestamp, positions)

    def go_by(self, known: Callable[[StoreSpec], StoreSpec]) -> None:
        """Has every store go by what the log knows of it besides what the code says."""
        self.tables = [replace(table, spec=known(table.spec)) for table in self.tables]
        self.processors = [
            replace(each, stores=tuple((attribute, known(spec)) for attribute, spec in each.stores))
            for each in self.processors
        ]

    def add_table(self, aggregated: Aggregated, name: str, make: Callable[..., StoreSpec]) -> Table:
        """A table in the store that `make` gives for its key and value."""
        self._check_unused(name)
        stream, columns = aggregated.grouped.stream, aggregated.grouped.columns
        for column in (*columns, *([stream.timestamp] if stream.timestamp else [])):
            type_of(stream.frame, column)
        key = Schema(tuple(Field(column, type_of(stream.frame, column)) for column in columns))
        encode_keys(key, [pa.array([], field.field_type.arrow) for field in key.fields])  # raises for what is no key
        if any(aggregate.needs_time for _, aggregate in aggregated.aggregates):
            position = [type_of(stream.frame, column) for column in stream.position]
        else:
            position = []
        reducers = tuple(
            bind(label, aggregate, input_type(stream.frame, aggregate), position)
            for label, aggregate in aggregated.aggregates
        )
        results = tuple(reducer.fields[0] for reducer in reducers)
        hidden = tuple(field for reducer in reducers for field in reducer.fields[1:])
        from_now = tuple(label for label, aggregate in aggregated.aggregates if aggregate.from_now)
        spec = msgspec.structs.replace(
            stream.timed(make(key=key, value=Schema(results + hidden))),
            from_now=from_now,
            aggregates=tuple((label, aggregate.meaning) for label, aggregate in aggregated.aggregates),
        )
        if spec.max_entries and DELETED in (field.name for field in key.fields + results):
            raise TopologyError(
                f"store({name!r}): a column is named {DELETED!r}, which is how sinks are told of a key that "
                "max_entries evicted. Give it another name."
            )
        table = Table(self, self._next_topology(), spec, stream, aggregated.aggregates, reducers)
        self.tables.append(table)
        return table

    def add_processor(
        self, stream: Stream, processor: type[Processor], output: str | None, name: str | None
    ) -> Processed:
        check_processor(processor)
        chosen = name or name_of(processor)
        check_name(chosen)
        if chosen in self._outputs():
            raise TopologyError(
                f"There are two outputs named {chosen!r}. Give the processor another name: process(..., name='...')."
            )
        for column in (*stream.key, *([stream.timestamp] if stream.timestamp else []), *stream.position):
            type_of(stream.frame, column)
        key = key_as_python(Schema(tuple(Field(column, type_of(stream.frame, column)) for column in stream.key)))
        encode_keys(key, [pa.array([], field.field_type.arrow) for field in key.fields])  # raises for what is no key
        stores: list[tuple[str, StoreSpec]] = []
        declared = stores_of(processor)
        for attribute, spec in specs_of(processor, self.engine):
            self._check_unused(spec.name)
            # Tried here, since it raises for a codec that isn't there.
            declared[attribute].bind(DictBytes(), Now(wall=0), lambda name, number: None, spec=spec)
            stores.append((attribute, msgspec.structs.replace(stream.timed(spec), stream_key=key)))
        columns = {field.name: field.dataType.simpleString() for field in stream.frame.schema.fields}
        processed = Processed(
            self,
            self._next_topology(),
            chosen,
            processor,
            stream,
            key,
            shape_of(processor.process, columns),
            tuple(stores),
            None if output is None else parse_output(output),
        )
        self.processors.append(processed)
        return processed

    def _next_topology(self) -> int:
        return len(self.tables) + len(self.processors)

    def _check_unused(self, store: str) -> None:
        specs = [table.spec for table in self.tables] + [spec for each in self.processors for spec in each.specs]
        if any(spec.name == store for spec in specs):
            raise two_stores(store)

    def _outputs(self) -> set[str]:
        return {table.name for table in self.tables} | {each.name for each in self.processors} | {DEAD_LETTERS}

    def add_sink(self, source: str, sink: Sink, name: str | None) -> None:
        if not isinstance(sink, Sink):
            raise TopologyError(
                f"{sink!r} is no sink. Take hf.files('folder/'), hf.console(), hf.foreach(function) ..."
            )
        chosen = name or f"{source.replace(OF_STORE, '.')}.{sink.kind}"
        if name is None and len(chosen) > LONGEST_SINK_NAME:
            raise TopologyError(
                f"The sink would be named {chosen!r}, which is longer than the {LONGEST_SINK_NAME} characters a sink's "
                "name may have. Give it a shorter one: name='...'."
            )
        if any(node.name == chosen for node in self.sinks):
            raise TopologyError(
                f"There are two sinks named {chosen!r}. The name is where the log keeps how far a sink has come: "
                "give one of them its own with .sink(..., name='...')."
            )
        self.sinks.append(SinkNode(chosen, source, sink))
