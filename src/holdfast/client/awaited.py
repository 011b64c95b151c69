"""Performs the effects of flows on an event loop."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, closing
from typing import Any

import httpx2

from holdfast.client.effects import (
    Effect,
    Emit,
    Flow,
    Listen,
    Lost,
    Once,
    Outcome,
    Pause,
    Race,
    Raced,
    Receive,
    Reply,
    Send,
    T,
    counted_first,
)
from holdfast.client.errors import ClientClosed
from holdfast.client.http import LIMITS, are_proxies_named, headers_of, lost, request_of
from holdfast.client.turns import Turns, longest_wait
from holdfast.clock import pause


class _Opened:
    """The answer that a flow has open, if any."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._address = ""
        self._chunks: AsyncIterator[bytes] | None = None

    def hold(self, address: str, response: httpx2.Response, stack: AsyncExitStack) -> None:
        self._address, self._chunks, self._stack = address, response.aiter_bytes(), stack

    async def receive(self) -> bytes | Lost:
        if self._chunks is None:
            return b""
        try:
            return await anext(self._chunks, b"")
        except httpx2.RequestError as error:
            return lost(self._address, error)

    async def aclose(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()


class _PerAddress(httpx2.AsyncBaseTransport):
    """A pool of connections per address: for each request, a pool looks at all of its connections."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = httpx2.create_ssl_context() if tls is None else tls
        self._pools: dict[bytes, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        address = request.url.raw_scheme + request.url.netloc
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = httpx2.AsyncHTTPTransport(verify=self._tls, limits=LIMITS)
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        for pool in [*self._pools.values()]:
            await pool.aclose()


class Awaited:
    """Performs effects; keeps its connections until it is closed."""

    def __init__(self, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._http = httpx2.AsyncClient(
            verify=True if tls is None else tls,
            headers=headers_of(token),
            limits=LIMITS,
            transport=None if are_proxies_named() else _PerAddress(tls),
        )
        self._turns = Turns["asyncio.Future[bool]"](lambda: asyncio.get_running_loop().create_future())
        self._once: asyncio.Future[Any] | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """The result of a flow that emits nothing."""
        async with aclosing(_Opened()) as opened:
            try:
                effect = next(flow)
                while True:
                    effect = flow.send(await self._perform(effect, opened))
            except StopIteration as done:
                result: T = done.value
                return result

    async def iterate(self, flow: Flow[None]) -> AsyncIterator[Any]:
        """The items that a flow emits."""
        with closing(flow):
            async with aclosing(_Opened()) as opened:
                outcome: Any = None
                while True:
                    try:
                        effect = flow.send(outcome)
                    except StopIteration:
                        return
                    if isinstance(effect, Emit):
                        yield effect.item
                        outcome = None
                    else:
                        outcome = await self._perform(effect, opened)

    async def _perform(self, effect: Effect, opened: _Opened) -> Any:
        if self._http.is_closed:
            raise ClientClosed()
        match effect:
            case Send():
                return await self._send(effect)
            case Race():
                return await self._race(effect)
            case Listen():
                await opened.aclose()
                return await self._listen(effect, opened)
            case Receive():
                return await opened.receive()
            case Pause():
                await pause(effect.seconds)
            case Once():
                return await self._shared(effect)
        return None

    async def _shared(self, once: Once) -> Any:
        if self._once is None:
            self._once = asyncio.ensure_future(self.run(once.flow))
            self._once.add_done_callback(self._end_once)
        try:
            async with asyncio.timeout(once.seconds):
                return await asyncio.shield(self._once)
        except TimeoutError:
            return None

    def _end_once(self, ended: "asyncio.Future[Any]") -> None:
        self._once = None
        if not ended.cancelled():
            ended.exception()  # those who wait have it; there may be none any more

    async def _send(self, send: Send) -> Outcome:
        coming = self._turns.take(send)
        turn = send if coming is None else await self._turn(send, coming)
        if isinstance(turn, Lost):
            return turn
        try:
            outcome = await self._sent(turn)
            if isinstance(outcome, Lost):
                self._turns.lost(send.address)
            return outcome
        finally:
            self._turns.end(send)

    async def _turn(self, send: Send, coming: "asyncio.Future[bool]") -> Send | Lost:
        now = asyncio.get_running_loop().time
        start = now()
        try:
            await asyncio.wait([coming], timeout=longest_wait(send))
        except asyncio.CancelledError:
            if isinstance(self._turns.settled(send, coming, 0.0), Send):
                self._turns.end(send)
            raise
        return self._turns.settled(send, coming, now() - start)

    async def _sent(self, send: Send) -> Outcome:
        try:
            async with asyncio.timeout(send.seconds):
                response = await self._http.request(**request_of(send))
        except TimeoutError:
            return Lost(send.address, "the answer took too long")
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return lost(send.address, error)
        return Reply(send.address, response.status_code, response.headers, response.content)

    async def _listen(self, listen: Listen, opened: _Opened) -> Outcome:
        try:
            # Once it is open, the answer goes on for as long as something arrives.
            async with asyncio.timeout(listen.seconds), AsyncExitStack() as stack:
                response = await stack.enter_async_context(self._http.stream(**request_of(listen)))
                body = b"" if response.status_code == 200 else await response.aread()
                if response.status_code == 200:
                    opened.hold(listen.address, response, stack.pop_all())
        except TimeoutError:
            return Lost(listen.address, "the answer took too long")
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return lost(listen.address, error)
        return Reply(listen.address, response.status_code, response.headers, body)

    async def _race(self, race: Race) -> Raced:
        racing = [asyncio.ensure_future(self._send(race.first))]
        try:
            done, _ = await asyncio.wait(racing, timeout=race.after)
            if done and racing[0].result().good:
                return (racing[0].result(),)
            if self._turns.has_free(race.second):  # a second request would add load when there is most of it
                racing.append(asyncio.ensure_future(self._send(race.second)))
            done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            if not any(each.result().good for each in done):
                done, _ = await asyncio.wait(racing)
            return counted_first([each.result() for each in racing if each in done])
        finally:
            for each in racing:
                each.cancel()
