"""Performs the effects of flows on an event loop."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import replace
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
from holdfast.client.http import LIMITS, headers_of, lost, request_of, turns_at_once, unasked
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
        self._turns: dict[tuple[str, bool], asyncio.Semaphore] = {}
        """By address, those of requests with which an instance may wait apart."""
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
        begun = await self._turn(send)
        if begun is None:
            return unasked(send)
        try:
            return await self._sent(begun)
        finally:
            self._turns_of(send).release()

    def _turns_of(self, send: Send) -> asyncio.Semaphore:
        found = self._turns.get((send.address, send.waits))
        if found is None:
            found = self._turns[send.address, send.waits] = asyncio.Semaphore(turns_at_once(send))
        return found

    async def _turn(self, send: Send) -> Send | None:
        """The request when its turn has come, with the time that it has then; None if it didn't come."""
        turns, now = self._turns_of(send), asyncio.get_running_loop().time
        if not turns.locked():
            await turns.acquire()
            return send
        end = now() + (send.seconds if send.in_all is None else send.in_all)
        try:
            async with asyncio.timeout_at(end):
                await turns.acquire()
        except TimeoutError:
            return None
        return replace(send, seconds=min(send.seconds, end - now()))

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
        begun = await self._turn(race.first)
        if begun is None:
            return (unasked(race.first),)
        first = self._started(begun)
        racing = [first]
        try:
            done, _ = await asyncio.wait(racing, timeout=race.after)
            if done and first.result().good:
                return (first.result(),)
            turns = self._turns_of(race.second)
            if not turns.locked():  # a second request would add load when there is most of it
                await turns.acquire()
                racing.append(self._started(race.second))
            done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            if not any(each.result().good for each in done):
                done, _ = await asyncio.wait(racing)
            return counted_first([each.result() for each in racing if each in done])
        finally:
            for each in racing:
                each.cancel()

    def _started(self, send: Send) -> "asyncio.Future[Outcome]":
        """The outcome to come of a request whose turn it is."""
        sent = asyncio.ensure_future(self._sent(send))
        sent.add_done_callback(lambda _: self._turns_of(send).release())
        return sent
