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
from holdfast.client.http import LIMITS, headers_of, lost, request_of
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


class Awaited:
    """Performs effects; keeps its connections until it is closed."""

    def __init__(self, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._http = httpx2.AsyncClient(verify=True if tls is None else tls, headers=headers_of(token), limits=LIMITS)

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

    async def _perform(self, effect: Effect, opened: _Opened) -> Outcome | Raced | bytes | None:
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
        return None

    async def _send(self, send: Send) -> Outcome:
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
        first = asyncio.ensure_future(self._send(race.first))
        racing = [first]
        try:
            done, _ = await asyncio.wait(racing, timeout=race.after)
            if done and first.result().good:
                return (first.result(),)
            racing.append(asyncio.ensure_future(self._send(race.second)))
            done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            if not any(each.result().good for each in done):
                done, _ = await asyncio.wait(racing)
            return counted_first([each.result() for each in racing if each in done])
        finally:
            for each in racing:
                each.cancel()
