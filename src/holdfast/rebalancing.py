"""The rebalances of an app that are under way, from a generation that moves tasks until its active replicas are ready.

While one is, a thread asks again and again whether the group has settled. Each look asks every instance that is active
for a task, so the looks get rarer: a restore may take hours.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from holdfast.clock import SYSTEM_CLOCK
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.lasting import lasting_thread

logger = logging.getLogger(__name__)

_LOOK = 0.1
_LONGEST_LOOK = 2.0


def pause_after(waited: float) -> float:
    """The seconds until the next look: a completion is noticed at most a 20th later, and 2 s at most.

    >>> pause_after(0.0), pause_after(20.0), pause_after(3600.0)
    (0.1, 1.0, 2.0)
    """
    return min(_LONGEST_LOOK, max(_LOOK, waited / 20))


class Rebalances:
    """Those under way. `begin` and `complete` are called under one lock, so that events keep their order."""

    def __init__(
        self,
        app: str,
        report: Callable[[RebalanceEvent], None],
        has_settled: Callable[[], bool],
        closed: threading.Event,
    ) -> None:
        """`has_settled` calls `complete` if every active replica of the newest generation is ready."""
        self._app = app
        self._on_rebalance = report
        self._has_settled = has_settled
        self._closed = closed
        self._began = 0.0
        self._under_way: list[tuple[RebalanceEvent, float]] = []
        """With their begin by the monotonic clock."""

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def begin(self, event: RebalanceEvent) -> None:
        self._began = SYSTEM_CLOCK.monotonic()
        self._under_way.append((event, self._began))
        self._report(event)
        if len(self._under_way) == 1:
            lasting_thread("holdfast-rebalance", self._watch).start()

    def complete(self) -> None:
        done, self._under_way = self._under_way, []
        now = SYSTEM_CLOCK.monotonic()
        for event, began in done:
            self._report(replace(event, phase=RebalancePhase.COMPLETED, seconds=now - began))

    def _watch(self) -> None:
        while not self._closed.wait(pause_after(SYSTEM_CLOCK.monotonic() - self._began)):
            if self._has_settled():
                return

    def _report(self, event: RebalanceEvent) -> None:
        logger.info("app %s: %s", self._app, event)
        self._on_rebalance(event)
