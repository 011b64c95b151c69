"""What happened in a soak, as the log has it: for each version, which release made it and how far the source was.

Commits are cleaned after a while, so a thread reads them as they appear.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from tests.soak.release import Release

EVERY = 0.5
"""Seconds between two looks. The app keeps its commits for 20 seconds."""
_NEWEST = 4
"""A commit may be withdrawn, so the newest ones are read again."""


class Made(msgspec.Struct, frozen=True):
    """A version: who made it, and the newest batch of the file source in it."""

    version: int
    offset: int
    release: str
    pid: int

    @property
    def has(self) -> Release:
        return Release.parse(self.release)


class History(threading.Thread):
    """The versions of the log so far."""

    def __init__(self, commits: Path, release_of: Callable[[int], Release], stop: threading.Event) -> None:
        super().__init__(name="history", daemon=True)
        self._commits, self._release_of, self._stop_asked = commits, release_of, stop
        self._made: dict[int, Made] = {}
        self.start()

    def run(self) -> None:
        while not self._stop_asked.wait(EVERY):
            self.look()

    def look(self) -> None:
        """Reads the commits that are new."""
        newest = max(self._made, default=0)
        for path in sorted(self._commits.glob("*.json")) if self._commits.exists() else []:
            if int(path.stem) > newest - _NEWEST:
                try:
                    commit = json.loads(path.read_bytes())
                except FileNotFoundError:  # withdrawn
                    continue
                version, pid = commit["version"], commit["writer"]["pid"]
                offset = json.loads(commit["spark"]["offsets"].splitlines()[2])["logOffset"]
                self._made[version] = Made(version, offset, str(self._release_of(pid)), pid)

    def made(self) -> list[Made]:
        return [made for _, made in sorted(dict(self._made).items())]

    def made_by(self, pid: int) -> int:
        """How many versions a process made."""
        return sum(made.pid == pid for made in self.made())


def changes(made: Sequence[Made]) -> Counter[str]:
    """How often the app was changed, as its versions show it."""
    found: Counter[str] = Counter()
    had_levels = any(each.has.levels for each in made[:1])
    for before, after in pairwise(each.has for each in made):
        for change in _between(before, after, had_levels):
            found[change] += 1
        had_levels |= after.levels
    return found


def _between(before: Release, after: Release, had_levels: bool) -> Iterator[str]:
    if before.levels != after.levels:
        back = "store back, continues" if after.returned == "continue" else "store back, starts over"
        yield "store removed" if before.levels else back if had_levels else "store added"
    if before.best != after.best:
        yield "column removed" if before.best else "column added"
    if before.copy != after.copy:
        yield "sink removed" if before.copy else "sink added"


def runs(present: Sequence[bool], continues: Sequence[bool]) -> list[int | None]:
    """For each version, the number of the life that a part of the app is in; None where the app doesn't have it.

    >>> runs([False, True, True, False, True, False, True], [False] * 6 + [True])
    [None, 1, 1, None, 2, None, 2]
    """
    found: list[int | None] = []
    run = 0
    for n, (there, goes_on) in enumerate(zip(present, continues, strict=True)):
        if there and (n == 0 or not present[n - 1]) and not (goes_on and run):
            run += 1
        found.append(run if there else None)
    return found
