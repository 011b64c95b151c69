"""Processors that share a store: they run in one sub-topology, so that order and atomicity are defined.

    record ─► first processor ─► second processor ─► next record
                   │ └── accounts ──┘ │

They read the same stream. In each partition a record is passed to one after the other, in the order of declaration,
before the next record. What the first one has written, the second one sees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import TopologyError
from holdfast.stores.kinds.base import Store
from holdfast.stores.spec import StoreSpec
from holdfast.topology.processor import Processor, stores_of, two_stores
from holdfast.topology.topology import SubTopology, Topology

if TYPE_CHECKING:
    from holdfast.topology.processing import Processing
    from holdfast.topology.stream import Stream


def sharing_of(topology: Topology, processor: type[Processor]) -> SubTopology | None:
    """The sub-topology with which a processor shares stores; None if all its stores are its own."""
    found: dict[str, SubTopology] = {}
    for declared in stores_of(processor).values():
        owner = next((each for each in topology.subtopologies if declared.name in _names(each)), None)
        if owner is None:
            continue
        if not _is_same(owner, declared):
            raise two_stores(declared.name)
        found[declared.name] = owner
    owners = {each.name: each for each in found.values()}
    if len(owners) > 1:
        listed = ", ".join(f"{store!r} with {each.name!r}" for store, each in sorted(found.items()))
        raise TopologyError(
            f"{processor.__name__} shares stores with processors that share none with each other: {listed}. Entries of "
            "a store are in the tasks of one sub-topology. Declare this processor before those, or give it stores of "
            "its own."
        )
    return next(iter(owners.values()), None)


def _names(subtopology: SubTopology) -> set[str]:
    return {store.name for store in subtopology.stores}


def _is_same(owner: SubTopology, declared: Store[Any, Any]) -> bool:
    """Whether a store is the very one that the sub-topology's processors have."""
    from holdfast.topology.processing import Processing

    operator = owner.operator
    return isinstance(operator, Processing) and operator.declared(declared.name).declaration == declared.declaration


def check_can_share(owner: SubTopology, stream: Stream, operator: Processing) -> None:
    """Raises if a processor can't run together with those that have the store."""
    first = owner.operator
    if operator.processor in (each.processor for each in getattr(first, "processors", ())):
        raise two_stores(operator.own_stores(owner)[0][1].name)  # the same class again: a mistake
    where = f"{operator.processor.__name__} shares a store with {owner.name!r}"
    if stream.key != owner.stream.key:
        raise TopologyError(
            f"{where}, whose stream has the key ({', '.join(owner.stream.key)}) and not ({', '.join(stream.key)}): a "
            "key of the one and a key of the other are in different partitions. Use key_by() first, or another store."
        )
    if stream != owner.stream:
        raise TopologyError(
            f"{where}, which reads another stream, so the order of their records would not be defined. Pass the same "
            "stream to both, and filter in process(); for two sources, merge() them first."
        )
    names = [each.name for each in stream.topology.subtopologies]
    for table in operator.tables:
        if names.index(table) > names.index(owner.name):
            raise TopologyError(
                f"{where}, and reads the global table {table!r}, which was added after that. Its tasks run before "
                "those that read it: call app.global_table() before the first of the processors."
            )
    chosen = getattr(first, "on_error", None)
    if operator.on_error != chosen:
        raise TopologyError(
            f"{where}, which has on_error={chosen!r} and not {operator.on_error!r}: a record that fails in one is "
            "undone in both. Use the same on_error."
        )


def share(owner: SubTopology, stores: tuple[StoreSpec, ...], operator: Processing) -> SubTopology:
    """The sub-topology with one more processor and the stores that only this one has."""
    from holdfast.topology.processing import Processing

    first = owner.operator
    assert isinstance(first, Processing)
    return replace(owner, stores=(*owner.stores, *stores), operator=replace(first, sharing=(*first.sharing, operator)))
