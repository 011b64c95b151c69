"""Documents: small JSON objects that carry their checksum, so that an altered one is an error and never an answer.

    {"checksum":"<xxh3_128 of the rest>","format":1,...}

The checksum comes first, at a fixed offset, and covers every byte after it. The object is plain JSON for any reader,
and a changed digit in a number, which would still parse, is detected.
"""

from typing import TypeVar

import msgspec
import xxhash

from holdfast.errors import DamagedObject, ErrorCategory, HoldfastError
from holdfast.log.objects import Storage

T = TypeVar("T")

_HEAD = b'{"checksum":"'
_DIGEST = 32
_BODY = len(_HEAD) + _DIGEST + 2  # after the closing quote and the comma
_encoder = msgspec.json.Encoder(order="deterministic")


class UnknownFormat(HoldfastError):
    """An object in a format this release doesn't know."""

    category = ErrorCategory.INVALID


def damaged(name: str, place: str, fact: str) -> DamagedObject:
    return DamagedObject(f"{name} in {place} is damaged: {fact}. Restore the object from a backup.")


class _Format(msgspec.Struct):
    format: int


def checksum(data: bytes | memoryview) -> str:
    """
    >>> checksum(b"abc")
    '06b05ab6733a618578af5f94892f3950'
    """
    return xxhash.xxh3_128_hexdigest(data)


def encode(document: msgspec.Struct) -> bytes:
    """A struct with a `format` field as a document.

    >>> encode(_Format(1))
    b'{"checksum":"34e23e007b2d3d613b4b9e24e2f5ba0b","format":1}'
    """
    return with_body(_encoder.encode(document)[1:])


def with_body(body: bytes) -> bytes:
    """The document with these bytes after its checksum."""
    return _HEAD + checksum(body).encode() + b'",' + body


def body_of(data: bytes) -> bytes:
    """All bytes of a document after its checksum."""
    return data[_BODY:]


def fetch(storage: Storage, name: str, struct: type[T], *, known: int, largest: int) -> T:
    """The struct in a document that anyone may have written, so no more than `largest` bytes of it are read."""
    data = storage.get_range(name, 0, largest + 1)
    if len(data) > largest:
        raise damaged(name, storage.place, f"it has more than {largest} bytes")
    return decode(data, struct, name=name, place=storage.place, known=known)


def decode(data: bytes, struct: type[T], *, name: str, place: str, known: int) -> T:
    """The struct in a document. `name` and `place` are for errors; `known` is the newest format this release reads."""
    body = memoryview(data)[_BODY:]
    expected = checksum(body)
    found = data[len(_HEAD) : len(_HEAD) + _DIGEST].decode("ascii", "replace")
    if not data.startswith(_HEAD) or data[_BODY - 2 : _BODY] != b'",' or found != expected:
        raise damaged(name, place, f"its {len(data)} bytes have the checksum {expected}, but it says {found!r}")
    text = b"{" + bytes(body)
    try:
        written = msgspec.json.decode(text, type=_Format).format
        if written > known:
            raise UnknownFormat(
                f"{name} in {place} has format {written}; this release reads up to {known}. Use the Holdfast release "
                "that wrote it, or a newer one."
            )
        return msgspec.json.decode(text, type=struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, place, f"it isn't what its name says: {error}") from error
