"""Who waits for the end of a rebalance, and how often instances are asked for it."""

import threading
from dataclasses import replace

import pytest

from holdfast import rebalancing
from holdfast.clock import ManualClock
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.rebalancing import Rebalances

STARTED = RebalanceEvent(phase=RebalancePhase.STARTED, generation=7, reason="b joined", moves=())


def test_a_long_restore_is_looked_at_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(rebalancing, "SYSTEM_CLOCK", clock)
    waits: list[float] = []

    class Closed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            clock.advance(timeout)
            return False

    found: list[RebalanceEvent] = []
    done = threading.Event()

    def has_settled() -> bool:
        if clock.monotonic() < 600.0:
            return False
        under_way.complete()
        done.set()
        return True

    under_way = Rebalances("game", found.append, has_settled, Closed())
    under_way.begin(STARTED)
    assert done.wait(60)
    assert waits[0] == 0.1 and len(waits) < 400, "10 minutes are 6,000 looks at the first pace"
    completed = found[1]
    assert found == [STARTED, replace(STARTED, phase=RebalancePhase.COMPLETED, seconds=completed.seconds)]
    assert completed.seconds >= 600.0
