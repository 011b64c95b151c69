"""The outputs of an app, which sinks take. `pipeline.sinks.outputs` reads the rows of each from a commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.stores.formats.types import Field, FieldType, Schema
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec

if TYPE_CHECKING:
    from holdfast.stores.kinds.base import Store

OF_STORE: Final = "~"
"""Separates sub-topology and store in the name of a store's changes. Neither may contain it."""

OF_OUTPUT: Final = "/"
"""Separates sub-topology and output in the name of a processor's named output."""

DELETED: Final = "_deleted"
"""The column that is true for a deleted key, in the rows of a store that can delete."""

DEAD_LETTERS: Final = "dead-letters"


def changes_of(name: str, store: str) -> str:
    """The name of the output with a store's changes.

    >>> changes_of("visits", "seen")
    'visits~seen'
    """
    return f"{name}{OF_STORE}{store}"


def forwarded_to(name: str, output: str | None) -> str:
    """The name of a processor's output; None is its main one.

    >>> forwarded_to("visits", "alerts"), forwarded_to("visits", None)
    ('visits/alerts', 'visits')
    """
    return name if output is None else f"{name}{OF_OUTPUT}{output}"


def deletions_of(name: str) -> str:
    """The name of the part with the event times of a table's deleted keys, which have no cell that could have them.

    >>> deletions_of("players")
    'players~deleted'
    """
    return f"{name}{OF_STORE}deleted"


def as_json(value: object) -> str:
    """A value of a user's type as sinks get it."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def default_sink_name(output: str, kind: str) -> str:
    """The name of a sink that was given none.

    >>> default_sink_name(changes_of("visits", "seen"), "files"), default_sink_name("visits/alerts", "files")
    ('visits.seen.files', 'visits.alerts.files')
    """
    return f"{output.replace(OF_STORE, '.').replace(OF_OUTPUT, '.')}.{kind}"


@dataclass(frozen=True)
class AggregateRows:
    """The changed rows of an aggregation: key columns, then results, then `_deleted` where the store can delete."""

    name: str
    subtopology: int
    store: StoreSpec

    @property
    def columns(self) -> Schema:
        results = tuple(field for field in self.store.columns.fields if not field.hidden_in)
        deleted = (Field(DELETED, "boolean"),) if layout_of(self.store).deletes else ()
        return Schema(_key_fields(self.store) + results + deleted)


@dataclass(frozen=True)
class ForwardedRows:
    """The rows that a processor forwarded to one of its outputs, in its order within a task."""

    name: str
    subtopology: int
    columns: Schema = Schema(())


@dataclass(frozen=True)
class ChangedEntries:
    """The changed entries of a processor's key-value store: key columns, the value as JSON, and `_deleted`.

    Deleted are the keys that the processor deleted and those that were evicted. Keys that expired are too, except in a
    store with a TTL and without `ttl_to_sinks` and `max_entries`, which drops expired entries in whole slices.
    """

    name: str
    subtopology: int
    store: StoreSpec
    declared: Store[Any, Any]

    @property
    def columns(self) -> Schema:
        types = {"value": "string", "timestamp": "bigint"}
        values = tuple(Field(name, types[name]) for name in self.declared.SINK_COLUMNS)
        return Schema(_key_fields(self.store) + values + (Field(DELETED, "boolean"),))


@dataclass(frozen=True)
class DeadLetters:
    """Records that can't be used: no key, no event time, or too far ahead of the clock."""

    name: str = DEAD_LETTERS


def _key_fields(store: StoreSpec) -> tuple[Field, ...]:
    """The columns of a changed key; those of a window with its times."""
    columns = layout_of(store).key_columns(pa.array([], pa.binary())).items()
    return tuple(Field(name, str(FieldType.of_arrow(column.type))) for name, column in columns)


DerivedOutput = AggregateRows | ForwardedRows | ChangedEntries
"""The outputs that can be streams again."""

Output = AggregateRows | ForwardedRows | ChangedEntries | DeadLetters
