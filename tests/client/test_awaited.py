"""The shell on an event loop: hedged reads end with the first good answer, and calls end with their client."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.client import errors
from holdfast.client.awaited import Awaited
from holdfast.client.blocking import Blocking
from holdfast.client.core import Core
from holdfast.client.effects import Lost, Outcome, Race, Raced, Reply, Request, Send
from holdfast.client.store_flows import StoreFlows
from holdfast.client.turns import UNDER_WAY
from tests.client.effects import ROUTING, A, B, reply
from tests.instance.processes import until

FIRST, SECOND = (Send(address, Request("/"), 30.0) for address in ("http://first", "http://second"))
RACE = Race(FIRST, SECOND, 0.01)


class Held(Awaited):
    """Answers the second address when `release` is set, and the first one never."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.sent: list[str] = []
        self.cancelled: list[str] = []
        self.release = asyncio.Event()

    async def _sent(self, send: Send) -> Outcome:
        self.sent.append(send.address)
        try:
            await (self.release if send.address == SECOND.address else asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(send.address)
            raise
        return Reply(send.address, 200, {})


async def _both_asked(shell: Held) -> "asyncio.Task[Raced]":
    read = asyncio.ensure_future(shell._race(RACE))
    while len(shell.sent) < 2:
        await asyncio.sleep(0)
    assert shell.sent == [FIRST.address, SECOND.address]
    return read


def _ended(race: Callable[[Held], Awaitable[None]]) -> list[str]:
    """Which requests of a race were cancelled, after nothing of it is left."""

    async def run() -> list[str]:
        shell = Held()
        async with asyncio.timeout(30):
            await race(shell)
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)
        await shell.close()
        return shell.cancelled

    return asyncio.run(run())


def test_the_slower_request_of_a_race_ends_with_the_answer() -> None:
    async def race(shell: Held) -> None:
        read = await _both_asked(shell)
        shell.release.set()
        assert [each.address for each in await read] == [SECOND.address]

    assert _ended(race) == [FIRST.address]


def test_both_requests_end_with_a_read_that_is_cancelled() -> None:
    async def race(shell: Held) -> None:
        read = await _both_asked(shell)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read

    assert _ended(race) == [FIRST.address, SECOND.address]


def test_a_request_whose_turn_does_not_come_is_not_asked() -> None:
    """The instance hangs with as many requests as it may have."""

    async def run() -> Outcome:
        shell = Held()
        hanging = [asyncio.ensure_future(shell._send(FIRST)) for _ in range(UNDER_WAY)]
        while len(shell.sent) < UNDER_WAY:
            await asyncio.sleep(0)
        outcome = await shell._send(replace(FIRST, seconds=0.01, in_all=60.0))
        assert len(shell.sent) == UNDER_WAY
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        shell.release.set()
        assert isinstance(await shell._send(replace(FIRST, address=SECOND.address)), Reply)
        await shell.close()
        return outcome

    outcome = asyncio.run(asyncio.wait_for(run(), 30))
    assert isinstance(outcome, Lost) and outcome.crowded
    assert "not asked: 8 requests of this client were under way there and 0 others waited" in outcome.reason


def test_a_read_whose_turn_does_not_come_is_hedged() -> None:
    async def race(shell: Held) -> None:
        shell.release.set()
        hanging = [asyncio.ensure_future(shell._send(FIRST)) for _ in range(UNDER_WAY)]
        while len(shell.sent) < UNDER_WAY:
            await asyncio.sleep(0)
        assert [each.address for each in await shell._race(RACE)] == [SECOND.address]
        for each in hanging:
            each.cancel()

    assert _ended(race) == [FIRST.address] * UNDER_WAY, "the first request was never sent"


def test_turns_of_calls_that_are_cancelled_are_free_again() -> None:
    async def race(shell: Held) -> None:
        calls = [asyncio.ensure_future(shell._send(FIRST)) for _ in range(3 * UNDER_WAY)]
        while len(shell.sent) < UNDER_WAY:
            await asyncio.sleep(0)
        calls[0].cancel()
        while len(shell.sent) == UNDER_WAY:
            await asyncio.sleep(0)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        shell.sent.clear()
        again = [asyncio.ensure_future(shell._send(FIRST)) for _ in range(UNDER_WAY)]
        while len(shell.sent) < UNDER_WAY:
            await asyncio.sleep(0)
        for each in again:
            each.cancel()

    assert len(_ended(race)) >= 2 * UNDER_WAY


