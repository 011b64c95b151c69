"""Frees the disk space of dropped key ranges: compacts them in the background, one after the other.

A range delete hides its range at once but frees no disk space; that happens when the range is compacted. Compaction
takes seconds for millions of entries, so it runs on its own thread, which exists only while there is work.
RocksDB's own compactions later free the ranges that were still waiting when the engine closed.
"""

import threading
from collections.abc import Callable

from holdfast.lasting import lasting_thread

Range = tuple[str, bytes, bytes]
"""A family, and the start and stop keys of a range in it."""


class Reclaimer:
    """Calls `compact` for each added range, in order, on its own thread."""

    def __init__(self, compact: Callable[[Range], None]) -> None:
        self._compact = compact
        self._change = threading.Condition()
        self._waiting: list[Range] = []
        self._busy = False
        self._ended = False

    def add(self, range_: Range) -> None:
        """Schedules a range for compaction, unless it is waiting already."""
        with self._change:
            if self._ended or range_ in self._waiting:
                return
            self._waiting.append(range_)
            if not self._busy:
                self._busy = True
                lasting_thread("reclaim", self._run).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all ranges are compacted; False after the timeout."""
        with self._change:
            return self._change.wait_for(lambda: not self._busy, timeout)

    def end(self) -> bool:
        """Accepts no more ranges and forgets those that wait. True if one is being compacted now."""
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
