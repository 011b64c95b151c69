"""The REST server: it listens on the given address only, and stops although requests are running."""

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.instance.credentials import Unprotected
from holdfast.query import http_protocol, server
from holdfast.query.http_protocol import Headers
from holdfast.query.listening import AddressTaken, AddressUnusable
from holdfast.query.server import RestServer, serve
from holdfast.settings.rest import RestSettings
from tests.instance.processes import until

NEVER = 3600.0
"""A time that no test waits for: pytest would end it long before."""


async def _hello(request: Request) -> Response:
    return PlainTextResponse("hello")


class Slow:
    """An endpoint that sets `reached` and answers once `release` is set."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.release = threading.Event()

    async def on_a_thread(self, request: Request) -> Response:
        await asyncio.to_thread(self._wait)
        return PlainTextResponse("done")

    async def on_the_loop(self, request: Request) -> Response:
        self.reached.set()
        while not self.release.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("done")

    def _wait(self) -> None:
        self.reached.set()
        self.release.wait(30)


class Quick:
    """An application that answers some requests in the protocol, and others as an application."""

    def __init__(self) -> None:
        self.stuck = threading.Event()
        self.release = threading.Event()

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        if url == b"/stuck":
            self.stuck.set()
            self.release.wait(30)
        return b"{}" if self.is_lookup(url, headers) else None

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        return url != b"/usual"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("{}")(scope, receive, send)


@pytest.fixture
def slow() -> Iterator[Slow]:
    endpoint = Slow()
    yield endpoint
    endpoint.release.set()


@pytest.fixture
def rest(slow: Slow) -> Iterator[RestServer]:
    routes = [Route("/", _hello), Route("/thread", slow.on_a_thread), Route("/loop", slow.on_the_loop)]
    with serve(Starlette(routes=routes), port=0) as server:
        yield server


def test_it_answers_once_it_is_started(rest: RestServer) -> None:
    assert httpx2.get(rest.url).text == "hello"


def test_it_binds_to_loopback_by_default(rest: RestServer) -> None:
    assert rest.host == "127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.2", rest.port))  # the port is free on other addresses


def test_it_listens_on_the_given_port(rest: RestServer) -> None:
    port = rest.port
    rest.stop()
    with serve(Starlette(routes=[Route("/", _hello)]), port=port) as again:
        assert again.port == port
        assert httpx2.get(again.url).text == "hello"


def test_a_port_in_use_is_an_error_with_the_setting(rest: RestServer) -> None:
    with pytest.raises(AddressTaken, match=f"port {rest.port}: Address already in use.*rest.port"):
        serve(Starlette(), port=rest.port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_an_error(host: str) -> None:
    with pytest.raises(AddressUnusable, match=r"rest\.host"):
        serve(Starlette(), RestSettings(host=host, insecure=True), port=0)


@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
def test_an_invalid_port_is_an_error(port: int) -> None:
    with pytest.raises(AddressUnusable, match=r"rest\.port"):
        serve(Starlette(), port=port)


def test_listening_for_other_machines_has_to_be_wanted() -> None:
    app = Starlette(routes=[Route("/", _hello)])
    for host in ("0.0.0.0", "::"):
        with pytest.raises(Unprotected, match="rest.insecure"):
            serve(app, RestSettings(host=host), port=0)
    with serve(app, RestSettings(host="0.0.0.0", insecure=True), port=0) as rest:
        assert httpx2.get(f"http://127.0.0.1:{rest.port}").text == "hello"


def test_it_stops_at_once_although_a_connection_is_idle(rest: RestServer) -> None:
    with httpx2.Client(base_url=rest.url) as client:
        assert client.get("/").text == "hello"
        rest.stop(grace=NEVER)
        assert not rest.running
        with pytest.raises(httpx2.TransportError):
            client.get("/")
    rest.stop()


@pytest.mark.parametrize("path", ["/quick", "/usual"])
def test_a_request_that_comes_right_after_a_stop_is_answered(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client had connected before, and couldn't know."""
    for module in (http_protocol, server):
        monkeypatch.setattr(module, "LAST_REQUEST_SECONDS", 30.0)
    with serve(Quick(), port=0) as rest, socket.create_connection(("127.0.0.1", rest.port), timeout=30) as client:
        stopping = threading.Thread(target=rest.stop, args=(60.0,))
        stopping.start()
        until(
            lambda: [getattr(each, "_ending", None) for each in rest._state.connections] == [True],
            "the connection is told",
        )
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        received = b"".join(iter(lambda: client.recv(1000), b""))  # and then it is closed
        assert received.startswith(b"HTTP/1.1 200") and received.endswith(b"{}"), received
        stopping.join()


