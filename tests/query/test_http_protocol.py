"""Quick answers over sockets: requests that are split, pipelined, malformed or unusual are answered as ever."""

import asyncio
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.query import outgoing, server
from holdfast.query.http_protocol import Headers
from holdfast.query.problems import answer_problem
from holdfast.query.server import RestServer, serve
from holdfast.settings.rest import RestSettings
from tests.instance.processes import until


class Echo:
    """Answers /quick at once and everything else as an application; both name the URL, and say who has answered."""

    def __init__(self) -> None:
        self.quick = 0
        self.slow_may_end = threading.Event()
        self.slow_may_end.set()

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        if url.startswith(b"/broken"):
            raise ValueError("broken")
        if not self.is_lookup(url, headers):
            return None
        self.quick += 1
        return b'"quick %b"' % url + b" " * (1 << 20 if b"large" in url else 0)

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        return url.startswith(b"/quick")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = await receive()
        while not self.slow_may_end.is_set():
            await asyncio.sleep(0.001)
        size = {b"/large": 1 << 20, b"/huge": 64 << 20}.get(scope["raw_path"], 0)
        body = b'"usual %b %d"' % (scope["raw_path"], len(received["body"])) + b" " * size
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def rest(echo: Echo) -> Iterator[RestServer]:
    with serve(echo, port=0) as server:
        yield server


