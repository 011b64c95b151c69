"""An app's topology as a Mermaid flowchart, for `app.describe(format="mermaid")`: GitHub and most wikis draw it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.topology.topology import Source, StaticRows, SubTopology, Topology


def mermaid(topology: Topology) -> str:
    """Sources and sinks at the sides, sub-topologies with their stores between them."""
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _lines(topology))])


def _lines(topology: Topology) -> Iterator[str]:
    sources = {source.name: f"source{n}" for n, source in enumerate(topology.sources)}
    for name, node in sources.items():
        yield f"{node}[/{_text(name)}/]"
    nodes = {each.name: f"sub{n}" for n, each in enumerate(topology.subtopologies)}
    made_by = {output.name: each.name for each in topology.subtopologies for output in each.outputs}
    for each in topology.subtopologies:
        yield from _subtopology(each, nodes[each.name])
        for branch in each.stream.branches:
            name = branch.origin.name
            if isinstance(branch.origin, StaticRows):
                continue  # its sub-topology says so
            origin = sources[name] if isinstance(branch.origin, Source) else nodes[made_by[name]]
            yield f"{origin} --> {nodes[each.name]}"
        read = {made_by.get(branch.origin.name) for branch in each.stream.branches}
        for table in dict.fromkeys(each.operator.tables):
            if table not in read:
                yield f"{nodes[table]} -. looked up .-> {nodes[each.name]}"
    for n, sink in enumerate(topology.sinks):
        if sink.source in made_by:
            yield f"{nodes[made_by[sink.source]]} --> sink{n}[\\{_text(f'{sink.name} ({sink.sink.kind})')}\\]"


def _subtopology(each: SubTopology, node: str) -> Iterator[str]:
    yield f"{node}[{_text('<br/>'.join([each.name, *each.operator.lines(each)]))}]"
    for n, store in enumerate(each.stores):
        yield f"{node} --- {node}store{n}[({_text(f'{store.name} ({store.kind})')})]"


def _text(text: str) -> str:
    """
    >>> _text('a "b"')
    '"a #quot;b#quot;"'
    """
    return '"' + text.replace('"', "#quot;") + '"'
