"""What sinks can be fed from. `pipeline.sinks.outputs` reads the rows of each out of a commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.stores.spec import StoreSpec

if TYPE_CHECKING:
    from holdfast.topology.processor import DeclaredStore

OF_STORE: Final = "~"
"""Between a sub-topology and its store, where a store's changes are named. Neither has one in its own name."""

DELETED: Final = "_deleted"
"""The column that says a key is deleted, in the rows of a store that can delete."""

DEAD_LETTERS: Final = "dead-letters"


@dataclass(frozen=True)
class AggregateRows:
    """The changed rows of an aggregate: its key, and its results."""

    name: str
    topology: int
    store: StoreSpec


@dataclass(frozen=True)
class ForwardedRows:
    """The rows that a processor forwarded."""

    name: str
    topology: int


@dataclass(frozen=True)
class ChangedEntries:
    """What changed in a store of a processor."""

    name: str
    topology: int
    store: StoreSpec
    declared: DeclaredStore


@dataclass(frozen=True)
class DeadLetters:
    """Records that can't be used: no key, no event time, or too far ahead of the clock."""

    name: str = DEAD_LETTERS


Output = AggregateRows | ForwardedRows | ChangedEntries | DeadLetters
