"""Strict reading of requests: the key in the path and the parameters of the query string.

An unknown parameter is rejected: the answer would be to another question.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request

from holdfast.query.cursor import BadCursor, Cursor, decode_cursor
from holdfast.query.keytext import BadKeyText, parse_key
from holdfast.query.problems import Problem
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.keys import encode_key, prefix_range
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000


def key_in_path(request: Request, key: Schema) -> str:
    """The key's text from the path as sent: decoded here, since servers silently replace bytes that aren't UTF-8."""
    sent: bytes = request.scope["raw_path"].partition(b"?")[0].split(b"/", 5)[5]  # /v1/stores/{store}/{query}/{key}
    try:
        return unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise BadKeyText(key, f"{sent.decode('latin-1')[:200]!r} is not percent-encoded UTF-8.") from None


def parameters(request: Request, allowed: Sequence[str]) -> dict[str, str]:
    """The query's parameters, each given once and each one of those that are allowed."""
    what = f"The parameters here are {', '.join(allowed)}." if allowed else "This path takes no parameters."
    try:
        pairs = parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        fact = "The query string is not percent-encoded UTF-8."
        raise Problem(
            400, "bad_parameter", fact, f"Percent-encode text as UTF-8, such as %C3%A9 for é. {what}"
        ) from None
    given = dict(pairs)
    if unknown := [name for name in given if name not in allowed]:
        raise Problem(400, "bad_parameter", f"There is no parameter {unknown[0][:100]!r} here.", what)
    if len(given) < len(pairs):
        raise Problem(400, "bad_parameter", "A parameter is given twice.", "Give each once.")
    return given


def limit_of(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LIMIT):
        what = f"Give a number from 1 to {MAX_LIMIT}. Further entries: continue with the cursor, or with a later from."
        raise Problem(400, "bad_limit", f"limit={text[:100]!r} is not a limit.", what)
    return int(text)


def bounds_of(spec: StoreSpec, given: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    """The range in stored keys. `from` and `to` are both included, as in Kafka Streams."""
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


def cursor_of(spec: StoreSpec, text: str, start: bytes | None, stop: bytes | None) -> Cursor:
    """The cursor, if it belongs to this range. `from` and `to` may be left out beside it, but not changed."""
    cursor = decode_cursor(text)
    if cursor.store != spec.name:
        raise BadCursor(f"The cursor belongs to store {cursor.store!r}, not to {spec.name!r}.")
    if (start is not None and start != cursor.start) or (stop is not None and stop != cursor.stop):
        raise BadCursor("The cursor belongs to another range: from or to differ from those of its first page.")
    return cursor
