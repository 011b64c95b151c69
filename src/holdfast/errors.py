"""The family of errors, and the category of each.

A category tells the caller what to do next, so that nobody has to read a message to decide:

    HoldfastError
    ├── SettingsError, TopologyError ...   INVALID   change your side
    ├── StorageUnavailable ...             RETRY     the world is briefly away
    ├── DamagedObject ...                  DATA      what is stored is not what was written
    └── ...                                CLOSED, BUG

Every message has the fact, the place and the next step. Modules define their own errors beside the code that raises
them; all of them derive from `HoldfastError`.
"""

import difflib
from collections.abc import Iterable
from enum import Enum
from typing import ClassVar, Final


class ErrorCategory(Enum):
    RETRY = "retry"
    INVALID = "invalid"
    DATA = "data"
    CLOSED = "closed"
    BUG = "bug"


class HoldfastError(Exception):
    """Whatever Holdfast raises on purpose. Catch this to catch them all."""

    category: ClassVar[ErrorCategory] = ErrorCategory.BUG


class SettingsError(HoldfastError):
    """A setting is unknown, impossible or contradicts another."""

    category = ErrorCategory.INVALID


class TopologyError(HoldfastError):
    """A pipeline was put together in a way that can't run."""

    category = ErrorCategory.INVALID


class BadKey(HoldfastError):
    """A key that doesn't fit the store's key type, or can't be stored."""

    category = ErrorCategory.INVALID


class BadValue(HoldfastError):
    """A value that doesn't fit the store's value type, or can't be stored."""

    category = ErrorCategory.INVALID


class StorageUnavailable(HoldfastError):
    """Object storage or the disk did not answer; the same call may work in a moment."""

    category = ErrorCategory.RETRY


class DamagedObject(HoldfastError):
    """A stored object is truncated, altered or of another format than its name says."""

    category = ErrorCategory.DATA


RESTORE_AGAIN: Final = (
    "Stop the instance and delete its state directory: it restores from the log. If the error stays, the log itself "
    "has the damaged bytes."
)
"""What to do where bytes of a store can't be read."""


class Closed(HoldfastError):
    """Something was used after it was closed."""

    category = ErrorCategory.CLOSED


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The known name nearest to one that isn't known, as a question; nothing where none is near.

    >>> did_you_mean("max_entires", ["ttl", "max_entries"]), did_you_mean("x", ["ttl"])
    ("Did you mean 'max_entries'? ", '')
    """
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def shown(value: object, longest: int = 300) -> str:
    """A value within a message, cut where it would be the whole message.

    >>> shown("abcdef", 4)
    "'abc... (8 characters)"
    """
    return cut(repr(value), longest)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"
