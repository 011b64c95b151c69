"""The only access to time: the wall clock, a monotonic clock, and sleeping.

The linter rejects `time.*` and `datetime.now()` in every other module, so a test can set any time it needs. Code whose
behaviour depends on time takes a `Clock`; what merely measures a duration may use `SYSTEM_CLOCK`. Exempt are timeouts
of threads and of asyncio, the event loop's own timers in the servers of REST, and the timer that ends an instance's
process when its threads hang.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.words import Millis

__all__ = ["Clock"]
"""What is public of it. Tests of an app with a clock of their own need no more."""


class Clock(Protocol):
    def now(self) -> Millis:
        """The wall clock, in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring durations."""

    def uptime(self) -> float:
        """Like `monotonic`, and also while the machine sleeps, where the system can tell."""

    def sleep(self, seconds: float) -> None: ...


class WallClock(Protocol):
    def now(self) -> Millis:
        """The wall clock, in milliseconds since 1970."""


class SystemClock:
    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()

    def uptime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


async def pause(seconds: float) -> None:
    """Sleeps on an event loop, between two looks at something that will happen."""
    await asyncio.sleep(seconds)


class ClockJumped(HoldfastError):
    """The system's wall clock went ahead by more than the time that has passed."""

    category = ErrorCategory.RETRY


class SteadyClock:
    """A wall clock that doesn't follow the system's when it jumps ahead: everything with a TTL would expire at once.

    The time since the last call is known from the machine's uptime. A jump of more than `most` raises, until the clock
    is back, and is reported once. Where it is right and stays (a machine that was paused), a restart of
    the app accepts it.
    """

    def __init__(
        self, clock: Clock, most: timedelta, on_jump: Callable[[ClockJumped], None] = lambda jumped: None
    ) -> None:
        self._clock = clock
        self._most = most
        self._on_jump = on_jump
        self._last = clock.now(), clock.uptime()
        self._jumped = False
        self._reading = threading.Lock()

    def now(self) -> Millis:
        with self._reading:
            try:
                now = self._read()
            except ClockJumped as jumped:
                if not self._jumped:
                    self._on_jump(jumped)
                self._jumped = True
                raise
            self._jumped = False
            return now

    def _read(self) -> Millis:
        now, uptime = self._clock.now(), self._clock.uptime()
        then, before = self._last
        expected = Millis(then + round((uptime - before) * 1000))
        ahead = timedelta(milliseconds=now - expected)
        if ahead > self._most:
            raise ClockJumped(
                f"The wall clock of this machine has jumped ahead by {ahead}, more than batch.max_clock_jump "
                f"({self._most}). Everything with a TTL would expire, so no version is made until it is back. Fix the "
                "clock; if it is right, restart the app."
            )
        self._last = Millis(max(now, expected)), uptime  # a clock that was set back may come back
        return now


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

    def uptime(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now = Millis(self._now + round(seconds * 1000))
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Sets the wall clock alone, as a wrong time server or an administrator does."""
        self._now = Millis(self._now + round(seconds * 1000))
