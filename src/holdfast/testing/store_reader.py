"""A store of an app in a test: all partitions together, with the methods of its read-only view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.stores.access import ENTRY_SCHEMA, DictBytes, Now
from holdfast.stores.kinds import view_of
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.scans import Closing
from holdfast.topology.topology import SubTopology

_ALL: dict[str, tuple[None, ...]] = {"items": (), "fetch_all": (), "find_keys": (None, None)}
"""The methods that return everything, with their arguments: of key-value, window and session stores."""


class StoreInTest:
    """Reads a store in all partitions: `get(key)`, `items()`, and whatever else the store's kind can answer.

    Results that are many come as a list, in the order of keys within a partition.
    """

    def __init__(self, subtopology: SubTopology, place: int, partitions: Sequence[DictBytes], now: Now) -> None:
        spec, operator = subtopology.stores[place], subtopology.operator
        self._spec, self._partitions = spec, partitions
        if (declared := operator.declared(spec.name)) is not None:
            self._views: list[Any] = [declared.bind(each, now, spec=spec).read_only() for each in partitions]
            self._hidden: frozenset[str] = frozenset()
        else:
            self._views = [view_of(spec, each, now) for each in partitions]
            self._hidden = frozenset(field.name for field in spec.columns.fields if field.hidden_in)

    def get(self, *key: Any) -> Any:
        """What the store has for a key, None if nothing."""
        return self._ask("get", *key)

    def get_many(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """The values of those keys that are there, by key."""
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def items(self) -> list[tuple[Any, Any]]:
        """All entries, windows and sessions as (key, value)."""
        for method, args in _ALL.items():
            if hasattr(self._views[0], method):
                found: list[tuple[Any, Any]] = self._ask(method, *args)
                return sorted(found, key=lambda entry: str(entry[0]))
        latest = ((key, self.get(key)) for key in self._keys())
        return sorted(((key, value) for key, value in latest if value is not None), key=lambda entry: str(entry[0]))

    def _keys(self) -> Iterator[Any]:
        """The keys that a store without a method for it has: a versioned store."""
        layout = layout_of(self._spec)
        for entries in self._partitions:
            rows = list(entries.scan(b"", None))
            table = pa.table([[key for key, _ in rows], [cell for _, cell in rows]], schema=ENTRY_SCHEMA)
            columns = layout.key_columns(layout.changed(table).keys).values()
            keys = zip(*(column.to_pylist() for column in columns), strict=True)
            yield from (key[0] if len(key) == 1 else key for key in keys)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **options: self._ask(name, *args, **options)

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Asks every partition. A key is in one of them."""
        answers = [getattr(view, method)(*args, **options) for view in self._views]
        if isinstance(answers[0], Closing | Iterator):
            return [self._shown(each) for answer in answers for each in answer]
        return self._shown(next((answer for answer in answers if answer is not None), None))

    def _shown(self, value: Any) -> Any:
        """A value without the columns that only merges need."""
        if not self._hidden:
            return value
        if isinstance(value, dict):
            return {name: each for name, each in value.items() if name not in self._hidden}
        if isinstance(value, tuple):
            parts = [self._shown(each) for each in value]
            return tuple(parts) if type(value) is tuple else type(value)(*parts)  # a named tuple
        return value
