"""Objects: what the log requires of a storage, and what can go wrong there.

An object is created once, completely or not at all, and never changed. This guarantee, create-if-absent, is the only
coordination Holdfast has. Heartbeats and what operators ask for are the exception: `replace` overwrites them, and
nothing relies on the order in which two of them arrive.

There are four failures, so that callers never have to read messages: the object doesn't exist (`ObjectMissing`), the
storage is temporarily unavailable (`StorageUnavailable`, raised after all retries), it rejects the request and would
again (`StorageRefused`), or it is full (`StorageFull`). Messages name the storage and the object and have no secrets.
"""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Protocol

from holdfast.errors import ErrorCategory, HoldfastError

Names = list[str]
"""Names of objects. (`list` is a method of storages.)"""


class Put(Enum):
    """The result of a create. `EXISTS` may also be one's own object: a put that was stored but answered by an error."""

    CREATED = "created"
    EXISTS = "exists"


class ObjectMissing(HoldfastError):
    """An object that should exist doesn't."""

    category = ErrorCategory.DATA

    def __init__(self, place: str, name: str) -> None:
        super().__init__(
            f"{name} isn't in {place}. It was cleaned, deleted by hand, or never written. Start again from the newest "
            "snapshot, and keep other programs away from the log's folder."
        )
        self.name = name


class StorageRefused(HoldfastError):
    """The storage rejected the request, and would again."""

    category = ErrorCategory.INVALID


class StorageFull(StorageRefused):
    """The storage is full, or the quota is used up."""


class Storage(Protocol):
    """Named objects, created completely or not at all. Can be used from several threads."""

    @property
    def place(self) -> str:
        """The address for messages, without secrets."""

    def create(self, name: str, data: bytes) -> Put:
        """Stores a new object durably. An existing object is left unchanged."""

    def create_file(self, name: str, path: Path) -> None:
        """Stores a file's bytes without reading them all into memory.

        Only for names that are content hashes: if the name exists, the content is the same.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Stores an object in place of the one there was, completely or not at all. It may be lost in a power failure.

        Only for heartbeats and for what operators ask.
        """

    def get(self, name: str) -> bytes:
        """The whole object, or ObjectMissing."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, or fewer if the object ends before that; ObjectMissing if it doesn't exist."""

    def exists(self, name: str) -> bool: ...

    def list(self, prefix: str, after: str | None = None, before: str | None = None) -> Names:
        """The names under a folder at any depth, sorted; only those that sort after `after` and before `before`."""

    def list_flat(self, prefix: str) -> Names:
        """The names directly in a folder, sorted."""

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects in any order. A missing one is not an error."""
