"""Who has a view or a scan open, and where in the code it was opened.

A view that the engine has moved on from keeps every file it can see on disk, and a scan that nobody ends keeps its
view. Neither hurts for a moment; one that was forgotten fills the disk for days, far from the line that forgot it. So
each is noted with that line, and one that has been in the way for too long is named, once, in the log.

A view of the present keeps nothing that wouldn't be there anyway: its time counts from when the engine moved on.
"""

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, TypeVar

from holdfast.clock import SYSTEM_CLOCK

_LOG = logging.getLogger(__name__)
_HERE = str(Path(__file__).parents[1])
_FILES = 6
"""How many lines are named, one a file: between a store and whoever scans it in an instance there are four."""

LONG_SECONDS = 60.0
"""How long a view or scan may be in the way before it is named."""

What = Literal["view", "scan"]
Lines = dict[str, tuple[int, str]]
"""A line and its function by file. It becomes text when it is named: scans come and go by the thousand."""
T = TypeVar("T")


@dataclass(eq=False)
class Open:
    """One view or scan: of which store (a view is of all), opened where, in the way since when."""

    what: What
    of: str
    lines: Lines
    since: float | None
    named: bool = field(default=False)

    @property
    def where(self) -> str:
        return ", called by ".join(f"{file}:{line} in {name}" for file, (line, name) in self.lines.items())


class OpenOnes:
    """All views and scans of a process that are open."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a finalizer may come at any moment, in the middle of ours too
        self._open: dict[Open, None] = {}

    def view(self, of: str) -> Open:
        """Notes a view, until `close`; its time begins with `outdated`."""
        return self._add(Open("view", of, opened_at(), None))

    def watched(self, of: str, entries: Iterator[T]) -> Iterator[T]:
        """Notes a scan, until it ends, is closed, or is let go of."""
        one = self._add(Open("scan", of, opened_at(), self._clock()))
        scan = self._until_closed(one, entries)
        # A generator that never began has no end either.
        weakref.finalize(scan, self.close, one)
        return scan

    def _until_closed(self, one: Open, entries: Iterator[T]) -> Iterator[T]:
        try:
            yield from entries
        finally:
            self.close(one)

    def outdated(self, view: Open) -> None:
        """The engine has moved on from what this view shows."""
        if view.since is None:
            view.since = self._clock()

    def close(self, one: Open) -> None:
        with self._lock:
            self._open.pop(one, None)

    def count(self, what: What, of: str | None = None) -> int:
        return sum(one.what == what and of in (None, one.of) for one in self._listed())

    def long_open(self, longer_than: float = LONG_SECONDS) -> list[tuple[Open, float]]:
        """Those in the way for longer than that, with their seconds, the longest first."""
        now = self._clock()
        found = [(one, now - one.since) for one in self._listed() if one.since is not None]
        return sorted((each for each in found if each[1] > longer_than), key=lambda each: -each[1])

    def name_long_open(self, longer_than: float = LONG_SECONDS) -> None:
        """Writes a line to the log for each that is in the way too long, once."""
        for one, seconds in self.long_open(longer_than):
            if not one.named:
                one.named = True
                _LOG.warning(
                    "a %s of %s has kept old state for %.0f s. It was opened at %s. Close it there (`with`, or "
                    "`.close()`): until then its files stay on disk.",
                    one.what,
                    one.of,
                    seconds,
                    one.where,
                )

    def _add(self, one: Open) -> Open:
        with self._lock:
            self._open[one] = None
        return one

    def _listed(self) -> list[Open]:
        with self._lock:
            return list(self._open)


OPEN = OpenOnes()
"""Those of this process."""


def opened_at() -> Lines:
    """The lines outside of the stores that led here, the nearest first; of each file the nearest."""
    found: Lines = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _FILES:
        code = frame.f_code
        file = code.co_filename
        if file not in found and not file.startswith(_HERE):
            found[file] = (frame.f_lineno, code.co_name)
        frame = frame.f_back
    return found
