"""How often tasks are read, per second, smoothed over minutes: the load that an instance reports in its heartbeats.

Reads come in bursts, one per batch, and heartbeats of different instances fall between different bursts. A rate since
the last heartbeat would be nothing or twice the truth, and the assignor would move roles back and forth.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.words import TaskId

SMOOTHED_SECONDS = 300.0
KNOWN_AFTER = 300.0
"""A task that was measured for a shorter time has no rate yet."""


@dataclass(frozen=True)
class _Measured:
    reads: int
    """The count at the last look."""
    seconds: float = 0.0
    smoothed: float = 0.0
    """The rate, as if it had been 0 before the first look."""

    def after(self, passed: float, reads: int) -> "_Measured":
        if passed <= 0:
            return self
        kept = math.exp(-passed / SMOOTHED_SECONDS)
        newest = max(0, reads - self.reads) / passed
        return _Measured(reads, self.seconds + passed, kept * self.smoothed + (1 - kept) * newest)

    @property
    def rate(self) -> float | None:
        if self.seconds < KNOWN_AFTER:
            return None
        return self.smoothed / (1 - math.exp(-self.seconds / SMOOTHED_SECONDS))


class ReadRates:
    """The rates of the tasks of one instance.

    >>> rates, task = ReadRates(), TaskId(0, 0)
    >>> for second in range(0, 601, 2):
    ...     found = rates.look(float(second), {task: 300 * (second // 30)})   # 300 reads every 30 seconds
    >>> round(found[task])
    10
    """

    def __init__(self) -> None:
        self._measured: dict[TaskId, _Measured] = {}
        self._last = 0.0

    def look(self, now: float, reads: Mapping[TaskId, int]) -> Mapping[TaskId, float | None]:
        """The rates now, from how often each task was read since it came here."""
        passed, self._last = now - self._last, now
        known, self._measured = self._measured, {}
        for task, count in reads.items():
            before = known.get(task)
            self._measured[task] = _Measured(count) if before is None else before.after(passed, count)
        return {task: measured.rate for task, measured in self._measured.items()}
