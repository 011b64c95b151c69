"""Where time comes from. Nothing else in Holdfast asks the system for it, so that a test can be at any hour."""

import time
from typing import Protocol

from holdfast.words import Millis


class Clock(Protocol):
    def now(self) -> Millis:
        """The wall clock, in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring how long something took."""


class SystemClock:
    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands until it is moved.

    >>> clock = ManualClock(Millis(1_000))
    >>> clock.advance(seconds=2); clock.now()
    3000
    """

    def __init__(self, now: Millis = Millis(0)) -> None:
        self._now = now
        self._monotonic = 0.0

    def now(self) -> Millis:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now = Millis(self._now + round(seconds * 1000))
        self._monotonic += seconds