class Frozen:
    """Instances of which `A` hangs until `lost` says that the time of its requests has passed; others answer."""

    def __init__(self, calls: int) -> None:
        self.core = Core([B], timeout="60s")
        self.keys = range(calls)
        self.asked: list[str] = []

    def answer(self, send: Send) -> Outcome | None:
        """None for a request that hangs."""
        if send.request.path == "/v1/routing":
            return reply(send.address, ROUTING)
        self.asked.append(send.address)
        if send.address == A:
            return None
        key = int(send.request.path.rpartition("/")[2])
        return reply(send.address, {"key": key, "value": key, "task": "0_0", "version": 3})

    def get(self, key: int) -> Any:
        return StoreFlows[int](self.core, "numbers").get(key, None, {}, {})

    def check(self, found: list[Any]) -> None:
        assert found == [*self.keys]
        assert self.asked.count(A) == UNDER_WAY, "those that waited for their turn have asked the other replica"


def test_tasks_that_wait_for_an_instance_that_is_lost_ask_the_other_replica() -> None:
    world = Frozen(300)

    class Shell(Awaited):
        async def _sent(self, send: Send) -> Outcome:
            answer = world.answer(send)
            if answer is None:
                await lost.wait()
            return answer or Lost(send.address, "the answer took too long")

    async def run() -> list[Any]:
        shell = Shell(None, None)
        calls = asyncio.gather(*(shell.run(world.get(key)) for key in world.keys))
        while world.asked.count(A) < UNDER_WAY or world.asked.count(B) < 100:
            await asyncio.sleep(0)
        lost.set()
        found = await calls
        await shell.close()
        return found

    lost = asyncio.Event()
    world.check(asyncio.run(asyncio.wait_for(run(), 30)))


def test_threads_that_wait_for_an_instance_that_is_lost_ask_the_other_replica() -> None:
    world = Frozen(60)
    lost = threading.Event()

    class Shell(Blocking):
        def _sent(self, send: Send) -> Outcome:
            answer = world.answer(send)
            if answer is None:
                assert lost.wait(60)
            return answer or Lost(send.address, "the answer took too long")

    shell = Shell(None, None)
    with ThreadPoolExecutor(len(world.keys)) as threads:
        calls = [threads.submit(shell.run, world.get(key)) for key in world.keys]
        until(lambda: world.asked.count(A) == UNDER_WAY, "as many requests as may be hang")
        until(lambda: len(shell._turns._queues[A, False].waiting) > 0, "others wait for their turn")
        lost.set()
        found = [each.result(30) for each in calls]
    shell.close()
    world.check(found)


class Server:
    """Sends the same bytes to every request, and with none of them never answers."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                connection.recv(65_536)
                self.asked.append(connection)
                if self._answer:
                    connection.sendall(self._answer)
                    connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for connection in (self._listener, *self.asked):
            connection.close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found = Server(request.param)
    yield found
    found.close()


@pytest.mark.parametrize(
    "server", [b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello"], indirect=True
)
def test_an_answer_that_cannot_be_decoded_is_none(server: Server) -> None:
    async def get() -> None:
        async with hf.AsyncClient(server.address, timeout="200ms") as client:
            await client.store("numbers").get(1)

    with pytest.raises(errors.NoAnswer, match="DecodingError"):
        asyncio.run(get())
    with hf.Client(server.address, timeout="200ms") as client, pytest.raises(errors.NoAnswer, match="DecodingError"):
        client.store("numbers").get(1)


@pytest.mark.parametrize("hedge", [None, "1ms"])
@pytest.mark.parametrize("server", [b""], indirect=True)
def test_a_call_that_waits_ends_with_its_client(server: Server, hedge: str | None) -> None:
    async def get() -> None:
        client = hf.AsyncClient(server.address, timeout="1s", hedge=hedge)
        call = asyncio.ensure_future(client.store("numbers").get(1))
        while not server.asked:
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(errors.ClientClosed):
            await call

    asyncio.run(asyncio.wait_for(get(), 30))
    asked = len(server.asked)
    client = hf.Client(server.address, timeout="1s", hedge=hedge)
    with ThreadPoolExecutor(1) as readers:
        read = readers.submit(client.store("numbers").get, 1)
        until(lambda: len(server.asked) > asked, "it waits for an answer")
        client.close()
        with pytest.raises(errors.ClientClosed):
            read.result(30)