def test_connections_that_wait_to_be_accepted_when_it_stops_are_answered() -> None:
    app = Quick()
    with serve(app, port=0) as rest, ExitStack() as clients:
        first, *others = (clients.enter_context(socket.socket()) for _ in range(9))
        first.connect(("127.0.0.1", rest.port))
        first.sendall(b"GET /stuck HTTP/1.1\r\nHost: a\r\n\r\n")
        assert app.stuck.wait(10), "the event loop is busy, so nothing is accepted"
        for client in others:
            client.connect(("127.0.0.1", rest.port))
            client.sendall(b"GET /quick HTTP/1.1\r\nHost: a\r\n\r\n")
        stopping = threading.Thread(target=rest.stop, args=(30.0,))
        stopping.start()
        app.release.set()
        assert [client.recv(1000)[:12] for client in (first, *others)] == [b"HTTP/1.1 200"] * 9
        stopping.join()


def test_a_running_request_may_finish(rest: RestServer, slow: Slow) -> None:
    with _Request(rest.url + "/loop") as request:
        assert slow.reached.wait(10)
        stopping = threading.Thread(target=rest.stop, args=(30.0,))
        stopping.start()
        _wait_until_refused(rest)
        slow.release.set()
        stopping.join(10)
    assert request.response is not None
    assert request.response.text == "done"
    assert not rest.running


@pytest.mark.parametrize("path", ["/loop", "/thread"])
def test_a_request_that_does_not_finish_is_answered_with_503(rest: RestServer, slow: Slow, path: str) -> None:
    with _Request(rest.url + path) as request:
        assert slow.reached.wait(10)
        rest.stop(grace=0.1)
        assert not rest.running
        assert not slow.release.is_set(), "it has ended before its request"
    assert request.response is not None
    assert request.response.status_code == 503
    assert request.response.headers["retry-after"] == "1"
    assert request.response.json()["error"] == "stopping"


def test_without_a_free_file_connections_wait_until_there_is_one(
    rest: RestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            for each in clients:
                each.connect(("127.0.0.1", rest.port))
            until(lambda: "REST can't accept connections for now: Too many open files" in caplog.text, "it says so")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: rest.connections == 3, "they are accepted")
        assert httpx2.get(rest.url).text == "hello"


def test_it_writes_nothing_to_stdout(rest: RestServer, capfd: pytest.CaptureFixture[str]) -> None:
    httpx2.get(rest.url)
    rest.stop()
    assert capfd.readouterr().out == ""


class _Request:
    """A request made by another thread."""

    def __init__(self, url: str) -> None:
        self.response: httpx2.Response | None = None
        self._thread = threading.Thread(target=self._get, args=(url,))

    def _get(self, url: str) -> None:
        self.response = httpx2.get(url, timeout=30)

    def __enter__(self) -> "_Request":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)


def _wait_until_refused(rest: RestServer) -> None:
    while True:
        try:
            socket.create_connection((rest.host, rest.port), timeout=10).close()
        except (ConnectionRefusedError, ConnectionResetError):  # reset: accepted by the kernel just before the stop
            return
