"""A call ends at its deadline, also if the answer arrives one byte at a time."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import holdfast as hf
from holdfast.client.asking import ROUTING
from holdfast.client.awaited import Awaited
from holdfast.client.blocking import Blocking
from holdfast.client.bounded import transport_of
from holdfast.client.effects import Flow, Listen, Outcome
from holdfast.client.errors import NoAnswer
from holdfast.clock import SYSTEM_CLOCK

HEAD = b"HTTP/1.1 200 OK\r\nX-Slow: "
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


class Dripping:
    """A server that answers with some bytes, and with one more each 20 ms until it is closed."""

    def __init__(self, beginning: bytes) -> None:
        self.beginning = beginning
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._listener.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(65_536)
            connection.sendall(self.beginning)
            while not self._ended.wait(0.02):
                connection.sendall(b"a")

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(params=[HEAD, BODY], ids=["head", "body"])
def dripping(request: pytest.FixtureRequest) -> Iterator[Dripping]:
    server = Dripping(request.param)
    guard = threading.Timer(10, server.close)  # a call without a deadline fails by its time, and doesn't hang
    guard.start()
    yield server
    guard.cancel()
    server.close()


def taken(call: Callable[[], object]) -> float:
    began = SYSTEM_CLOCK.monotonic()
    call()
    return SYSTEM_CLOCK.monotonic() - began


@pytest.mark.parametrize("hedge", [None, "50ms"])
def test_a_call_ends_at_its_deadline(dripping: Dripping, hedge: str | None) -> None:
    def get() -> None:
        with hf.Client(dripping.address, timeout="500ms", hedge=hedge) as client, pytest.raises(NoAnswer):
            client.store("numbers").get(1)

    assert taken(get) < 2


def test_a_call_on_an_event_loop_ends_at_its_deadline(dripping: Dripping) -> None:
    async def get() -> None:
        async with hf.AsyncClient(dripping.address, timeout="500ms") as client:
            with pytest.raises(NoAnswer):
                await client.store("numbers").get(1)

    assert taken(lambda: asyncio.run(get())) < 2


def opening(address: str) -> Flow[Outcome]:
    outcome: Outcome = yield Listen(address, ROUTING, 0.3, silence=45.0)
    return outcome


def test_a_watch_has_a_deadline_until_it_is_open(dripping: Dripping) -> None:
    outcomes: list[Outcome] = []
    shell = Blocking(None, None)
    assert taken(lambda: outcomes.append(shell.run(opening(dripping.address)))) < 2
    shell.close()

    async def listen() -> None:
        shell = Awaited(None, None)
        outcomes.append(await shell.run(opening(dripping.address)))
        await shell.close()

    assert taken(lambda: asyncio.run(listen())) < 2
    assert [each.good for each in outcomes] == [dripping.beginning == BODY] * 2


def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert transport_of(None, SYSTEM_CLOCK) is not None
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert transport_of(None, SYSTEM_CLOCK) is None
