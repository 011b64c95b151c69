"""What operators ask of an app: a pause of all of it, or a drain of one instance. Each is an object in the log.

The object is there until the request is withdrawn, also while nothing runs. It says who asked, and why, for people.
"""

import getpass
import os
import socket

import msgspec

from holdfast.errors import DamagedObject
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Storage

FORMAT = 1
LARGEST = 64 << 10
"""The bytes of such an object that are read at most."""


class OperatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for something, and why."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)
    log: str
    by: str
    note: str = ""

    def __str__(self) -> str:
        """
        >>> str(OperatorRequest(log="l", by="ann on host", note="the disk is replaced"))
        'by ann on host: the disk is replaced'
        """
        return f"by {self.by}: {self.note}" if self.note else f"by {self.by}"


def operator() -> str:
    """The user of this process and its host, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"  # a container may have no name for it
    return f"{user} on {socket.gethostname()}"


def ask(storage: Storage, name: str, log: str, note: str = "") -> OperatorRequest:
    request = OperatorRequest(log=log, by=operator(), note=note)
    storage.replace(name, documents.encode(request))
    return request


def pause(storage: Storage, log: str, note: str = "") -> tuple[OperatorRequest, OperatorRequest | None]:
    """Pauses the app. Returns the pause and, if there was one, the one before, which stays if there is no new note."""
    try:
        before = pause_of(storage, log)
    except DamagedObject:
        before = None  # the new one replaces it
    if before is not None and not note:
        return before, before
    return ask(storage, names.PAUSE, log, note), before


def withdraw(storage: Storage, name: str) -> None:
    storage.delete([name])


def read(storage: Storage, name: str, log: str) -> OperatorRequest | None:
    """The request under a name; None if there is none. Raises DamagedObject for one that can't be read."""
    try:
        request = documents.fetch(storage, name, OperatorRequest, known=FORMAT, largest=LARGEST)
    except ObjectMissing:
        return None
    if request.log != log:
        raise documents.damaged(name, storage.place, f"it belongs to the log {request.log}, and this is the log {log}")
    return request


def pause_of(storage: Storage, log: str) -> OperatorRequest | None:
    """The pause of the app; None while it may run."""
    return read(storage, names.PAUSE, log)
