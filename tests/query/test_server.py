"""The server: it starts where it was told, only there, and ends when it is told, whatever is under way."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.query.server import AddressUnusable, RestServer, serve


async def _hello(request: Request) -> Response:
    return PlainTextResponse("hello")


class Slow:
    """An endpoint that answers when it is let go, and tells when it was reached."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()

    async def on_a_thread(self, request: Request) -> Response:
        await asyncio.to_thread(self._wait)
        return PlainTextResponse("done")

    async def on_the_loop(self, request: Request) -> Response:
        self.reached.set()
        while not self.let_go.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("done")

    def _wait(self) -> None:
        self.reached.set()
        self.let_go.wait(30)


@pytest.fixture
def slow() -> Iterator[Slow]:
    endpoint = Slow()
    yield endpoint
    endpoint.let_go.set()


@pytest.fixture
def rest(slow: Slow) -> Iterator[RestServer]:
    routes = [Route("/", _hello), Route("/thread", slow.on_a_thread), Route("/loop", slow.on_the_loop)]
    with serve(Starlette(routes=routes), port=0) as server:
        yield server


def test_it_answers_as_soon_as_it_is_started(rest: RestServer) -> None:
    assert httpx2.get(rest.url).text == "hello"


def test_it_binds_to_loopback_unless_told_otherwise(rest: RestServer) -> None:
    assert rest.host == "127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.2", rest.port))  # every other address has the port free


def test_it_listens_on_the_port_it_is_given(rest: RestServer) -> None:
    port = rest.port
    rest.stop()
    with serve(Starlette(routes=[Route("/", _hello)]), port=port) as again:
        assert again.port == port
        assert httpx2.get(again.url).text == "hello"


def test_a_taken_port_is_an_error_that_says_what_to_do(rest: RestServer) -> None:
    with pytest.raises(AddressUnusable, match=f"port {rest.port}: Address already in use.*rest.port"):
        serve(Starlette(), port=rest.port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_an_error(host: str) -> None:
    with pytest.raises(AddressUnusable, match=r"rest\.host"):
        serve(Starlette(), host=host, port=0)


@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
def test_a_port_that_is_none_is_an_error(port: int) -> None:
    with pytest.raises(AddressUnusable, match=r"rest\.port"):
        serve(Starlette(), port=port)


def test_listening_where_others_can_read_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with serve(Starlette(routes=[Route("/", _hello)]), host="0.0.0.0", port=0):
        pass
    assert "other machines can read every store" in caplog.text


def test_it_stops_at_once_also_with_an_idle_connection_open(rest: RestServer) -> None:
    with httpx2.Client(base_url=rest.url) as client:
        assert client.get("/").text == "hello"
        began = time.monotonic()
        rest.stop()
        assert time.monotonic() - began < 0.5
        assert not rest.running
        with pytest.raises(httpx2.TransportError):
            client.get("/")
    rest.stop()


def test_a_request_under_way_may_finish(rest: RestServer, slow: Slow) -> None:
    with _Asked(rest.url + "/loop") as asked:
        assert slow.reached.wait(10)
        stopping = threading.Thread(target=rest.stop, args=(30.0,))
        stopping.start()
        _wait_until_refused(rest)
        slow.let_go.set()
        stopping.join(10)
    assert asked.response is not None
    assert asked.response.text == "done"
    assert not rest.running


@pytest.mark.parametrize("path", ["/loop", "/thread"])
def test_a_request_that_does_not_finish_is_cut_off_with_an_answer(rest: RestServer, slow: Slow, path: str) -> None:
    with _Asked(rest.url + path) as asked:
        assert slow.reached.wait(10)
        began = time.monotonic()
        rest.stop()
        assert time.monotonic() - began < 2
        assert not rest.running
    assert asked.response is not None
    assert asked.response.status_code == 503
    assert asked.response.headers["retry-after"] == "1"
    assert asked.response.json()["error"] == "stopping"


def test_nothing_of_it_is_written_to_stdout(rest: RestServer, capfd: pytest.CaptureFixture[str]) -> None:
    httpx2.get(rest.url)
    rest.stop()
    assert capfd.readouterr().out == ""


class _Asked:
    """A request made by another thread."""

    def __init__(self, url: str) -> None:
        self.response: httpx2.Response | None = None
        self._thread = threading.Thread(target=self._ask, args=(url,))

    def _ask(self, url: str) -> None:
        self.response = httpx2.get(url, timeout=30)

    def __enter__(self) -> "_Asked":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)


def _wait_until_refused(rest: RestServer) -> None:
    while True:
        try:
            socket.create_connection((rest.host, rest.port), timeout=10).close()
        except (ConnectionRefusedError, ConnectionResetError):  # reset: accepted by the kernel just before the end
            return
