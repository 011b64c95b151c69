"""An app as text: what `app.describe()` says, read off the description itself so that it can't say otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from holdfast.settings import Settings, format_duration
from holdfast.stores.spec import SESSION, TIMESTAMPED, StoreSpec
from holdfast.topology.processor import Processed
from holdfast.topology.stream import Builder, Table

_CLOCKS = {None: "", "event": " by event time", "wall": " by the wall clock"}


def describe(app: str, settings: Settings, builder: Builder) -> str:
    return "\n".join(_lines(app, settings, builder))


def _lines(app: str, settings: Settings, builder: Builder) -> Iterator[str]:
    yield f"App {app}: {settings.partitions} partitions, {settings.instances} instance(s)"
    yield f"  log         {settings.log_url(app)}"
    yield f"  state       {settings.state_dir(app)}"
    yield f"  checkpoint  {settings.checkpoint(app)}"
    for table in builder.tables:
        yield from _table(table, settings.partitions)
        for node in builder.sinks:
            if node.source == table.name:
                yield f"    sink {node.name} ({node.sink.kind})"
    for processed in builder.processors:
        yield from _processor(processed, settings.partitions)
        for node in builder.sinks:
            if node.source == processed.name:
                yield f"    sink {node.name} ({node.sink.kind})"
            for spec in processed.specs:
                if node.source == processed.changes_of(spec):
                    yield f"    sink {node.name} ({node.sink.kind}) of what changes in {spec.name}"


def _processor(processed: Processed, partitions: int) -> Iterator[str]:
    tasks = f"tasks {processed.topology}_0 to {processed.topology}_{partitions - 1}"
    yield f"  Sub-topology {processed.topology}, {tasks}"
    key = ", ".join(f"{field.name} {field.type}" for field in processed.key.fields)
    time = f", event time {processed.stream.timestamp}" if processed.stream.timestamp else ""
    yield f"    stream (key {key}{time}), {len(processed.stream.steps)} stateless step(s)"
    yield f"    processor {processed.name} ({processed.processor.__name__})"
    for spec in processed.specs:
        yield from (f"    {line}" for line in store_lines(spec))
    if processed.output is not None:
        yield f"    forwards {processed.output}"


def _table(table: Table, partitions: int) -> Iterator[str]:
    tasks = f"tasks {table.topology}_0 to {table.topology}_{partitions - 1}"
    yield f"  Sub-topology {table.topology}, {tasks}"
    source = f"key {', '.join(table.stream.key)}"
    time = f", event time {table.stream.timestamp}" if table.stream.timestamp else ""
    yield f"    stream ({source}{time}), {len(table.stream.steps)} stateless step(s)"
    yield from (f"    {line}" for line in store_lines(table.spec))
    for name, aggregate in table.aggregates:
        field = next(f for f in table.results.fields if f.name == name)
        yield f"      {name} {field.type} = {aggregate}"


def store_lines(spec: StoreSpec) -> Iterator[str]:
    """A store and every option it goes by, with its numbers.

    >>> from holdfast.stores.options import store_spec
    >>> from holdfast.stores.formats.types import Schema
    >>> key = Schema.of(player="string")
    >>> for line in store_lines(store_spec("recent", "key-value", key=key, codec="rows/1", ttl="1h")): print(line)
    store recent (key-value on rocksdb), key (player string)
      ttl 1h, in slices of 7m30s
      durable, profile balanced, codec rows/1
    """
    key = ", ".join(f"{field.name} {field.type}" for field in spec.key.fields)
    yield f"store {spec.name} ({spec.kind} on {spec.engine}), key ({key})"
    slices = f", in slices of {_length(spec.slice_ms)}" if spec.slice_ms else ""
    if spec.window_ms:
        yield f"  {'gap' if spec.kind == SESSION else 'size'} {_length(spec.window_ms)}, grace {_length(spec.grace_ms)}"
    if spec.retention_ms:
        yield f"  retention {_length(spec.retention_ms)}{_CLOCKS[spec.clock]}{slices}"
    if spec.ttl_ms:
        yield f"  ttl {_length(spec.ttl_ms)}{slices}"
    if spec.max_entries:
        reads = "reads refresh" if spec.refresh_on_read else "reads don't refresh"
        yield f"  at most {spec.max_entries:,} entries a partition, the least recently used go, {reads}"
    if spec.duplicates:
        yield "  keeps duplicates"
    if spec.kind == TIMESTAMPED:
        yield f"  out of order: {'the newest by event time stays' if spec.late == 'newest' else 'the last write wins'}"
    if spec.everywhere:
        yield "  everywhere: every instance has the whole of it"
    kept = "durable" if spec.durable else "not durable: in no snapshot, never restored"
    hook = f", options by {spec.options_hook}" if spec.options_hook else ""
    yield f"  {kept}, profile {spec.profile}{hook}, codec {spec.codec}"


def _length(millis: int) -> str:
    return format_duration(timedelta(milliseconds=millis))
