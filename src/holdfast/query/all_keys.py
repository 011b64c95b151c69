"""A query for all keys, such as all windows between two times, page by page.

Items come by key, then in the order of the query. A page ends between two positions, so several items at one position
(two tasks that have the same window of a key, or duplicates) are on one page, as `paging` says.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from holdfast.query.cursor import Cursor
from holdfast.query.keytext import parse_key, render_key
from holdfast.query.opening import OpenPart
from holdfast.query.queries import AskedQuery, Kinds, Placed, Source
from holdfast.stores.formats.keys import decode_key, encode_key
from holdfast.stores.kinds.base import View
from holdfast.stores.kinds.queries import Item, Query
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId


class Position(NamedTuple):
    """Where an item is among all items."""

    key: bytes
    order: Any


class AskedAll(AskedQuery):
    """A query about all keys between two keys, after a position."""

    WHOLE_POSITIONS = True

    def __init__(
        self, kinds: Kinds, spec: StoreSpec, query: Query, given: Mapping[str, Any], cursor: Cursor | None
    ) -> None:
        super().__init__(kinds, spec, query, given)
        self._first, self._last = (self._bound(spec, given.get(name)) for name in ("key_from", "key_to"))
        self._after = None if cursor is None else Position(cursor.after, _comparable(cursor.order))

    def placed(self, spec: StoreSpec, part: OpenPart) -> Generator[Placed, None, None]:
        for each in super().placed(spec, part):
            if self._after is None or each.position > self._after:
                yield each

    def _source(self, spec: StoreSpec) -> Source:
        assert self._query.all_keys is not None
        first = self._first if self._after is None else max(self._first or self._after.key, self._after.key)
        return partial(_of_all, self._query.all_keys, self._python(spec, first), self._python(spec, self._last))

    def _placed(self, item: Item, spec: StoreSpec, task: TaskId) -> Placed:
        key = item["key"]
        values = key if isinstance(key, tuple) else (key,)
        shown, size = self._shown({**item, "key": None}, spec)
        shown["key"] = render_key(spec.key, values)
        encoded = encode_key(spec.key, values)
        return Placed(Position(encoded, _comparable(self._query.order(item))), shown, size + len(encoded), task)

    def _bound(self, spec: StoreSpec, text: str | None) -> bytes | None:
        return None if text is None else encode_key(spec.key, parse_key(spec.key, text))

    def _python(self, spec: StoreSpec, key: bytes | None) -> Any:
        """A key as the store's view takes it."""
        if key is None:
            return None
        values = decode_key(spec.key, key)
        return values[0] if len(values) == 1 else values


def _of_all(
    query: Callable[..., Iterable[Item]], first: Any, last: Any, view: View[Any, Any], given: Mapping[str, Any]
) -> Iterable[Item]:
    return query(view, first, last, **given)


def _comparable(order: Any) -> Any:
    return tuple(order) if isinstance(order, list) else order
