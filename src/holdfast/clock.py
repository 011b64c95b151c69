"""The only access to time: the wall clock, a monotonic clock, and sleeping.

The linter rejects `time.*` and `datetime.now()` in every other module, so a test can set any time it needs. Code whose
behaviour depends on time takes a `Clock`; what merely measures a duration may use `SYSTEM_CLOCK`. Threads that wait for
an event with a timeout are exempt, and so is the timer that ends an instance's process when its threads hang.
"""

import time
from typing import Protocol

from holdfast.words import Millis


class Clock(Protocol):
    def now(self) -> Millis:
        """The wall clock, in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring durations."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


class ManualClock:
    """A clock that moves only with `advance` and `sleep`.

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

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now = Millis(self._now + round(seconds * 1000))
        self._monotonic += seconds
