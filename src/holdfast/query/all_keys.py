"""A query for all keys, such as all windows between two times, page by page.

Items come by key, then in the order of the query. A page ends between two positions, so several items at one position
(two tasks that have the same window of a key, or duplicates) are on one page, as `paging` says.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from holdfast.errors import BadKey, DamagedObject
from holdfast.query.cursor import COMMIT_DIGITS, BadCursor, Cursor, encode_cursor
from holdfast.query.keytext import parse_key, render_key
from holdfast.query.opening import OpenPart, ReadSource
from holdfast.query.problems import problem_of
from holdfast.query.queries import AskedQuery, Kinds, Placed, Source
from holdfast.stores.engines.base import FIRST_KEY
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
        self, kinds: Kinds, spec: StoreSpec, query: Query, given: Mapping[str, str], cursor: Cursor | None
    ) -> None:
        super().__init__(kinds, spec, query, given)
        self._first, self._last = (self._bound(spec, given.get(name)) for name in ("key_from", "key_to"))
        self._after = None if cursor is None else _position(spec, cursor)

    def placed(self, spec: StoreSpec, part: OpenPart) -> Generator[Placed, None, None]:
        for each in super().placed(spec, part):
            if self._after is None or _is_later(each.position, self._after):
                yield each

    def after(self, last: Placed, source: ReadSource, given: Mapping[str, str]) -> str:
        """The cursor of the page after an item, of a query with these parameters."""
        key, order = last.position
        name, store = self._query.name, self._spec.name
        commit = source.commit[:COMMIT_DIGITS]
        cursor = Cursor(
            store,
            FIRST_KEY,
            None,
            key,
            source.version,
            order=order,
            query=name,
            parameters=dict(given),
            commit=commit,
        )
        return encode_cursor(cursor)

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


def _position(spec: StoreSpec, cursor: Cursor) -> Position:
    """Where the page before ended. Its key is one that the store can have."""
    try:
        is_key = encode_key(spec.key, decode_key(spec.key, cursor.after)) == cursor.after
    except (DamagedObject, BadKey, ValueError, OverflowError):  # the last two: a date beyond those of Python
        is_key = False
    if not is_key:
        raise BadCursor(f"The cursor has a key that store {spec.name!r} can't have: its key is ({spec.key}).")
    return Position(cursor.after, _comparable(cursor.order))


def _is_later(position: Position, after: Position) -> bool:
    try:
        return position > after
    except TypeError:
        # Not the error itself: it would be kept as one of the store.
        raise problem_of(BadCursor("The cursor has a position that items of this query don't have.")) from None


def _comparable(order: Any) -> Any:
    return tuple(order) if isinstance(order, list) else order
