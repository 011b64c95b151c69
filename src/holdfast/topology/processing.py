"""Processing: the operator that passes records to a user's processor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds.base import Store
from holdfast.stores.spec import StoreSpec
from holdfast.topology.derived import derive, names_of
from holdfast.topology.events import EventShape, shape_of
from holdfast.topology.frames import key_of, type_of
from holdfast.topology.other_names import Named
from holdfast.topology.outputs import ChangedEntries, ForwardedRows, Output, changes_of, forwarded_to
from holdfast.topology.processor import (
    OnError,
    Processor,
    check_on_error,
    check_processor,
    globals_of,
    key_as_python,
    name_of,
    parse_outputs,
    specs_of,
    stores_of,
)
from holdfast.topology.punctuation import Punctuator, punctuators_of
from holdfast.topology.sharing import check_can_share, share, sharing_of
from holdfast.topology.sink import Sink
from holdfast.topology.topology import Operator, SubTopology, Topology

if TYPE_CHECKING:
    from holdfast.topology.stream import Stream


@dataclass(frozen=True)
class Processing(Operator):
    """The processor's class, the shape of its events, and the columns of the rows it forwards."""

    processor: type[Processor]
    event: EventShape
    attributes: tuple[str, ...]
    """The class attributes of its stores."""
    forwards: tuple[tuple[str | None, Schema], ...] = ()
    """The columns of each output by its name; None is the main output."""
    punctuators: tuple[Punctuator, ...] = ()
    on_error: OnError = "fail"
    global_tables: tuple[tuple[str, str], ...] = ()
    """The class attributes of the global tables that it reads, and the tables' names."""
    name: str = ""
    """The processor's name; empty: that of the sub-topology."""
    sharing: tuple[Processing, ...] = ()
    """The processors that share stores with this one. They get each record after it, in this order."""
    about: str = ""
    """What `app.describe()` says of a processor that Holdfast wrote."""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for each in self.processors for _, table in each.global_tables))

    @property
    def processors(self) -> tuple[Processing, ...]:
        return self, *self.sharing

    def own_stores(self, subtopology: SubTopology) -> tuple[tuple[str, StoreSpec], ...]:
        """The attribute and the spec of each store of this processor."""
        declared, specs = stores_of(self.processor), {spec.name: spec for spec in subtopology.stores}
        return tuple((attribute, specs[declared[attribute].name]) for attribute in self.attributes)

    def declared(self, store: str) -> Store[Any, Any]:
        """A store of the sub-topology, as a processor has declared it."""
        found = (of[attribute] for each in self.processors for of in [stores_of(each.processor)] for attribute in of)
        return next(each for each in found if each.name == store)

    def outputs(self, subtopology: SubTopology) -> tuple[Output, ...]:
        number = subtopology.number
        changes = (
            ChangedEntries(changes_of(subtopology.name, store.name), number, store, declared)
            for store in subtopology.stores
            if (declared := self.declared(store.name)).SINK_COLUMNS
        )
        forwarded = (
            ForwardedRows(forwarded_to(each.name or subtopology.name, output), number, columns)
            for each in self.processors
            for output, columns in each.forwards
        )
        return (*forwarded, *changes)

    def lines(self, subtopology: SubTopology) -> Iterator[str]:
        for each in self.processors:
            yield f"processor {each.name or subtopology.name} ({each.processor.__name__})"
            if each.about:
                yield each.about
            for output, columns in each.forwards:
                yield f"forwards {columns}" if output is None else f"forwards to {output}: {columns}"
            for _, table in each.global_tables:
                yield f"reads the global table {table}"
            for punctuator in each.punctuators:
                yield f"punctuator {punctuator.method}, {punctuator.schedule}"
        if self.on_error != "fail":
            yield f"on_error {self.on_error}"

    def next_due(self, before: Now, event: int | None) -> int | None:
        punctuators = (punctuator for each in self.processors for punctuator in each.punctuators)
        times = (punctuator.schedule.next_due(before, event) for punctuator in punctuators)
        return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True)
