"""An application whose requests are counted and timed, each once and with the status that its client gets.

This is in front of everything that may refuse a request: tokens, hosts, limits, deadlines. Lookups that are answered or
refused quickly never come here, and are counted where that happens.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.clock import SYSTEM_CLOCK
from holdfast.query.http_protocol import Headers, quick_answers_of
from holdfast.query.measuring import NO_ANSWER, REQUESTS


class MeasuredApp:
    """`path_of` gives the path of a request with the names of its parts: each has its own counts."""

    def __init__(self, app: ASGIApp, path_of: Callable[[Scope], str]) -> None:
        self._app = app
        self._quick = quick_answers_of(app)
        self._path_of = path_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = SYSTEM_CLOCK.monotonic()
        counted = False

        def count(status: int) -> None:
            nonlocal counted
            if not counted:
                counted = True
                REQUESTS.observe(self._path_of(scope), status, scope, SYSTEM_CLOCK.monotonic() - began)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        status = 500  # which the server answers for an error
        try:
            await self._app(scope, receive, sending)
            status = NO_ANSWER
        except asyncio.CancelledError:
            status = NO_ANSWER
            raise
        finally:
            count(status)

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        return None if self._quick is None else self._quick.quick_answer(url, headers)

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        return self._quick is not None and self._quick.is_lookup(url, headers)
