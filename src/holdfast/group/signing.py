"""Signatures of the objects of a group: heartbeats of members and of the driver, and generations.

    {"checksum":"<xxh3_128 of the rest>","signature":"<HMAC-SHA256>","format":1,...}

Anyone who can write to the log can write an object with the right checksum. Where the processes of an app share a
token, each of them signs what it writes, and ignores what isn't signed by one of its tokens. A signature covers the
name of the object, the id of the log, and every byte after it, so an object can't be put under another name or into
another log. An older object of the same name can be put back: it is as outdated as a heartbeat that arrives late.

What operators ask (`<id>.drain`) isn't signed: their commands need no token. Without a token nothing is signed, and
everything is believed as before.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DamagedObject
from holdfast.log import documents, names
from holdfast.log.objects import Names, Put, Storage

_PURPOSE = b"holdfast: objects of a group"
_HASH = "sha256"


class NotSigned(DamagedObject):
    """An object of the group that nobody with a token of the app has written."""

    def __init__(self, name: str, place: str) -> None:
        super().__init__(
            f"{name} in {place} isn't signed by a token that this process accepts. If an instance or the driver of "
            "this app writes it, give that process the same security.token_file and restart it. If not, someone else "
            "writes to the log: see docs/security.md."
        )


def keys_of(tokens: Iterable[bytes]) -> tuple[bytes, ...]:
    """The keys for these tokens. A token itself is used for nothing but to be shown to instances."""
    return tuple(hmac.digest(token, _PURPOSE, _HASH) for token in tokens)


def signature(key: bytes, name: str, log: str, body: bytes) -> str:
    """
    >>> signature(b"key", "group/driver.json", "log-1", b'"format":1}')[:16]
    '81501c45c3599abc'
    """
    return hmac.digest(key, b"\0".join((name.encode(), log.encode(), body)), _HASH).hex()


def signed(data: bytes, key: bytes, name: str, log: str) -> bytes:
    """A document with its signature."""
    body = documents.body_of(data)
    return documents.with_body(b'"signature":"%b",%b' % (signature(key, name, log, body).encode(), body))


def is_signed(data: bytes, keys: Sequence[bytes], name: str, log: str) -> bool:
    """Whether a document has a signature by one of these keys."""
    head, found, rest = documents.body_of(data).partition(b'"signature":"')
    given, end, body = rest.partition(b'",')
    if head or not found or not end:
        return False
    return any(hmac.compare_digest(given, signature(key, name, log, body).encode()) for key in keys)


@dataclass(frozen=True)
class SignedStorage:
    """The storage of a log, as processes with these keys see it: what they write under `group/` is signed, and what
    isn't signed there is as damaged as an object without its checksum."""

    inner: Storage
    log: str
    keys: Sequence[bytes]
    """All are accepted, and the first one signs."""

    @property
    def place(self) -> str:
        return self.inner.place

    def create(self, name: str, data: bytes) -> Put:
        return self.inner.create(name, self._signed(name, data))

    def create_file(self, name: str, path: Path) -> None:
        self.inner.create_file(name, path)

    def replace(self, name: str, data: bytes) -> None:
        self.inner.replace(name, self._signed(name, data))

    def get(self, name: str) -> bytes:
        return self._checked(name, self.inner.get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._checked(name, self.inner.get_range(name, start, length))

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def list(self, prefix: str, after: str | None = None, before: str | None = None) -> Names:
        return self.inner.list(prefix, after, before)

    def list_flat(self, prefix: str) -> Names:
        return self.inner.list_flat(prefix)

    def delete(self, names: Iterable[str]) -> None:
        self.inner.delete(names)

    def _signed(self, name: str, data: bytes) -> bytes:
        return signed(data, self.keys[0], name, self.log) if names.is_of_group(name) else data

    def _checked(self, name: str, data: bytes) -> bytes:
        if names.is_of_group(name) and not is_signed(data, self.keys, name, self.log):
            raise NotSigned(name, self.place)
        return data


def signing(storage: Storage, log: str, tokens: Sequence[bytes]) -> Storage:
    """The storage of a log for a process that has these tokens."""
    return SignedStorage(storage, log, keys_of(tokens)) if tokens else storage
