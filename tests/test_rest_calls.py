"""Calls of REST from outside: whom they ask, and that instances that are busy are asked again."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx2
import pytest

from holdfast import metrics
from holdfast.clock import ManualClock
from holdfast.group import members
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import NotReady
from holdfast.rest_calls import (
    _LIVE_SECONDS,
    NoInstanceAnswers,
    NoInstances,
    RestRefused,
    Silent,
    answered,
    rest_addresses,
)
from tests.client.conftest import GAME
from tests.instance.processes import until
from tests.query.fake_tasks import NUMBERS, STATE, World
from tests.query.instances import Driver
from tests.query.test_limits import RANGE, Slow


class Waiting(ManualClock):
    """A clock that lets the slow request of the test end, after so many pauses."""

    def __init__(self, slow: Slow, metric: str, pauses: int) -> None:
        super().__init__()
        self._slow, self._metric, self._left = slow, metric, pauses

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._left -= 1
        if self._left == 0:
            self._slow.task.held.clear()
            until(lambda: metrics.value(self._metric) == 0, "the slow request has ended")


SCAN, EMPTY = "/v1/stores/numbers/scan", "/v1/stores/levels/scan"
REQUESTS = ("max_requests_per_caller", RANGE, "holdfast_rest_requests_under_way", "1 requests of 127.0.0.1 are under")
SCANS = ("max_scans", SCAN, "holdfast_rest_streams", "This instance sends 1 scans, as many as it may")


@pytest.mark.parametrize("pauses", [3, 1_000])
@pytest.mark.parametrize(("limit", "path", "metric", "message"), [REQUESTS, SCANS])
def test_an_instance_that_is_busy_is_asked_again_for_a_minute(
    limit: str, path: str, metric: str, message: str, pauses: int
) -> None:
    slow = Slow()
    with slow.served(**{limit: 1}) as server, ThreadPoolExecutor(1) as threads:
        ended = threads.submit(httpx2.get, server.url + path, timeout=60)
        try:
            until(lambda: slow.task.open == 1 and metrics.value(metric) == 1, "a request is under way")
            clock = Waiting(slow, metric, pauses)
            if pauses == 3:
                with answered([server.url], EMPTY, clock=clock) as answer:
                    assert b'"end":true' in answer.read()
            else:
                with pytest.raises(NoInstanceAnswers, match=message):
                    with answered([server.url], EMPTY, clock=clock):
                        pass
                assert 59 <= clock.monotonic() <= 60
        finally:
            slow.task.held.clear()
            ended.result(60)


def test_an_instance_that_is_not_ready_is_not_waited_for() -> None:
    world, clock = World(), ManualClock()
    world.commit(1, NUMBERS, {(3,): 3})
    world.tasks[world.task_of(NUMBERS, (3,))].error = NotReady("Task 0_0 is not ready.")
    with serve(create_app(world.reader, lambda: STATE), port=0) as server:
        with pytest.raises(NoInstanceAnswers, match="is not ready"):
            with answered([server.url], "/v1/stores/numbers/keys/3", clock=clock):
                pass
    assert clock.monotonic() == 0


def test_loopback_addresses_of_other_machines_are_not_asked(tmp_path: Path) -> None:
    log = Driver(str(tmp_path / "log"), GAME).log

    def write(id: str, host: str, rest: str) -> None:
        said = {"incarnation": 1, "process": id, "beat": 1, "address": "grpc://10.0.0.7:7070"}
        members.write(log.storage, members.Member(log=log.id, id=id, host=host, rest=rest, **said))  # type: ignore[arg-type]

    write("a", "elsewhere", "http://127.0.0.1:8080")
    with pytest.raises(NoInstances, match="are loopback addresses of elsewhere, which .* can't reach. Set rest.host"):
        rest_addresses(log)
    write("b", "elsewhere", "http://10.0.0.8:8080")
    write("c", socket.gethostname(), "http://127.0.0.1:8081")
    assert rest_addresses(log) == ["http://10.0.0.8:8080", "http://127.0.0.1:8081"]


class Redirects(BaseHTTPRequestHandler):
    """Sends whoever asks to the place `to`."""

    to: str

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("location", self.to)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing on standard error."""


def test_the_token_is_not_sent_to_where_an_answer_redirects() -> None:
    slow = Slow()
    with slow.served() as server:
        kind = type("OfThisTest", (Redirects,), {"to": f"{server.url}/v1/stores"})
        with HTTPServer(("127.0.0.1", 0), kind) as redirecting, ThreadPoolExecutor(1) as threads:
            threads.submit(redirecting.serve_forever)
            address = f"http://127.0.0.1:{redirecting.server_port}"
            try:
                with pytest.raises(RestRefused, match="302"):
                    with answered([address], "/v1/stores", {"authorization": "Bearer secret"}):
                        pass
            finally:
                redirecting.shutdown()


def test_an_instance_that_hangs_costs_seconds_once_and_is_asked_last_then() -> None:
    world, silent = World(), Silent()
    with (
        serve(create_app(world.reader, lambda: STATE), port=0) as server,
        socket.create_server(("127.0.0.1", 0)) as mute,  # it accepts connections, and says nothing
    ):
        hanging = f"http://127.0.0.1:{mute.getsockname()[1]}"
        took = []
        for _ in range(3):
            began = time.monotonic()
            with answered([hanging, server.url], "/v1/stores", silent=silent) as answer:
                assert b"numbers" in answer.read()
            took.append(time.monotonic() - began)
        assert _LIVE_SECONDS <= took[0] < 20
        assert max(took[1:]) < _LIVE_SECONDS
        with pytest.raises(NoInstanceAnswers, match="timed out"):
            with answered([hanging], "/v1/stores", silent=silent):
                pass
