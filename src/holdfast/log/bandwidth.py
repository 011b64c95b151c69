"""A budget of bytes per second that several threads share.

It is a token bucket, kept as one number: the time at which everything granted so far is paid for. A thread that takes
bytes moves that time on and waits for it. Time that nobody used counts for at most one second, so an idle minute isn't
followed by a minute at full speed.
"""

import threading
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock

_LONGEST_SLEEP = 0.1
"""Seconds after which a thread that waits looks whether it should give up."""
_SAVED = 1.0
"""How many seconds of an unused budget are kept."""


class Bandwidth:
    """At most this many bytes per second; 0 is no limit.

    >>> from holdfast.clock import ManualClock
    >>> clock = ManualClock()
    >>> budget = Bandwidth(1_000, clock)
    >>> budget.take(1_000); budget.take(500)
    >>> clock.monotonic()
    1.5
    """

    def __init__(self, per_second: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        self.per_second = per_second
        self._clock = clock
        self._paid_at = clock.monotonic()
        self._lock = threading.Lock()

    def take(self, count: int, check: Callable[[], None] = lambda: None) -> None:
        """Waits until these bytes may be read. `check` is called now and then, and may raise to give up."""
        if not self.per_second:
            return
        with self._lock:
            started = max(self._paid_at, self._clock.monotonic() - _SAVED)
            paid_at = self._paid_at = started + count / self.per_second
        while (left := paid_at - self._clock.monotonic()) > 0:
            check()
            self._clock.sleep(min(left, _LONGEST_SLEEP))
