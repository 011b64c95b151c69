"""Cursors: where a range goes on.

A cursor names the last key an answer held and the version it was from. The next page begins right after that key, at
the same version while the replicas still hold it and at the newest otherwise, so a cursor never goes stale: no entry
comes twice, and none that was there all along is left out. To a client it is opaque text. It carries its format, and a
checksum, since a cursor that lost a letter on its way must not quietly begin somewhere else.
"""

import base64
import binascii
import zlib

import msgspec

from holdfast.errors import ErrorCategory, HoldfastError

FORMAT = 1


class BadCursor(HoldfastError):
    """A text that is no cursor, or one of another range."""

    category = ErrorCategory.INVALID


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The range it belongs to (stored keys, `stop` not included), the last key seen, and the version seen."""

    store: str
    start: bytes
    stop: bytes | None
    after: bytes
    version: int

    @property
    def next_start(self) -> bytes:
        """The smallest key greater than the last one seen."""
        return self.after + b"\x00"


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
        raise _bad(text, "is no cursor") from None
    body, checksum = data[:-4], data[-4:]
    if len(data) < 5 or zlib.crc32(body).to_bytes(4, "big") != checksum:
        raise _bad(text, "is no cursor, or not a whole one")
    if body[0] != FORMAT:
        raise _bad(text, f"is a cursor of format {body[0]}, and this instance reads format {FORMAT}")
    try:
        return msgspec.msgpack.decode(body[1:], type=Cursor)
    except msgspec.DecodeError:
        raise _bad(text, "is no cursor") from None


def _bad(text: str, fact: str) -> BadCursor:
    return BadCursor(f"{text[:100]!r} {fact}. Use the `cursor` of an answer as it is, or leave it out to begin anew.")
