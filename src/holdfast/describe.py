"""An app as text, for `app.describe()`."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.settings.model import Settings
from holdfast.stores.kinds import store_class
from holdfast.topology.outputs import OF_STORE, ChangedEntries
from holdfast.topology.topology import StaticRows, SubTopology, Topology


def describe(app: str, settings: Settings, topology: Topology) -> str:
    return "\n".join(_lines(app, settings, topology))


def _lines(app: str, settings: Settings, topology: Topology) -> Iterator[str]:
    standbys = f", {settings.standbys} standby(s) per task" if settings.standbys else ""
    yield f"App {app}: {settings.partitions} partitions, {settings.instances} instance(s){standbys}"
    yield f"  log         {settings.log_url(app)}"
    yield f"  state       {settings.state_dir(app)}"
    yield f"  checkpoint  {settings.checkpoint(app)}"
    for each in topology.subtopologies:
        # The log assigns the numbers of tasks.
        first, *others = each.tasks(settings.partitions)
        tasks = f", tasks {first} to {others[-1]}" if others else f", task {first}"
        yield f"  Sub-topology {each.name}{tasks if topology.is_numbered else ''}"
        yield from (f"    {line}" for line in _subtopology(each))
        outputs = {output.name: output for output in each.outputs}
        for node in topology.sinks:
            if node.source in outputs:
                what = node.source.partition(OF_STORE)[2]
                of = f" of the changes in {what}" if isinstance(outputs[node.source], ChangedEntries) else f" of {what}"
                yield f"    sink {node.name} ({node.sink.kind})" + (of if what else "")
    for endpoint in topology.endpoints:
        yield f"  endpoint GET {endpoint.path}: {endpoint.place} reads {', '.join(endpoint.reads)}"


def _subtopology(each: SubTopology) -> Iterator[str]:
    stream = each.stream
    key = ", ".join(f"{field.name} {field.type}" for field in each.key.fields)
    time = f", event time {stream.timestamp}" if stream.timestamp else ""
    of = ", ".join(f"{each.origin.name} after {len(each.steps)} stateless step(s)" for each in stream.branches)
    if any(isinstance(branch.origin, StaticRows) for branch in stream.branches):
        yield f"a static DataFrame, read at each start (key {key})"
    else:
        yield f"stream of {of} (key {key}{time})"
    yield from each.operator.lines(each)
    for store in each.stores:
        yield from store_class(store.kind).describe_spec(store)
