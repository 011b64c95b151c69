"""Cursors: where the next page of a range starts.

A cursor has the last key of a page and the version of the page. The next page goes on right after that key, at the same
version while the replicas can serve it and at the newest otherwise. So a cursor never expires: no entry comes twice,
and no entry that existed all the time is left out. Clients treat it as opaque text. It has its format number and a
checksum, since a cursor that lost a letter must not silently start somewhere else.
"""

import base64
import binascii
import zlib
from typing import Any

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError

FORMAT = 2


class BadCursor(HoldfastError):
    """A text that is not a cursor, or a cursor of another range."""

    category = ErrorCategory.INVALID


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The range it belongs to (stored keys, `stop` not included), the last key seen, and the version seen."""

    store: str
    start: bytes
    stop: bytes | None
    after: bytes
    version: int
    reverse: bool = False
    order: Any = None
    """Of a query for all keys: the position of the last item among those of its key."""

    @property
    def rest(self) -> tuple[bytes, bytes | None]:
        """The range that is left: what comes after the last key seen, or in reverse before it."""
        return (self.start, self.after) if self.reverse else (self.after + b"\x00", self.stop)


def encode_cursor(cursor: Cursor) -> str:
    """
    >>> text = encode_cursor(Cursor("scores", b"", None, b"k", 7))
    >>> decode_cursor(text) == Cursor("scores", b"", None, b"k", 7)
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
        return msgspec.msgpack.decode(body[1:], type=Cursor)
    except msgspec.DecodeError:
        raise _bad(text, "is not a cursor") from None


def _bad(text: str, fact: str) -> BadCursor:
    return BadCursor(f"{text[:100]!r} {fact}. Use the `cursor` of an answer as it is, or leave it out to start over.")
