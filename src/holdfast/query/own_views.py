"""Read-only views of whole stores, at one version: what a user's own endpoint reads.

Each partition of each store is opened before anything is read (`opening`). So everything that an endpoint reads is of
one version, unless a replica is so far behind the others that they no longer have its version (`consistent` is False
then).

A view of a whole store has the methods of the view of its kind. It asks every partition, since a processor may write a
key in any of them; entries of several partitions come in the order of their keys. What a method of a user's own kind
returns of several partitions can't be combined here, unless it iterates: the user's code asks `partitions`.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import BadKey, ErrorCategory, HoldfastError
from holdfast.query.opening import OpenPart, OpenStores, ReadSource
from holdfast.query.queries import Kinds
from holdfast.query.reader import StoreReader
from holdfast.query.wanted_bytes import WantedBytes
from holdfast.stores.access import BEGINNING
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.kinds.base import View
from holdfast.stores.kinds.containers import EntryView
from holdfast.stores.scans import Closing
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

_OF_ONE_KEY: Final = frozenset({"get", "fetch", "find", "history"})
"""Methods of Holdfast's own kinds whose first argument is a key."""


class NotCombined(HoldfastError):
    """A method of a user's own kind was asked of a whole store."""

    category = ErrorCategory.INVALID


class WholeStore:
    """The view of a store over all its partitions, with the methods of the view of its kind."""

    def __init__(self, spec: StoreSpec, views: Sequence[View[Any, Any]]) -> None:
        self._spec = spec
        self._views = views

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def partitions(self) -> Sequence[View[Any, Any]]:
        """The view of each partition."""
        return self._views

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_") or not callable(getattr(type(self._views[0]), method, None)):
            raise AttributeError(f"the view of store {self.name!r} has no {method!r}")
        return lambda *args, **named: self._ask(method, *args, **named)

    def __getitem__(self, key: Any) -> Any:
        found = self._ask("get", key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: Any) -> bool:
        return self._ask("get", key) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def get(self, key: Any, *more: Any, **named: Any) -> Any:
        """As `get` of the view. A default is returned if no partition has the key."""
        if not isinstance(self._views[0], EntryView):
            return self._ask("get", key, *more, **named)
        found = self._ask("get", key)
        default = named.get("default", *more)
        return default if found is None else found

    def values(self) -> Iterator[Any]:
        """Every value, in the order of the keys."""
        return (value for _, value in self.items())

    def get_many(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """The values of those keys that are there, by key. Of several partitions that have one, the first counts."""
        found: dict[Any, Any] = {}
        for view in self._asked():
            found = {**view.get_many(keys), **found}  # type: ignore[attr-defined]
        return {key: self._visible(found[key]) for key in keys if key in found}

    def approximate_count(self) -> int:
        return sum(view.approximate_count() for view in self._views)

    def count(self) -> int:
        return sum(view.count() for view in self._views)

    def _ask(self, method: str, *args: Any, **named: Any) -> Any:
        views = self._asked(args[0]) if method in _OF_ONE_KEY and args else self._asked()
        first = getattr(views[0], method)(*args, **named)
        if isinstance(first, Closing | Iterator):
            others = [getattr(view, method)(*args, **named) for view in views[1:]]
            reverse = bool(named.get("reverse")) or method.startswith("reverse_")
            order = _time_order if method in _OF_ONE_KEY else self._key_order
            return (self._visible(each) for each in _merged([first, *others], order, reverse))
        self._check_combined(method)
        answers = itertools.chain([first], (getattr(view, method)(*args, **named) for view in views[1:]))
        return self._visible(next((each for each in answers if each is not None), None))

    def _check_combined(self, method: str) -> None:
        kind = type(self._views[0])
        if not getattr(kind, method).__module__.startswith("holdfast."):
            raise NotCombined(
                f"{kind.__name__}.{method}() has an answer per partition of store {self.name!r}, and Holdfast can't "
                f"combine them. Ask each one: [view.{method}(...) for view in stores[{self.name!r}].partitions]."
            )

    def _asked(self, *key: Any) -> Sequence[View[Any, Any]]:
        """The views of the partitions that may know, that of the key's hash first."""
        if not key or len(self._views) == 1:
            return self._views
        values = key[0] if len(self._spec.key.fields) > 1 else key
        first = partition_of(self._spec.key, values, len(self._views))
        if not self._spec.value.by_processor:
            return [self._views[first]]
        return [self._views[first], *self._views[:first], *self._views[first + 1 :]]

    def _key_order(self, item: Any) -> Any:
        """The sort key of an entry, a window or a session: its key, then its times. What has no key has no order."""
        key, times = item[0] if isinstance(item, tuple) else item, ()
        if isinstance(key, tuple) and hasattr(key, "start"):
            key, *times = key  # type: ignore[assignment]
        try:
            return encode_key(self._spec.key, key if len(self._spec.key.fields) > 1 else (key,)), tuple(times)
        except (TypeError, ValueError, BadKey):
            return b"", ()

    def _visible(self, found: Any) -> Any:
        """What is found, without the columns that only merges need."""
        if isinstance(found, tuple):
            if hasattr(found, "_replace"):
                return found._replace(value=self._visible(found.value)) if hasattr(found, "value") else found
            return (*found[:-1], self._visible(found[-1])) if len(found) == 2 else found
        return self._spec.value.visible(found)


def _merged(parts: Sequence[Iterable[Any]], order: Callable[[Any], Any], reverse: bool) -> Iterator[Any]:
    try:
        yield from heapq.merge(*parts, key=order, reverse=reverse) if len(parts) > 1 else parts[0]
    finally:
        for part in parts:
            if isinstance(part, Closing):
                part.close()


def _time_order(item: Any) -> Any:
    """The sort key of one of the windows, sessions or values that a key has had."""
    if hasattr(item, "timestamp"):
        return (item.timestamp,)
    first: Any = item[0] if isinstance(item, tuple) else None
    if hasattr(first, "end"):
        return first.end, first.start
    return (first,) if isinstance(first, int) else ()


@dataclass(frozen=True)
class WholeStores:
    """The stores that an endpoint reads, while it runs."""

    source: ReadSource
    time: int
    stores: Mapping[str, WholeStore]

    @property
    def version(self) -> Version:
        return self.source.version

    def __getitem__(self, store: View[Any, Any] | str) -> WholeStore:
        name = store if isinstance(store, str) else store.name
        if name not in self.stores:
            raise KeyError(f"{name!r} is not one of the stores that reads= names: {', '.join(self.stores)}")
        return self.stores[name]


def views_of(
    reader: StoreReader, kinds: Kinds, reads: Mapping[str, View[Any, Any] | None], opened: OpenStores
) -> WholeStores:
    """The views of these stores, all of whose parts are open."""
    source, stores = opened.source, {}
    for name, declared in reads.items():
        spec = reader.specs.at(name, source.version)
        parts = [part for part in opened.parts if part.place.store == name]
        stores[name] = WholeStore(spec, [_view(kinds, spec, declared, part) for part in parts])
    now = source.now
    time = now.wall if now.event is None or now.event == BEGINNING else now.event
    return WholeStores(source, time, stores)


def _view(kinds: Kinds, spec: StoreSpec, declared: Any, part: OpenPart) -> View[Any, Any]:
    bytes_ = WantedBytes(part)
    if declared is None:
        return kinds.view(spec, bytes_, part.store.now)
    view: View[Any, Any] = declared.bind(bytes_, part.store.now, spec=spec).read_only()
    return view
