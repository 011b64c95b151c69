"""Reading along: one request for the keys that user code is about to look up one by one.

A punctuator iterates over one store and looks up each key in another, which would be a request per key. So a lookup of
a key that is not known yet reads the following ones along: of the keys that another store's iteration has returned, or
of a run of their components, those after it. First 64, then twice as many per request, so that code that looks up few
of the keys it has iterated over reads few.

    for (due, player), _ in self.due.range(to=(now,)):     # iterated: (due, player)
        self.games.get(player)                             # the player is one of the components
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from holdfast.pipeline.store_state import LATER_PAGES, StoreState
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.typed_keys import keys_decoder
from holdfast.stores.kinds.base import Store
from holdfast.stores.kinds.global_store import GlobalStore
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec

FIRST: Final = 64
"""How many keys the first lookup of a store reads along. Each later one reads twice as many."""


Run = tuple[list[bytes], dict[bytes, int]]


@dataclass(frozen=True)
class _Iterated:
    """The keys of one store's iteration as keys of another one: own keys, and their places among them."""

    page: int
    runs: list[Run]


class ReadAlong:
    """Names the keys that a lookup in one store reads along.

    `states` are those of all stores of the task, each with its spec.
    """

    def __init__(
        self,
        bound: Store[Any, Any] | GlobalStore[Any, Any],
        spec: StoreSpec,
        states: Sequence[tuple[StoreSpec, StoreState]],
    ) -> None:
        self._bound, self._spec, self._layout = bound, spec, layout_of(spec)
        self._decoded = keys_decoder(spec.key)
        self._others = [(other, state) for other, state in states if other is not spec and _runs(other, spec)]
        self._known: dict[str, _Iterated] = {}
        self._most = FIRST

    def __call__(self, key: bytes) -> list[bytes]:
        """The stored keys to read along with this one; none if no iteration has returned it."""
        if key[:1] not in self._layout.entry_areas:
            return []
        own = self._layout.own_key(key)
        for spec, state in self._others:
            for keys, places in self._iterated(spec, state):
                if (place := places.get(own)) is not None:
                    following = keys[place : place + self._most]
                    self._most = min(2 * self._most, LATER_PAGES)
                    return self._bound.prefetch(self._decoded(following), [0] * len(following)).keys
        return []

    def _iterated(self, spec: StoreSpec, state: StoreState) -> list[Run]:
        if not state.iterated:
            return []
        known = self._known.get(spec.name)
        if known is None or known.page != state.iterated_page:
            known = self._known[spec.name] = _Iterated(state.iterated_page, self._as_own(spec, state.iterated))
        return known.runs

    def _as_own(self, spec: StoreSpec, stored: Sequence[bytes]) -> list[Run]:
        layout = layout_of(spec)
        entries = [layout.own_key(key) for key in stored if key[:1] in layout.entry_areas]
        columns = list(layout.key_columns(pa.array(entries, pa.binary())).values())
        width, found = len(self._spec.key.fields), []
        for first in _runs(spec, self._spec):
            encoded = encode_keys(self._spec.key, columns[first : first + width]).to_pylist()
            keys = list(dict.fromkeys(encoded))
            found.append((keys, {key: place for place, key in enumerate(keys)}))
        return found


def _runs(iterated: StoreSpec, looked_up: StoreSpec) -> list[int]:
    """Where in a store's key the components are that can be a key of another store."""
    there = [field.type for field in iterated.key.fields]
    wanted = [field.type for field in looked_up.key.fields]
    return [first for first in range(len(there) - len(wanted) + 1) if there[first : first + len(wanted)] == wanted]