class Processed(Named):
    """A processor of an app."""

    CALLED: ClassVar[str] = "A processor"
    topology: Topology
    name: str
    of: str
    """Its sub-topology, which has the name of the first of the processors that share stores."""

    def __repr__(self) -> str:
        stores = [spec.name for spec in self.specs]
        return f"Processed({self.name!r}, processor={self._operator.processor.__name__}, stores={stores!r})"

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        return tuple(spec for _, spec in self._operator.own_stores(self.topology.subtopology(self.of)))

    @property
    def _operator(self) -> Processing:
        operator = self.topology.subtopology(self.of).operator
        assert isinstance(operator, Processing)
        return next(each for each in operator.processors if each.name == self.name)

    @property
    def _key(self) -> Schema:
        return self.topology.subtopology(self.of).key

    def sink(self, sink: Sink, *, name: str | None = None) -> Processed:
        """Sends the rows that each version forwarded to `sink`, after the version is committed. Returns this object."""
        if None not in dict(self._operator.forwards):
            raise self._no_output()
        self.topology.add_sink(self.name, sink, name)
        return self

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The forwarded rows of each version as a stream, by the key of the processor's stream or by these columns.

        A row's event time is that of the record for which it was forwarded, or the punctuator's time.
        """
        return self._stream(None, key)

    def _stream(self, output: str | None, key: str | Iterable[str] | None) -> Stream:
        columns = dict(self._operator.forwards).get(output)
        if columns is None:
            raise self._no_output()
        keys = names_of(key) or self._key.names
        missing = [name for name in keys if name not in columns.names]
        if key is None and missing:
            raise TopologyError(
                f"to_stream(): the output {columns} lacks {missing[0]!r} of the key of the processor's stream. "
                f"Name the columns of the new stream's key: to_stream(key={columns.names[0]!r})."
            )
        return derive(self.topology, self.of, forwarded_to(self.name, output), columns, keys)

    def _no_output(self) -> TopologyError:
        return TopologyError(
            f"{self._operator.processor.__name__} has no output yet. Name the columns of the rows it forwards: "
            f"stream.process(..., output='{self._key}, n bigint')."
        )

    def output(self, name: str) -> ProcessedOutput:
        """The output that `process(..., outputs={name: ...})` has declared."""
        known = [output for output, _ in self._operator.forwards if output is not None]
        if name not in known:
            has = f"Its named outputs are: {', '.join(known)}" if known else "It has no named outputs"
            raise TopologyError(
                f"output({name!r}): {self._operator.processor.__name__} has no such output. "
                f"{did_you_mean(name, known)}{has}. Name its columns: stream.process(..., outputs={{{name!r}: "
                f"'{self._key}, n bigint'}})."
            )
        return ProcessedOutput(self, name)

    def sink_changes(self, store: str, sink: Sink, *, name: str | None = None) -> Processed:
        """Sends each version's changes of a key-value store to `sink`, deletes included. Returns this object.

        Rows have the key's columns, `value` as JSON, `timestamp` if the store keeps one, and `_deleted`, which is true
        for a key that was deleted or evicted, or that has expired. A store with `ttl=` and without `max_entries=`
        drops expired entries in whole slices instead, and nothing is sent for those.
        """
        processor = self._operator.processor
        declared = {each.name: each for each in stores_of(processor).values()}
        sent = [each for each, of in declared.items() if of.SINK_COLUMNS]
        if store not in sent:
            known = next((spec for spec in self.specs if spec.name == store), None)
            what = "has no such store" if known is None else f"has a {known.kind} store of that name"
            raise TopologyError(
                f"sink_changes({store!r}): {processor.__name__} {what}. Its key-value stores are: "
                f"{', '.join(sent) or 'none'}. Forward the changes of other stores: ctx.forward()."
            )
        self.topology.add_sink(changes_of(self.of, store), sink, name)
        return self


@dataclass(frozen=True)
class ProcessedOutput(Named):
    """A named output of a processor: the rows that it forwards with `to=`."""

    CALLED: ClassVar[str] = "An output"
    processed: Processed
    name: str

    def to_stream(self, *, key: str | Iterable[str] | None = None) -> Stream:
        """The rows of this output as a stream, by the key of the processor's stream or by these columns."""
        return self.processed._stream(self.name, key)

    def sink(self, sink: Sink, *, name: str | None = None) -> ProcessedOutput:
        """Sends the rows of this output to `sink`, after each version is committed. Returns this object."""
        self.processed.topology.add_sink(forwarded_to(self.processed.name, self.name), sink, name)
        return self


