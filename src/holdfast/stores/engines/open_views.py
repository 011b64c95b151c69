"""Open views and scans, and where in the code they were opened.

An outdated view keeps every file it can see on disk, and an unfinished scan keeps its view. A forgotten one fills the
disk for days, far from the line that forgot it. So each is recorded with that line, and one that has kept old state for
too long is reported in the log, once. One that is kept on purpose, by a hold, is too old only some time after the hold.

A view of the newest state keeps nothing extra: its age is measured from when the engine moved on.
"""

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, TypeVar

from holdfast.clock import SYSTEM_CLOCK

_LOG = logging.getLogger(__name__)
_HERE = str(Path(__file__).parents[1])
_FILES = 6
"""How many lines are reported, one per file: in an instance, four files are between a store and the caller."""

OLD_SECONDS = 60.0
"""How long a view or scan may keep old state before it is reported."""

What = Literal["view", "scan"]
Lines = dict[str, tuple[int, str]]
"""A line and its function per file. They become text only when reported: there are thousands of scans per second."""
T = TypeVar("T")


@dataclass(eq=False)
class OpenView:
    """One view or scan: of which store (a view has all stores), opened where, keeping old state since when."""

    what: What
    of: str
    lines: Lines
    since: float | None
    held_until: float | None = None
    is_reported: bool = False

    @property
    def where(self) -> str:
        return ", called by ".join(f"{file}:{line} in {name}" for file, (line, name) in self.lines.items())


class OpenViews:
    """All open views and scans of a process."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a finalizer may run at any moment, also while this thread has the lock
        self._open: dict[OpenView, None] = {}

    def add_view(self, of: str) -> OpenView:
        """Records a view until `close`. Its age starts with `mark_outdated`."""
        return self._add(OpenView("view", of, opened_at(), None))

    def add_scan(self, of: str, entries: Iterator[T]) -> Iterator[T]:
        """Records a scan until it ends, is closed or is garbage-collected."""
        opened = self._add(OpenView("scan", of, opened_at(), self._clock()))
        scan = self._until_closed(opened, entries)
        # A generator that was never started doesn't run its `finally`.
        weakref.finalize(scan, self.close, opened)
        return scan

    def _until_closed(self, opened: OpenView, entries: Iterator[T]) -> Iterator[T]:
        try:
            yield from entries
        finally:
            self.close(opened)

    def mark_outdated(self, views: Iterable[OpenView]) -> None:
        """The engine has moved on from the state that these views show."""
        for view in views:
            if view.since is None:
                view.since = self._clock()

    def hold(self, view: object, seconds: float) -> None:
        """Says that a view is kept on purpose for so long at most. An engine of a user's may not record its views."""
        if isinstance(opened := getattr(view, "opened", None), OpenView):
            opened.held_until = max(opened.held_until or 0.0, self._clock() + seconds)

    def close(self, opened: OpenView) -> None:
        with self._lock:
            self._open.pop(opened, None)

    def count(self, what: What, of: str | None = None) -> int:
        return sum(each.what == what and of in (None, each.of) for each in self._listed())

    def older_than(self, seconds: float) -> list[tuple[OpenView, float]]:
        """Views and scans that have kept old state for longer than that, with their ages, the oldest first."""
        now = self._clock()
        aged = [(each, now - each.since) for each in self._listed() if each.since is not None]
        return sorted((pair for pair in aged if pair[1] > seconds), key=lambda pair: -pair[1])

    def warn_about_old(self, seconds: float = OLD_SECONDS) -> None:
        """Reports each view or scan that has kept old state for too long in the log, once."""
        now = self._clock()
        for opened, age in self.older_than(seconds):
            held_until = opened.held_until
            if not opened.is_reported and (held_until is None or now - held_until > seconds):
                opened.is_reported = True
                held = "" if held_until is None else f", and its last hold has ended {now - held_until:.0f} s ago"
                _LOG.warning(
                    "a %s of %s has kept old state for %.0f s%s. It was opened at %s. Close it there (`with`, or "
                    "`.close()`): until then its files stay on disk.",
                    opened.what,
                    opened.of,
                    age,
                    held,
                    opened.where,
                )

    def _add(self, opened: OpenView) -> OpenView:
        with self._lock:
            self._open[opened] = None
        return opened

    def _listed(self) -> list[OpenView]:
        with self._lock:
            return list(self._open)


OPEN_VIEWS = OpenViews()
"""The open views and scans of this process."""


def opened_at() -> Lines:
    """The lines outside `stores/` that led here, the nearest first, one per file."""
    found: Lines = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _FILES:
        code = frame.f_code
        file = code.co_filename
        if file not in found and not file.startswith(_HERE):
            found[file] = (frame.f_lineno, code.co_name)
        frame = frame.f_back
    return found
