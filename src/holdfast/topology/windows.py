"""Windows: spans of event time by which records of a key are grouped.

    tumbling   one after the other: a record is in exactly one
    hopping    of one size, one begins `every` so often: a record is in several
    sliding    around the records themselves: all records that are at most a size apart
    session    as long as records keep coming: it ends after a gap without one

All times are milliseconds since 1970. A window takes records until it has closed: when the event clock is `grace` past
its end. These definitions are pure; `pipeline` has what computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from holdfast.errors import TopologyError
from holdfast.stores.options import Length, millis, words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Window(NamedTuple):
    """A span of event time. The end of a tumbling or hopping window isn't in it; that of any other window is."""

    start: int
    end: int


class _Closing(ABC):
    """When windows have closed."""

    @property
    @abstractmethod
    def closes_after_ms(self) -> int:
        """How far the event clock is past the end of a window when it has closed."""

    def closes(self, window: Window) -> int:
        """The event clock at which a window has closed."""
        return window.end + self.closes_after_ms

    def closing_times(self, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The event clocks at which windows with these ends have closed."""
        return ends + self.closes_after_ms


@dataclass(frozen=True)
class TimeWindows(_Closing):
    """Windows of one size, of which one begins every `every_ms`, counted from 1970."""

    size_ms: int
    every_ms: int
    grace_ms: int = 0

    def __str__(self) -> str:
        if self.every_ms == self.size_ms:
            return f"tumbling {words(self.size_ms)}, grace {words(self.grace_ms)}"
        return f"hopping {words(self.size_ms)} every {words(self.every_ms)}, grace {words(self.grace_ms)}"

    @property
    def pane_ms(self) -> int:
        """The length of a pane. Panes divide time so that each window is a number of whole panes.

        >>> hopping("5m", every="2m").pane_ms
        60000
        """
        return gcd(self.size_ms, self.every_ms)

    @property
    def overlap(self) -> bool:
        """Whether a record may be in several windows."""
        return self.size_ms > self.every_ms

    def windows_of(self, time: int) -> list[Window]:
        """The windows that a record of this time is in, the earliest first."""
        latest = time // self.every_ms * self.every_ms
        earliest = (time - self.size_ms) // self.every_ms * self.every_ms + self.every_ms
        return [Window(start, start + self.size_ms) for start in range(earliest, latest + 1, self.every_ms)]

    @property
    def closes_after_ms(self) -> int:
        return self.grace_ms


@dataclass(frozen=True)
class SlidingWindows(_Closing):
    """Per record, the window that ends with it, and the window that begins right after it if a record is in it."""

    overlap: ClassVar[bool] = True
    size_ms: int
    grace_ms: int = 0

    def __str__(self) -> str:
        return f"sliding {words(self.size_ms)}, grace {words(self.grace_ms)}"

    def windows(self, times: Iterable[int]) -> list[Window]:
        """The windows of all records of one key, the earliest first.

        >>> sliding("10s").windows([12_000, 18_000])
        [Window(start=2000, end=12000), Window(start=8000, end=18000), Window(start=12001, end=22001)]
        """
        known = sorted(set(times))
        ending = {time - self.size_ms for time in known}
        after = {a + 1 for a, b in pairwise(known) if b - a <= self.size_ms + 1}
        return [Window(start, start + self.size_ms) for start in sorted(ending | after)]

    def changed_by(self, time: int, times: Iterable[int]) -> list[Window]:
        """The windows that a record of this time is in, and the one right after it, the earliest first.

        `times` are those of the records of its key, its own included. Others than those that are at most the size and
        a millisecond away from it make no difference.

        >>> sliding("10s").changed_by(12_000, [12_000, 18_000])
        [Window(start=2000, end=12000), Window(start=8000, end=18000), Window(start=12001, end=22001)]
        """
        size, starts = self.size_ms, set()
        for each in times:
            if time <= each <= time + size:
                starts.add(each - size)
            if time - size <= each < time:
                starts.add(each + 1)
            if time < each <= time + size + 1:
                starts.add(time + 1)
        return [Window(start, start + size) for start in sorted(starts)]

    @property
    def closes_after_ms(self) -> int:
        """A record at the end of a window is in it."""
        return self.grace_ms + 1


@dataclass(frozen=True)
class SessionWindows(_Closing):
    """Sessions: records of a key that are at most a gap apart. A session lasts from its first record to its last."""

    overlap: ClassVar[bool] = True
    """A session that a record extends is another one."""
    gap_ms: int
    grace_ms: int = 0

    def __str__(self) -> str:
        return f"sessions with a gap of {words(self.gap_ms)}, grace {words(self.grace_ms)}"

    def windows(self, times: Iterable[int]) -> list[Window]:
        """The sessions of all records of one key, the earliest first.

        >>> session("10s").windows([12_000, 40_000, 18_000, 28_000])
        [Window(start=12000, end=28000), Window(start=40000, end=40000)]
        """
        sessions: list[Window] = []
        for time in sorted(times):
            if sessions and time - sessions[-1].end <= self.gap_ms:
                sessions[-1] = Window(sessions[-1].start, time)
            else:
                sessions.append(Window(time, time))
        return sessions

    @property
    def closes_after_ms(self) -> int:
        """A record exactly a gap after the last one still extends a session."""
        return self.gap_ms + self.grace_ms + 1


Windows = TimeWindows | SlidingWindows | SessionWindows


def time_to_close(windows: Windows) -> tuple[int, int]:
    """How far the event clock is past the latest record of a window when it closes: at least, and at most.

    >>> time_to_close(tumbling("60s", grace="5s")), time_to_close(session("30s"))
    ((5001, 65000), (30001, 30001))
    """
    size = 0 if isinstance(windows, SessionWindows) else windows.size_ms
    last = size - 1 if isinstance(windows, TimeWindows) else size
    closes = windows.closes(Window(0, size))
    return closes - last, closes


def tumbling(size: Length, *, grace: Length = "0s") -> TimeWindows:
    """Windows of one size, one after the other. A record is in exactly one.

    >>> tumbling("60s").windows_of(90_000)
    [Window(start=60000, end=120000)]
    """
    where = "hf.tumbling()"
    size_ms = millis(size, "size", where)
    return TimeWindows(size_ms, size_ms, millis(grace, "grace", where, shortest=0))


def hopping(size: Length, *, every: Length, grace: Length = "0s") -> TimeWindows:
    """Windows of one size, of which one begins every so often. A record is in `size / every` of them.

    >>> hopping("60s", every="30s").windows_of(90_000)
    [Window(start=60000, end=120000), Window(start=90000, end=150000)]
    """
    where = "hf.hopping()"
    size_ms, every_ms = millis(size, "size", where), millis(every, "every", where)
    if every_ms > size_ms:
        raise TopologyError(
            f"{where}: every={words(every_ms)} is longer than size={words(size_ms)}: records between two windows would "
            "be in none. Use a shorter every=, or filter those records out before."
        )
    if (most := -(-size_ms // every_ms)) > MOST_WINDOWS:
        raise TopologyError(
            f"{where}: a record would be in {most:,} windows of {words(size_ms)} every {words(every_ms)}, and "
            f"{MOST_WINDOWS:,} is the limit. Use a longer every=, or hf.sliding()."
        )
    return TimeWindows(size_ms, every_ms, millis(grace, "grace", where, shortest=0))


MOST_WINDOWS = 1_000
"""In how many hopping windows a record may be: each of them is written for it."""


def sliding(size: Length, *, grace: Length = "0s") -> SlidingWindows:
    """Windows around the records: for each record the one that ends with it, and the one that begins after it.

    Both ends of such a window are in it, as in Kafka Streams.
    """
    where = "hf.sliding()"
    return SlidingWindows(millis(size, "size", where), millis(grace, "grace", where, shortest=0))


def session(gap: Length, *, grace: Length = "0s") -> SessionWindows:
    """Sessions of records that are at most a gap apart.

    >>> session("30m").windows([0, 1_800_000])
    [Window(start=0, end=1800000)]
    """
    where = "hf.session()"
    return SessionWindows(millis(gap, "gap", where), millis(grace, "grace", where, shortest=0))


@dataclass(frozen=True)
class Every:
    """Results are sent at most once per so many milliseconds of event time, per key and window."""

    every_ms: int

    def __str__(self) -> str:
        return f"every {words(self.every_ms)}"


def every(length: Length) -> Every:
    """Sends a changed window at most once per length of event time: `.store(name, emit=hf.every("30s"))`.

    >>> str(every("30s"))
    'every 30s'
    """
    return Every(millis(length, "length", "hf.every()"))
