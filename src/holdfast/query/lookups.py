"""Lookups of one key in one task: where the key is, and what was found there."""

from dataclasses import dataclass

from holdfast.query.store_specs import StoreSpecs
from holdfast.query.task_reader import ReadNeeds, Served, TaskReader
from holdfast.stores.access import Now
from holdfast.stores.formats.cells import Cell
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId, Version


@dataclass(frozen=True)
class Lookup:
    """Where one key of one store is found."""

    spec: StoreSpec
    task: TaskId
    key: bytes


@dataclass(frozen=True)
class LookupResult:
    """What a lookup found; `cell` is None where the key isn't there at that version."""

    version: Version
    task: TaskId
    cell: Cell | None
    now: Now
    served: Served
    local: bool
    """Whether a replica of this process was read."""


def read_key(
    specs: StoreSpecs, reader: TaskReader, lookup: Lookup, version: Version | None, needs: ReadNeeds
) -> LookupResult:
    """The cell of a key in one task, as its store's layout finds it."""
    spec, task, local = lookup.spec, lookup.task, reader.local
    layout = layout_of(spec)
    if layout.one_place:
        got = reader.get(spec.name, lookup.key, version, needs)
        return LookupResult(got.version, task, layout.visible(got.value, got.now), got.now, got.served, local)
    with reader.at(spec.name, version, needs) as store:
        # A TTL only grows, so the newest known one is right here, where an event loop must not read the log.
        spec = specs[spec.name] if local else specs.at(spec.name, store.version)
        data = layout_of(spec).reader(store.bytes, store.now).find(lookup.key)
        cell = None if data is None else layout.cell(data)
        return LookupResult(store.version, task, cell, store.now, store.served, local)
