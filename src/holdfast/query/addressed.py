"""Requests that say which log they are for, by the header `Holdfast-Log`, are answered by an instance of that log only.

An address outlives its app: another app may get the port. A client that has found its app there names the app's log in
every request, so that it never takes the data of another app for its own. Requests without the header are for whichever
app is there.
"""

from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.log.appfile import AppSpec
from holdfast.query.http_protocol import Headers, quick_answers_of
from holdfast.query.problems import Problem
from holdfast.query.routes import LOG_HEADER

_NAME: Final = LOG_HEADER.encode()


class Addressed:
    """An ASGI application that refuses requests for another log."""

    def __init__(self, app: ASGIApp, spec: Callable[[], AppSpec]) -> None:
        self._app = app
        self._quick = quick_answers_of(app)
        self._spec = spec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_for_another(scope["headers"]):
            await self._problem().response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        """For requests for this log. The others go the usual way, where the refusal is explained."""
        if self._quick is None or self._is_for_another(headers):
            return None
        return self._quick.quick_answer(url, headers)

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        return self._quick is not None and not self._is_for_another(headers) and self._quick.is_lookup(url, headers)

    def _is_for_another(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        return any(name == _NAME and value != self._spec().log.encode() for name, value in headers)

    def _problem(self) -> Problem:
        spec = self._spec()
        return Problem(
            421,
            "another_app",
            f"This is an instance of the app {spec.id!r} with the log {spec.log}, not the log that the request is for.",
            "Give the client the addresses of its app; if the app has started over with a new log, make a new client.",
            {"app": spec.id, "log": spec.log},
        )
