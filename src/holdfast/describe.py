"""An app as text: what `app.describe()` says, read off the description itself so that it can't say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.settings import Settings
from holdfast.stores.kinds import store_class
from holdfast.topology.processor import Processed
from holdfast.topology.stream import Builder, Table


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
        yield from (f"    {line}" for line in store_class(spec.kind).describe_spec(spec))
    if processed.output is not None:
        yield f"    forwards {processed.output}"


def _table(table: Table, partitions: int) -> Iterator[str]:
    tasks = f"tasks {table.topology}_0 to {table.topology}_{partitions - 1}"
    yield f"  Sub-topology {table.topology}, {tasks}"
    source = f"key {', '.join(table.stream.key)}"
    time = f", event time {table.stream.timestamp}" if table.stream.timestamp else ""
    yield f"    stream ({source}{time}), {len(table.stream.steps)} stateless step(s)"
    yield from (f"    {line}" for line in store_class(table.spec.kind).describe_spec(table.spec))
    for name, aggregate in table.aggregates:
        field = next(f for f in table.results.fields if f.name == name)
        yield f"      {name} {field.type} = {aggregate}"
