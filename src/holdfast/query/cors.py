"""Answers for pages of other origins, which browsers show them only with the headers of CORS.

Only browsers send `Origin`. A request without it needs none of these headers, so it is answered as quickly as if no
origin were allowed; one with it goes the usual way, where Starlette adds them.
"""

from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.query.answers import MORE_HEADER, SOURCE_HEADERS
from holdfast.query.http_protocol import Headers, quick_answers_of
from holdfast.query.routes import LOG_HEADER

_ORIGIN: Final = b"origin"


class CrossOrigin:
    """An ASGI application whose answers pages of these origins may read; `*` is every page."""

    def __init__(self, app: ASGIApp, origins: str) -> None:
        self._quick = quick_answers_of(app)
        self._app = CORSMiddleware(
            app,
            allow_origins=[origin.strip() for origin in origins.split(",")],
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("authorization", "content-type", "last-event-id", LOG_HEADER),
            expose_headers=("retry-after", *SOURCE_HEADERS, MORE_HEADER),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        return None if self._quick is None or _has_origin(headers) else self._quick.quick_answer(url, headers)

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        """A page couldn't read a refusal either, so its requests are refused by the usual limits."""
        return self._quick is not None and not _has_origin(headers) and self._quick.is_lookup(url, headers)


def _has_origin(headers: Headers) -> bool:
    return any(name == _ORIGIN for name, _ in headers)
