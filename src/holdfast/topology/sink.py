"""The protocol of sinks: a sink gets each version's rows after the version is committed.

A sink may get the same version twice, since a crash can come between the write and the mark of it. And the log may be
set back to an older state, such as a backup: then other commits get the numbers of versions that a sink already has.
So a sink stores the id of the commit beside the version, and compares both with the log when it is opened.
`pipeline.sinks` has the built-in sinks.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.words import TaskId, Version

logger = logging.getLogger(__name__)

CLEANED: Final = (
    "If the log was not set back, and the app only ran without this sink until that version was cleaned: keep what the "
    "sink has and give it another name=. It then begins after the newest version."
)
"""What to do when a version can't be compared."""


@dataclass(frozen=True)
class Rows:
    """The rows that one task changed in one version, or the `number`-th part of them."""

    task: TaskId
    number: int
    table: pa.Table


class OtherTimeline(HoldfastError):
    """A sink has a version of another timeline: the log was set back to an older state after the sink had written."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The versions of a log and the ids of their commits, with which a sink compares what it has when it is opened."""

    log: str
    """The id of the log."""
    newest: Version
    """The log's newest version when the sink is opened; 0 in a log without versions."""
    position: Version | None
    """The newest version that the sink has written, as far as the log knows; None: the sink is new to the log."""
    commit_of: Callable[[Version], str | None]
    """The id of a version's commit; None if the log doesn't have it, or has it no longer."""
    folders: Mapping[str, Version] = field(default_factory=dict)
    """For file sinks: the newest version written to each folder, by the id in its `_log.json`."""

    def has(self, version: Version, commit: str | None) -> bool:
        """Whether a version that the sink has written is one of this log, as far as the log can tell.

        >>> ids = {Version(5): "a5", Version(6): "a6"}
        >>> timeline = Timeline(log="1f", newest=Version(6), position=Version(5), commit_of=ids.get)
        >>> [timeline.has(*each) for each in ((Version(6), "a6"), (Version(6), "b6"), (Version(7), "b7"))]
        [True, False, False]
        """
        found = self.commit_of(version)
        if found is not None:
            return found == commit
        # It was cleaned or never existed. What the log has recorded as written is of this log.
        if self.position is not None:
            return version <= self.position
        if version > self.newest:
            return False
        logger.warning(
            "A sink that is new to log %s has version %d of commit %s. The log is at version %d and has cleaned that "
            "version, so it can't be told whether it was set back since.",
            *(self.log, version, commit, self.newest),
        )
        return True

    def may_be_cleaned(self, version: Version) -> bool:
        """Whether a version that the log doesn't have may be of this log: a crash came before the mark of it.

        Then the app ran without the sink until the version was cleaned.
        """
        if self.position is None or version != self.position + 1 or version > self.newest:
            return False
        return self.commit_of(version) is None

    def check(self, version: int, commit: str, place: str) -> None:
        """Raises OtherTimeline unless the log has this version of `place`, such as "the table players"."""
        if not self.has(Version(version), commit):
            to = self.newest if self.position is None else self.position  # what comes after it is sent
            cleaned = f" {CLEANED}" if self.may_be_cleaned(Version(version)) else ""
            raise OtherTimeline(
                f"{place} has version {version} of commit {commit}, and the log, which is at version {self.newest}, "
                f"has no such commit: it was set back to an older state after the sink had written. Set {place} back "
                f"to version {to} too, or give the sink a new one.{cleaned}"
            )


@runtime_checkable
class Sink(Protocol):
    """Takes each version's rows in the order of versions."""

    @property
    def kind(self) -> str:
        """One word for the default name of the sink."""

    def open(self, timeline: Timeline) -> None:
        """Called once before the first version. `timeline.check` refuses what the sink has of another timeline."""

    def write(self, version: Version, commit: str, rows: Iterator[Rows]) -> None:
        """Writes one whole version, of the commit with this id. When this returns, the version counts as written."""


def takes(function: Callable[..., Any], *parameters: str) -> bool:
    """Whether a function can be called with these positional arguments.

    >>> takes(lambda version, commit, rows: None, "version", "commit", "rows"), takes(len, "version", "rows")
    (True, False)
    """
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        return False
    except ValueError:  # a function in C may not say what it takes
        return True
    return True
