"""Objects: what the log asks of a storage, and what can go wrong there.

An object is created once, whole or not at all, and never changed; only heartbeats are replaced. That one promise,
create-if-absent, is all the coordination Holdfast has.

A failure is one of four things, so that nobody reads messages to decide: the object isn't there (`ObjectMissing`), the
storage is briefly away (`StorageUnavailable`, tried again within limits before anyone sees it), it will say no again
(`StorageRefused`), or there is no room (`DiskFull`). Messages name the storage and the object and never a secret.
"""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Protocol

from holdfast.errors import ErrorCategory, HoldfastError

Names = list[str]
"""Names of objects; `list` itself is what a storage calls the listing of them."""


class Put(Enum):
    """How a create ended. `EXISTS` may also be one's own object, when a put was stored and answered with an error."""

    CREATED = "created"
    EXISTS = "exists"


class ObjectMissing(HoldfastError):
    """An object that should be there is not."""

    category = ErrorCategory.DATA

    def __init__(self, place: str, name: str) -> None:
        super().__init__(
            f"{name} isn't in {place}. It was cleaned, deleted by hand, or never written; read again from the newest "
            "snapshot, and keep other programs away from the log's folder."
        )
        self.name = name


class StorageRefused(HoldfastError):
    """The storage said no, and would say so again."""

    category = ErrorCategory.INVALID


class DiskFull(StorageRefused):
    """There is no room, or the quota is used up."""


class Storage(Protocol):
    """Named objects, created whole or not at all. Safe to use from several threads."""

    @property
    def place(self) -> str:
        """Where this is, fit for a message: an address without secrets."""

    def create(self, name: str, data: bytes) -> Put:
        """Stores a new object; on return it is durable. An object that is there stays as it is."""

    def create_file(self, name: str, path: Path) -> None:
        """Stores a file's bytes without holding them all, under a name that says what is in it.

        For names that are content hashes only: where one is there already, its bytes are these.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Stores an object over what was there. For heartbeats only."""

    def get(self, name: str) -> bytes:
        """The whole object, or ObjectMissing."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer where the object ends before. ObjectMissing if it isn't there."""

    def exists(self, name: str) -> bool: ...

    def list(self, prefix: str, after: str | None = None) -> Names:
        """The names under a folder at any depth, sorted; only those that sort after `after` if given."""

    def list_flat(self, prefix: str) -> Names:
        """The names directly in a folder, sorted."""

    def delete(self, names: Iterable[str]) -> None:
        """Takes objects away, in no order one may rely on. One that isn't there is no error."""