class Connection:
    def __init__(self, rest: RestServer) -> None:
        self.socket = socket.create_connection((rest.host, rest.port), timeout=20)
        self.lines = self.socket.makefile("rb")

    def answer(self) -> tuple[int, dict[str, str], str]:
        """The next answer: its status, headers and body."""
        status = int(self.lines.readline().split()[1])
        headers = {}
        while (line := self.lines.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers, self.lines.read(int(headers["content-length"])).decode().strip()

    def body(self) -> str:
        return str(json.loads(self.answer()[2]))

    def is_closed(self) -> bool:
        return self.lines.read(1) == b""


@contextmanager
def connected(rest: RestServer) -> Iterator[Connection]:
    connection = Connection(rest)
    try:
        yield connection
    finally:
        connection.lines.close()
        connection.socket.close()


def get(path: str, *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: test", *headers, "", ""]).encode()


def test_one_connection_gets_many_quick_answers(rest: RestServer) -> None:
    with connected(rest) as connection:
        for number in range(3):
            connection.socket.sendall(get(f"/quick/{number}"))
            assert connection.body() == f"quick /quick/{number}"


def test_a_request_may_come_byte_by_byte(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in get("/quick/slowly?a=b", "X-Other: c"):
            connection.socket.sendall(bytes([byte]))
        assert connection.body() == "quick /quick/slowly?a=b"


def test_pipelined_requests_are_answered_in_their_order(rest: RestServer, echo: Echo) -> None:
    echo.slow_may_end.clear()
    with connected(rest) as connection:
        paths = ["/quick/1", "/usual/2", "/quick/3", "/quick/4", "/usual/5", "/quick/6"]
        connection.socket.sendall(b"".join(map(get, paths)))
        assert connection.body() == "quick /quick/1"
        echo.slow_may_end.set()
        # Behind a request that isn't answered yet, none is answered quickly.
        assert [connection.body().split()[1] for _ in paths[1:]] == paths[1:]
        connection.socket.sendall(get("/quick/7"))
        assert connection.body() == "quick /quick/7"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(get("/quick", "Content-Length: 3") + b"abc", id="a body"),
        pytest.param(get("/quick", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n", id="chunks"),
    ],
)
def test_a_request_with_a_body_goes_the_usual_way(rest: RestServer, request_: bytes) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(request_ + get("/quick/after"))
        assert connection.body() == "usual /quick 3"
        assert connection.body().split()[1] == "/quick/after"
        connection.socket.sendall(get("/quick/later"))
        assert connection.body() == "quick /quick/later"


@pytest.mark.parametrize("method", ["HEAD", "POST", "DELETE", "OPTIONS"])
def test_other_methods_go_the_usual_way(rest: RestServer, method: str) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/quick", method=method, version="1.1"))
        status, headers, _ = connection.answer() if method != "HEAD" else (200, {}, "")
        assert (status, headers.get("content-type")) == (200, None)


def test_an_upgrade_goes_the_usual_way(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/quick", "Connection: Upgrade", "Upgrade: websocket"))
        assert connection.body() == "usual /quick 0"


def test_a_client_of_http_1_0_is_answered_and_closed(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/quick", version="1.0"))
        assert connection.body() == "usual /quick 0"
        assert connection.is_closed()


def test_a_client_that_asks_for_it_is_closed_after_the_answer(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/quick", "Connection: close"))
        status, headers, body = connection.answer()
        assert (status, headers["connection"], body) == (200, "close", '"quick /quick"')
        assert connection.is_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"GET /quick HTTP/9.9\r\n\r\n",
        b"GET /qu ick HTTP/1.1\r\n\r\n",
        b"GET /quick HTTP/1.1\r\nNo colon\r\n\r\n",
        b"GET /quick HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"GET /quick HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"GET /quick HTTP/1.1\r\nContent-Length: minus\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_closed(rest: RestServer, sent: bytes) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(sent)
        status, _, body = connection.answer()
        assert status == 400
        assert json.loads(body)["error"] == "bad_request"
        assert connection.is_closed()
    with connected(rest) as other:
        other.socket.sendall(get("/quick"))
        assert other.body() == "quick /quick"


def test_what_comes_before_it_is_answered_first(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/quick/1") + get("/quick/2") + b"no request\r\n\r\n")
        assert [connection.body() for _ in range(2)] == ["quick /quick/1", "quick /quick/2"]
        assert connection.lines.readline().startswith(b"HTTP/1.1 400")


def test_a_head_without_end_is_refused(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(b"GET /quick HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):  # reset, or a broken pipe
            connection.socket.sendall((b"X-More: " + b"x" * 8_000 + b"\r\n") * 10_000)


def test_a_long_key_is_answered(rest: RestServer) -> None:
    path = "/quick/" + "%C3%A9" * 16_000
    with connected(rest) as connection:
        for _ in range(4):  # together more than the head of one request may have
            connection.socket.sendall(get(path))
            assert connection.body() == f"quick {path}"


def test_an_error_in_a_quick_answer_goes_the_usual_way(rest: RestServer, caplog: pytest.LogCaptureFixture) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/broken"))
        assert connection.body() == "usual /broken 0"
    assert "can't be answered quickly" in caplog.text


def test_a_client_that_reads_nothing_gets_no_further_answers_into_memory(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/large") * 8 + get("/quick/last"))
        for _ in range(8):
            assert connection.body().startswith("usual /large")
        assert connection.body().split()[1] == "/quick/last"


def test_large_answers_wait_for_a_client_that_reads_nothing(rest: RestServer, echo: Echo) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/quick/large") * 50)
        assert connection.lines.readline() == b"HTTP/1.1 200 OK\r\n"
        assert echo.quick < 20, "the others go the usual way, one after the other, as the client reads"


def test_a_refusal_does_not_overtake_an_answer(rest: RestServer, echo: Echo) -> None:
    echo.slow_may_end.clear()
    with connected(rest) as connection:
        connection.socket.sendall(get("/usual/1") + get("/usual/2") + b"no request\r\n\r\n")
        assert select.select([connection.socket], [], [], 0.2)[0] == []
        echo.slow_may_end.set()
        assert [connection.body().split()[1] for _ in range(2)] == ["/usual/1", "/usual/2"]
        assert connection.is_closed()


def test_a_long_url_goes_the_usual_way_too(rest: RestServer) -> None:
    with connected(rest) as connection:
        path = "/usual/" + "%C3%A9" * 16_000
        connection.socket.sendall(get(f"{path}?at=latest"))
        assert connection.body() == f"usual {path} 0"


@pytest.mark.parametrize("headers", [(), ("Connection: close",)], ids=["stays", "close"])
def test_a_client_that_reads_nothing_is_left(
    headers: tuple[str, ...], echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "UNREAD_SECONDS", 0.1)
    monkeypatch.setattr(outgoing, "LOOK_SECONDS", 0.05)
    with serve(echo, port=0) as rest, connected(rest) as connection:
        connection.socket.sendall(get("/huge", *headers))
        until(lambda: rest.connections, "it is connected")
        until(lambda: not rest.connections, "the connection is ended")


def test_an_idle_connection_is_closed(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.1)
    with serve(echo, port=0) as rest:
        with connected(rest) as silent:
            assert silent.is_closed()
        with connected(rest) as half:
            half.socket.sendall(b"GET /quick HTTP/1.1\r\n")
            assert half.is_closed()
        with connected(rest) as idle:
            idle.socket.sendall(get("/quick"))
            assert idle.body() == "quick /quick"
            assert idle.is_closed()


def test_a_client_that_reads_nothing_does_not_delay_a_stop(rest: RestServer) -> None:
    with connected(rest) as connection:
        connection.socket.sendall(get("/large") * 30)
        assert connection.lines.readline() == b"HTTP/1.1 200 OK\r\n"
        rest.stop(grace=0.1)
        assert not rest.running


def test_a_connection_lives_on_after_an_error_that_was_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(request: Request) -> Response:
        raise ValueError("raised again by Starlette")

    app = Starlette(routes=[Route("/", failing)], exception_handlers={Exception: answer_problem})
    with serve(app, port=0) as rest, connected(rest) as connection:
        for _ in range(2):
            connection.socket.sendall(get("/"))
            assert connection.answer()[0] == 500
    assert [record.getMessage() for record in caplog.records] == ["GET / failed"] * 2, "each is logged once"


def test_an_error_after_the_answer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b'""'})
        raise ValueError("nobody has seen it")

    with serve(failing, port=0) as rest, connected(rest) as connection:
        for _ in range(2):
            connection.socket.sendall(get("/path"))
            assert connection.answer()[0] == 200
    assert caplog.text.count("an error after the answer to GET /path") == 2 and "nobody has seen it" in caplog.text


def test_a_connection_is_closed_after_an_answer_that_was_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b'"cut', "more_body": True})
        raise ValueError("in the middle")

    with serve(failing, port=0) as rest, connected(rest) as connection:
        connection.socket.sendall(get("/"))
        assert connection.answer()[2] == '"cut'
        assert connection.is_closed()
    assert "in the middle" in caplog.text


def test_beyond_the_limit_of_connections_the_longest_idle_one_is_closed(echo: Echo) -> None:
    with serve(echo, RestSettings(max_connections=2), port=0) as rest, connected(rest) as first:
        first.socket.sendall(get("/quick/1"))
        assert first.body() == "quick /quick/1"
        with connected(rest) as second, connected(rest) as third:
            third.socket.sendall(get("/quick/3"))
            assert third.body() == "quick /quick/3"
            assert first.is_closed()
            second.socket.sendall(get("/quick/2"))
            assert second.body() == "quick /quick/2"


def test_a_connection_is_refused_if_all_others_have_requests_under_way(echo: Echo) -> None:
    echo.slow_may_end.clear()
    with serve(echo, RestSettings(max_connections=1), port=0) as rest, connected(rest) as busy:
        busy.socket.sendall(get("/usual/1"))
        until(lambda: rest.under_way, "the request is under way")
        with connected(rest) as refused:
            status, headers, body = refused.answer()
            assert (status, headers["retry-after"], json.loads(body)["error"]) == (503, "1", "overloaded")
            assert refused.is_closed()
        echo.slow_may_end.set()
        assert busy.body().startswith("usual /usual/1")


def test_a_connection_that_asks_what_has_no_quick_answer_is_not_the_longest_idle_one(echo: Echo) -> None:
    with serve(echo, RestSettings(max_connections=2), port=0) as rest, connected(rest) as busy, connected(rest) as idle:
        idle.socket.sendall(get("/quick/1"))
        assert idle.body() == "quick /quick/1"
        busy.socket.sendall(get("/usual/2"))
        assert busy.body() == "usual /usual/2 0"
        with connected(rest) as new:
            assert idle.is_closed()
            for connection in (busy, new):
                connection.socket.sendall(get("/usual/3"))
                assert connection.body() == "usual /usual/3 0"
