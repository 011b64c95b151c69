"""When an instance looked at the log, and when it learned of each version, by its own monotonic clock.

The clocks of other machines are in the commits, and they may be wrong by any time. What was learned here a while ago is
at least as old as that, whatever they say.
"""

import math
import threading
from collections import deque
from typing import Final

from holdfast.clock import Clock
from holdfast.words import NOTHING, Version

_KEPT: Final = 64


class Looks:
    """The times of looks, and of the newest versions.

    >>> from holdfast.clock import ManualClock
    >>> looks = Looks(clock := ManualClock())
    >>> for version in 7, 8:
    ...     clock.advance(10); looks.learned(Version(version))
    >>> looks.newest_at(19.9), looks.newest_at(20.0), looks.newest_at(0.0)
    (7, 8, 7)
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._learned: deque[tuple[float, Version]] = deque(maxlen=_KEPT)
        self.looked_at = -math.inf
        """When the last look for the newest version that worked began."""

    def now(self) -> float:
        return self._clock.monotonic()

    def looked(self, began: float) -> None:
        """A look that began then has worked."""
        with self._lock:
            self.looked_at = max(self.looked_at, began)

    def learned(self, version: Version) -> None:
        """From now on this is the newest version that is known."""
        with self._lock:
            self._learned.append((self.now(), version))

    def forget(self) -> None:
        """The log was set back: what was learned is no longer true."""
        with self._lock:
            self._learned.clear()

    def newest_at(self, time: float) -> Version:
        """The newest version that was known then; of a time before all that is kept, the first one that is."""
        with self._lock:
            known = list(self._learned)
        before = [version for learned, version in known if learned <= time]
        return before[-1] if before else known[0][1] if known else NOTHING
