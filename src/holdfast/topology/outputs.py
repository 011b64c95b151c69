"""The outputs of an app, which sinks take. `pipeline.sinks.outputs` reads the rows of each from a commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.stores.spec import StoreSpec

if TYPE_CHECKING:
    from holdfast.stores.kinds.base import Store

OF_STORE: Final = "~"
"""Separates sub-topology and store in the name of a store's changes. Neither may contain it."""

DELETED: Final = "_deleted"
"""The column that is true for a deleted key, in the rows of a store that can delete."""

DEAD_LETTERS: Final = "dead-letters"


@dataclass(frozen=True)
class AggregateRows:
    """The changed rows of an aggregation: key columns, then results, then `_deleted` where the store can delete."""

    name: str
    topology: int
    store: StoreSpec


@dataclass(frozen=True)
class ForwardedRows:
    """The rows that a processor forwarded, in its order within a task."""

    name: str
    topology: int


@dataclass(frozen=True)
class ChangedEntries:
    """The changed entries of a processor's key-value store: key columns, the value as JSON, and `_deleted`.

    Deleted are the keys that the processor deleted and those that were evicted. Keys that expired are too, except in a
    store with a TTL and without `ttl_to_sinks` and `max_entries`, which drops expired entries in whole slices.
    """

    name: str
    topology: int
    store: StoreSpec
    declared: Store[Any, Any]


@dataclass(frozen=True)
class DeadLetters:
    """Records that can't be used: no key, no event time, or too far ahead of the clock."""

    name: str = DEAD_LETTERS


Output = AggregateRows | ForwardedRows | ChangedEntries | DeadLetters
