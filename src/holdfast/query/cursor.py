"""Cursors: where the next page of a range, or of a query for all keys, starts.

A cursor has the last key of a page and the version of the page. The next page goes on right after that key, at the same
version while the replicas can serve it and at the newest otherwise. So a cursor never expires: no entry comes twice,
and no entry that existed all the time is left out. Clients treat it as opaque text. It has its format number and a
checksum, since a cursor that lost a letter must not silently start somewhere else.

The checksum has no secret: anyone can make a cursor. So what it says is checked like a parameter: its keys are within
the entries of the store, and it belongs to the query and the parameters of the request.
"""

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Point
from holdfast.stores.engines.base import FIRST_KEY
from holdfast.stores.formats.keys import after_prefix
from holdfast.words import Version

FORMAT = 2
COMMIT_DIGITS: Final = 8
_END: Final = after_prefix(FIRST_KEY) or b""
"""Where the entries of a store end."""


class BadCursor(HoldfastError):
    """A text that is not a cursor, or a cursor of another range."""

    category = ErrorCategory.INVALID


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The range it belongs to (stored keys, `stop` not included), the last key seen, and the version seen."""

    store: str
    start: bytes
    stop: bytes | None
    after: bytes
    version: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    reverse: bool = False
    order: Any = None
    """Of a query for all keys: the position of the last item among those of its key."""
    query: str = ""
    """The name of the query for all keys; empty for a range."""
    parameters: dict[str, str] = {}
    """Those of the query, as they were sent for its first page."""
    commit: str = ""
    """The first digits of the id of the version's commit, if it was known: a log that was set back has another one."""

    @property
    def point(self) -> Point:
        """The version seen."""
        return Point(Version(self.version), self.commit)

    @property
    def rest(self) -> tuple[bytes, bytes | None]:
        """The range that is left: what comes after the last key seen, or in reverse before it."""
        return (self.start, self.after) if self.reverse else (self.after + b"\x00", self.stop)

    @property
    def is_in_range(self) -> bool:
        """Whether the last key seen is in the range, and the range among the entries."""
        stop = _END if self.stop is None else self.stop
        return FIRST_KEY <= self.start <= self.after < stop <= _END

    def with_parameters(self, given: Mapping[str, str]) -> dict[str, str]:
        """The query's parameters: those of its first page, which may be left out later, but not changed."""
        for name, text in given.items():
            if self.parameters.get(name) != text:
                raise BadCursor(f"The cursor belongs to another query: {name} differs from that of its first page.")
        return self.parameters


def encode_cursor(cursor: Cursor) -> str:
    """
    >>> cursor = Cursor("scores", b"\\x01", None, b"\\x01k", 7)
    >>> decode_cursor(encode_cursor(cursor)) == cursor
    True
    """
    body = bytes([FORMAT]) + msgspec.msgpack.encode(cursor)
    return base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode().rstrip("=")


def decode_cursor(text: str) -> Cursor:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _bad(text, "is not a cursor") from None
    body, checksum = data[:-4], data[-4:]
    if len(data) < 5 or zlib.crc32(body).to_bytes(4, "big") != checksum:
        raise _bad(text, "is not a cursor, or not a complete one")
    if body[0] != FORMAT:
        raise _bad(text, f"is a cursor of format {body[0]}, and this instance reads format {FORMAT}")
    try:
        cursor = msgspec.msgpack.decode(body[1:], type=Cursor)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _bad(text, "is not a cursor") from None
    if not cursor.is_in_range:
        raise _bad(text, "has keys that no page ends at")
    return cursor


def _bad(text: str, fact: str) -> BadCursor:
    return BadCursor(f"{text[:100]!r} {fact}. Use the `cursor` of an answer as it is, or leave it out to start over.")