def add_processing(
    stream: Stream,
    processor: type[Processor],
    output: str | Schema | None,
    outputs: Mapping[str, str | Schema],
    name: str | None,
    on_error: OnError | None,
    used: Iterable[str] | None = None,
) -> Processed:
    """Adds a processor that reads the stream by its key. `used` are the columns of its events, if not all."""
    topology = stream.topology
    check_processor(processor)
    chosen = name or name_of(processor)
    key = key_as_python(key_of(stream.frame, stream.key))
    for column in (*([stream.timestamp] if stream.timestamp else []), *stream.position):
        type_of(stream.frame, column)
    declared, stores = stores_of(processor), specs_of(processor, topology.engine)
    shared = sharing_of(topology, processor)
    taken = {store.name for store in shared.stores} if shared else set[str]()
    new = [(attribute, spec) for attribute, spec in stores if spec.name not in taken]
    topology.check_free(
        chosen, tuple(spec for _, spec in new), "Give the processor another name: process(..., name='...')."
    )
    for attribute, spec in stores:
        # Raises here, and not in a task, if a codec is missing.
        declared[attribute].bind(DictBytes(), Now(wall=0), lambda name, number: None, spec=spec)
    columns = {field.name: field.dataType.simpleString() for field in stream.frame.schema.fields}
    if used is not None:
        columns = {column: columns[column] for column in used}
    operator = Processing(
        processor,
        replace(shape_of(processor.process, columns), texts=processor._texts),
        tuple(attribute for attribute, _ in stores),
        parse_outputs(output, outputs),
        _checked_punctuators(processor, stream),
        topology.on_error if on_error is None else check_on_error(on_error),
        _checked_globals(processor, topology),
        chosen,
    )
    specs = tuple(msgspec.structs.replace(stream.timed(spec), stream_key=key) for _, spec in new)
    if shared is None:
        topology.add(chosen, stream, key, specs, operator)
        return Processed(topology, chosen, chosen)
    check_can_share(shared, stream, operator)
    topology.replace(share(shared, specs, operator))
    return Processed(topology, chosen, shared.name)


def _checked_globals(processor: type[Processor], topology: Topology) -> tuple[tuple[str, str], ...]:
    """The global tables that a processor reads. Their tasks run before its own."""
    found = globals_of(processor)
    known = {store.name: store for each in topology.subtopologies for store in each.stores if store.one_partition}
    for attribute, declared in found.items():
        if declared.name not in known:
            has = f"The global tables so far are {', '.join(known)}." if known else "It has none so far."
            raise TopologyError(
                f"{processor.__name__}.{attribute} = {declared!r}: the app has no such global table. "
                f"{did_you_mean(declared.name, known)}{has} Call app.global_table(..., {declared.name!r}) before "
                "process()."
            )
        spec = known[declared.name]
        declared.check(spec, key_as_python(spec.key))
    return tuple((attribute, declared.name) for attribute, declared in found.items())


def _checked_punctuators(processor: type[Processor], stream: Stream) -> tuple[Punctuator, ...]:
    found = punctuators_of(processor)
    for each in found:
        if each.schedule.time == "stream" and stream.timestamp is None:
            raise TopologyError(
                f"{processor.__name__}.{each.method} is called by stream time, and the stream has no event time. Name "
                'its column, app.stream(df, key=..., timestamp=...), or use time="wall".'
            )
    return found
