"""Places in the changes of a store, and the event ids that name them.

The changes of a store are in one order, which the log alone decides: by version, then by part of that version (tasks in
order, their segments in order), then by row of the part. So every instance sends the same changes under the same ids,
and a client that was cut off goes on anywhere, without gap or repeat.

    3fa9c1d2-42-9be1a4f0.0.7    the change in row 7 of part 0 of version 42
    3fa9c1d2-42-9be1a4f0        everything up to the end of version 42

The first characters are those of the log's id. An id of another log, such as one that was deleted and made again, is
not mistaken for one of this log. The others are those of the id of the version's commit: after the log was set back,
version 42 is another one. Without them (`3fa9c1d2-42`), for a version that wasn't known, any version 42 will do.
"""

import re
from typing import NamedTuple

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Commit
from holdfast.words import Version

_DIGITS = 8
_EVENT_ID = re.compile(
    rf"([0-9a-f]{{{_DIGITS}}})-([0-9]{{1,18}})(?:-([0-9a-f]{{{_DIGITS}}}))?(?:\.([0-9]{{1,9}})\.([0-9]{{1,9}}))?"
)


class BadEventId(HoldfastError):
    """A text that is not the id of an event."""

    category = ErrorCategory.INVALID


class ForeignEventId(HoldfastError):
    """The id of an event of another log, or of a timeline of this one that is abandoned."""

    category = ErrorCategory.INVALID


class EventPlace(NamedTuple):
    """Where the next change is: in a version, in a part of it, in a row of that part."""

    version: Version
    part: int = 0
    row: int = 0
    commit: str = ""
    """The first digits of the id of the commit that has the change before: that of the version, or of the one before it
    at the beginning of a version. Empty if any will do."""

    @property
    def seen(self) -> Version:
        """The version that has the change before."""
        return self.version if self.row else Version(self.version - 1)

    def is_in(self, commit: Commit) -> bool:
        """Whether the place is one of this commit, which has its version."""
        return ((commit.id if self.row else commit.previous) or "").startswith(self.commit)


def event_ids(log: str, version: Version, commit: str = "") -> str:
    """What the ids of all events of a version begin with. It is also the id of the version's end.

    >>> event_ids("3fa9c1d2" + "0" * 24, Version(42), "9be1a4f0" + "0" * 24)
    '3fa9c1d2-42-9be1a4f0'
    """
    return f"{log[:_DIGITS]}-{version}" + (f"-{commit[:_DIGITS]}" if commit else "")


def id_before(log: str, place: EventPlace) -> str:
    """The id after which a watcher goes on at this place.

    >>> log = "3fa9c1d2" + "0" * 24
    >>> id_before(log, EventPlace(Version(42), 0, 8, "9be1a4f0")), id_before(log, EventPlace(Version(43)))
    ('3fa9c1d2-42-9be1a4f0.0.7', '3fa9c1d2-42')
    """
    before = event_ids(log, place.seen, place.commit)
    return f"{before}.{place.part}.{place.row - 1}" if place.row else before


def place_after(text: str, log: str) -> EventPlace:
    """The place after the event with this id.

    >>> place_after("3fa9c1d2-42-9be1a4f0.0.7", "3fa9c1d2" + "0" * 24)
    EventPlace(version=42, part=0, row=8, commit='9be1a4f0')
    >>> place_after("3fa9c1d2-42", "3fa9c1d2" + "0" * 24)
    EventPlace(version=43, part=0, row=0, commit='')
    """
    match = _EVENT_ID.fullmatch(text)
    if match is None:
        raise BadEventId(f"{text[:100]!r} is not the id of an event. Send the last one that was received, as it is.")
    if match[1] != log[:_DIGITS]:
        raise ForeignEventId(f"The event {text!r} is of another log: this one's events begin with {log[:_DIGITS]}.")
    version, commit = int(match[2]), match[3] or ""
    if match[4] is None:
        return EventPlace(Version(version + 1), commit=commit)
    return EventPlace(Version(version), int(match[4]), int(match[5]) + 1, commit)


def abandoned(place: EventPlace) -> ForeignEventId:
    return ForeignEventId(
        f"The log was set back: version {place.seen} of commit {place.commit}, up to which changes were sent, isn't in "
        "it any more."
    )
