"""The family of errors, and the category of each.

A category tells the caller what to do, so that no code has to read messages:

    HoldfastError
    ├── SettingsError, TopologyError ...   INVALID   change your code or settings
    ├── StorageUnavailable ...             RETRY     the same call may work in a moment
    ├── DamagedObject ...                  DATA      stored data differs from what was written
    └── ...                                CLOSED, BUG

Every message has the fact, the place and the next step. Modules define their own errors next to the code that raises
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
    """The base class of all errors that Holdfast raises."""

    category: ClassVar[ErrorCategory] = ErrorCategory.BUG


class SettingsError(HoldfastError):
    """A setting is unknown, has an impossible value or contradicts another."""

    category = ErrorCategory.INVALID


class TopologyError(HoldfastError):
    """A pipeline was built in a way that can't run."""

    category = ErrorCategory.INVALID


class BadKey(HoldfastError):
    """A key that doesn't fit the store's key type, or can't be stored."""

    category = ErrorCategory.INVALID


class BadValue(HoldfastError):
    """A value that doesn't fit the store's value type, or can't be stored."""

    category = ErrorCategory.INVALID


class BadSpan(HoldfastError):
    """A span of time that ends before it begins."""

    category = ErrorCategory.INVALID


class StorageUnavailable(HoldfastError):
    """Object storage or the disk didn't answer. The same call may work in a moment."""

    category = ErrorCategory.RETRY


class DamagedObject(HoldfastError):
    """A stored object is truncated, altered, or in a different format from what its name says."""

    category = ErrorCategory.DATA


RESTORE_AGAIN: Final = (
    "Stop the app, delete its state directory and start it: it restores from the log. If the error stays, the log "
    "itself has the damaged bytes."
)
"""What to do where bytes of a store can't be read."""


class Closed(HoldfastError):
    """Something was used after it was closed."""

    category = ErrorCategory.CLOSED


class Held(HoldfastError):
    """A folder or a port is held by another process. An instance that ends frees its own in a moment."""

    category = ErrorCategory.INVALID


class Interrupted(HoldfastError):
    """The app was told to stop, so the work under way was given up."""

    category = ErrorCategory.CLOSED


USER_ERRORS: Final = (Exception, SystemExit)
"""What a user's code may raise. A module or a function may call sys.exit(), which would end a thread unnoticed."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question with the known name that is most similar to an unknown one; empty if none is similar.

    >>> did_you_mean("max_entires", ["ttl", "max_entries"]), did_you_mean("x", ["ttl"])
    ("Did you mean 'max_entries'? ", '')
    """
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def shown(value: object, longest: int = 300) -> str:
    """A value for a message, shortened if it is long.

    >>> shown("abcdef", 4)
    "'abc... (8 characters)"
    """
    return cut(repr(value), longest)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"
