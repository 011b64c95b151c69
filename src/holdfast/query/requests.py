"""Strict reading of what a request says about keys: the key in the path, bounds of ranges, cursors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from holdfast.log.commits import Point
from holdfast.query.cursor import COMMIT_DIGITS, BadCursor, Cursor, decode_cursor, encode_cursor
from holdfast.query.keytext import BadKeyText, parse_key
from holdfast.query.opening import ReadSource
from holdfast.query.problems import Problem
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.keys import encode_key, prefix_range
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec


def key_in_path(request: Request, key: Schema) -> str:
    """The key's text from the path as sent: decoded here, since servers silently replace bytes that aren't UTF-8."""
    *places, sent = request.scope["raw_path"].partition(b"?")[0].split(b"/", 5)  # /v1/stores/{store}/{query}/{key}
    if len(places) != 5 or any(b"/" in unquote_to_bytes(place) for place in places):
        # The route was found by the decoded path, in which the key would begin somewhere else.
        fact = f"{request.scope['raw_path'].decode('latin-1')[:200]!r} has a percent-encoded slash before the key."
        raise Problem(400, "bad_request", fact, "Encode slashes in keys only.")
    try:
        return unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise BadKeyText(key, f"{sent.decode('latin-1')[:200]!r} is not percent-encoded UTF-8.") from None


def bounds_of(spec: StoreSpec, given: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    """The range in stored keys. `from` and `to` are both included, as in Kafka Streams."""
    if "prefix" in given:
        if "from" in given or "to" in given:
            what = "Give prefix=, or from= and to=."
            raise Problem(400, "bad_parameter", "prefix= is given beside from= or to=.", what)
        return prefix_range(spec.key, parse_key(spec.key, given["prefix"], whole=False))
    start = _span(spec, given["from"])[0] if "from" in given else FIRST_KEY
    stop = _span(spec, given["to"])[1] if "to" in given else None
    return start, stop


def _span(spec: StoreSpec, text: str) -> tuple[bytes, bytes | None]:
    """The stored keys of a bound: one key, or all keys that start with the given components."""
    values = parse_key(spec.key, text, whole=False)
    if len(values) < len(spec.key.fields):
        return prefix_range(spec.key, values)
    key = encode_key(spec.key, values)
    return key, key + b"\x00"  # no key is between a key and the same key with a zero byte


def cursor_of(spec: StoreSpec, given: Mapping[str, Any]) -> Cursor | None:
    """The cursor of a request, if it belongs to this range. The range may be left out beside it, but not changed."""
    if "cursor" not in given:
        return None
    cursor = cursor_for(spec, "", given["cursor"])
    start, stop = bounds_of(spec, given)
    starts, stops = "from" in given or "prefix" in given, "to" in given or "prefix" in given
    if (starts and start != cursor.start) or (stops and stop != cursor.stop):
        raise BadCursor("The cursor belongs to another range: from or to differ from those of its first page.")
    if given.get("reverse", cursor.reverse) != cursor.reverse:
        raise BadCursor("The cursor belongs to a range in the other direction: reverse differs from its first page.")
    return cursor


def cursor_for(spec: StoreSpec, query: str, text: str) -> Cursor:
    """The cursor of a text, if it belongs to this store and this query for all keys, or to a range of it."""
    cursor = decode_cursor(text)
    if cursor.store != spec.name:
        raise BadCursor(f"The cursor belongs to store {cursor.store[:200]!r}, not to {spec.name!r}.")
    if cursor.query != query:
        names = [f"the query {name[:200]!r}" if name else "a range" for name in (cursor.query, query)]
        raise BadCursor(f"The cursor belongs to {names[0]} of the store, not to {names[1]}.")
    return cursor


@dataclass(frozen=True)
class Range:
    """A range of a request: all of it, and what is left of it after a cursor."""

    start: bytes
    stop: bytes | None
    reverse: bool
    cursor: Cursor | None

    @property
    def rest(self) -> tuple[bytes, bytes | None]:
        return (self.start, self.stop) if self.cursor is None else self.cursor.rest

    @property
    def before(self) -> Point | None:
        """The version of the page before, with the first digits of its commit's id."""
        return None if self.cursor is None else self.cursor.point

    def after(self, store: str, key: bytes, source: ReadSource) -> str:
        """The cursor of the page after this key."""
        version, commit = source.version, source.commit[:COMMIT_DIGITS]
        return encode_cursor(Cursor(store, self.start, self.stop, key, version, self.reverse, commit=commit))


def range_of(spec: StoreSpec, given: Mapping[str, Any]) -> Range:
    cursor = cursor_of(spec, given)
    if cursor is not None:
        return Range(cursor.start, cursor.stop, cursor.reverse, cursor)
    return Range(*bounds_of(spec, given), given.get("reverse", False), None)
