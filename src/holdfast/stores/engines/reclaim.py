"""Room from what was dropped: key ranges compacted in the background, one after the other.

A range delete hides its range at once and frees nothing; the room comes back when the range is compacted. That takes
seconds for millions of entries, so it runs on a thread of its own, which is there only while there is something to do.
A range that wasn't compacted yet when the engine closed goes later, with RocksDB's own compactions.
"""

import threading
from collections.abc import Callable

Range = tuple[str, bytes, bytes]
"""A family, and where the range begins and ends in it."""


class Reclaimer:
    """Calls `compact` for each range it is given, in order, on a thread of its own."""

    def __init__(self, compact: Callable[[Range], None]) -> None:
        self._compact = compact
        self._change = threading.Condition()
        self._waiting: list[Range] = []
        self._busy = False
        self._ended = False

    def add(self, range_: Range) -> None:
        """Has a range compacted some time after now; one that waits already isn't compacted twice."""
        with self._change:
            if self._ended or range_ in self._waiting:
                return
            self._waiting.append(range_)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._run, name="reclaim", daemon=True).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is left to do; False if that takes longer."""
        with self._change:
            return self._change.wait_for(lambda: not self._busy, timeout)

    def end(self) -> bool:
        """Takes no more ranges and forgets those that wait. True if one is being compacted right now."""
        with self._change:
            self._ended = True
            self._waiting.clear()
            return self._busy

    def _run(self) -> None:
        while True:
            with self._change:
                if not self._waiting:
                    self._busy = False
                    self._change.notify_all()
                    return
                range_ = self._waiting.pop(0)
            self._compact(range_)
