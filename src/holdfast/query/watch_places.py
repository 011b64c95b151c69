"""Places in the changes of a store, and the event ids that name them.

The changes of a store are in one order, which the log alone decides: by version, then by part of that version (tasks in
order, their segments in order), then by row of the part. So every instance sends the same changes under the same ids,
and a client that was cut off goes on anywhere, without gap or repeat.

    3fa9c1d2-42.0.7    the change in row 7 of part 0 of version 42
    3fa9c1d2-42        everything up to the end of version 42

The first characters are those of the log's id. An id of another log, such as one that was deleted and made again, is
not mistaken for one of this log.
"""

import re
from typing import NamedTuple

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.words import Version

_LOG_DIGITS = 8
_EVENT_ID = re.compile(rf"([0-9a-f]{{{_LOG_DIGITS}}})-([0-9]{{1,18}})(?:\.([0-9]{{1,9}})\.([0-9]{{1,9}}))?")


class BadEventId(HoldfastError):
    """A text that is not the id of an event."""

    category = ErrorCategory.INVALID


class ForeignEventId(HoldfastError):
    """The id of an event of another log."""

    category = ErrorCategory.INVALID


class EventPlace(NamedTuple):
    """Where the next change is: in a version, in a part of it, in a row of that part."""

    version: Version
    part: int = 0
    row: int = 0


def event_ids(log: str, version: Version) -> str:
    """What the ids of all events of a version begin with. It is also the id of the version's end.

    >>> event_ids("3fa9c1d2" + "0" * 24, Version(42))
    '3fa9c1d2-42'
    """
    return f"{log[:_LOG_DIGITS]}-{version}"


def id_before(log: str, place: EventPlace) -> str:
    """The id after which a watcher goes on at this place.

    >>> log = "3fa9c1d2" + "0" * 24
    >>> id_before(log, EventPlace(Version(42), 0, 8)), id_before(log, EventPlace(Version(43)))
    ('3fa9c1d2-42.0.7', '3fa9c1d2-42')
    """
    if place.row == 0:
        return event_ids(log, Version(place.version - 1))
    return f"{event_ids(log, place.version)}.{place.part}.{place.row - 1}"


def place_after(text: str, log: str) -> EventPlace:
    """The place after the event with this id.

    >>> place_after("3fa9c1d2-42.0.7", "3fa9c1d2" + "0" * 24), place_after("3fa9c1d2-42", "3fa9c1d2" + "0" * 24)
    (EventPlace(version=42, part=0, row=8), EventPlace(version=43, part=0, row=0))
    """
    match = _EVENT_ID.fullmatch(text)
    if match is None:
        raise BadEventId(f"{text[:100]!r} is not the id of an event. Send the last one that was received, as it is.")
    if match[1] != log[:_LOG_DIGITS]:
        raise ForeignEventId(f"The event {text!r} is of another log: this one's events begin with {log[:_LOG_DIGITS]}.")
    if match[3] is None:
        return EventPlace(Version(int(match[2]) + 1))
    return EventPlace(Version(int(match[2])), int(match[3]), int(match[4]) + 1)
