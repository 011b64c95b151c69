"""Calls of REST from outside: instances that are busy are asked again."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from holdfast import metrics
from holdfast.clock import ManualClock
from holdfast.rest_calls import NoAnswer, answered
from tests.instance.processes import until
from tests.query.test_limits import RANGE, Slow


class Waiting(ManualClock):
    """A clock that lets the slow request of the test end, after so many pauses."""

    def __init__(self, slow: Slow, pauses: int) -> None:
        super().__init__()
        self._slow, self._left = slow, pauses

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._left -= 1
        if self._left == 0:
            self._slow.task.held.clear()
            until(lambda: metrics.value("holdfast_rest_requests_under_way") == 0, "the slow request has ended")


@pytest.mark.parametrize("pauses", [3, 100])
def test_an_instance_with_too_many_requests_is_asked_again_for_a_minute(pauses: int) -> None:
    slow = Slow()
    with slow.served(max_requests_per_caller=1) as server, ThreadPoolExecutor(1) as threads:
        ended = threads.submit(httpx2.get, server.url + RANGE, timeout=60)
        try:
            until(lambda: slow.task.open == 1, "a request is under way")
            clock = Waiting(slow, pauses)
            if pauses == 3:
                with answered([server.url], "/v1/stores/numbers/keys?key=4", clock=clock) as answer:
                    assert b'"value":4' in answer.read()
            else:
                with pytest.raises(NoAnswer, match="1 requests of 127.0.0.1 are under way"):
                    with answered([server.url], "/v1/stores/numbers/keys?key=4", clock=clock):
                        pass
                assert clock.monotonic() >= 60
        finally:
            slow.task.held.clear()
            ended.result(60)
