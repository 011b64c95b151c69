"""The log's identity: `log.json`, written once, says which log this is and which app it belongs to.

Everything else in the log carries the log's id, so that objects of another log in the same folder are noticed. What the
app consists of is in the app files, which come and go with the app's releases; the identity stays.
"""

import msgspec

from holdfast.chance import Random, new_id
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log import documents, names
from holdfast.log.objects import ObjectMissing, Storage

FORMAT = 1


class OtherApp(HoldfastError):
    """The log belongs to another app than the one that was named."""

    category = ErrorCategory.INVALID


class LogIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which log this is. A new log in the same folder has another id."""

    format: int = FORMAT
    id: str
    app: str


def read(storage: Storage) -> LogIdentity | None:
    """The identity of the log in this storage; None if there is no log."""
    try:
        data = storage.get(names.LOG)
    except ObjectMissing:
        return None
    return documents.decode(data, LogIdentity, name=names.LOG, place=storage.place, known=FORMAT)


def create(storage: Storage, app: str, random: Random) -> LogIdentity:
    """The identity of the log, which is created if there is none. Of two starts at once, one creates it."""
    found = read(storage)
    while found is None:
        storage.create(names.LOG, documents.encode(LogIdentity(id=new_id(random), app=app)))
        found = read(storage)
    return found
