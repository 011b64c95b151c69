"""Requests that pages in browsers were not meant to send, refused where no token protects from them.

A page can have its own name lead to 127.0.0.1 (DNS rebinding). The browser then takes REST for the page's own origin
and lets it read every store. Such a request has the page's name as its `Host`. So where clients don't authenticate, a
request may name only an address, `localhost`, the host that REST listens on, and those of `rest.allowed_hosts`. All
addresses are fine, as a name is what a page needs for it. Programs without a `Host` (HTTP/1.0) aren't browsers.

A page of another origin can't read an answer, but it can send a POST, whose `Origin` is then that of the page: one that
is neither the request's own host nor allowed is refused.

`Host` headers that were accepted are remembered as they were sent, so a lookup costs one more look into a set.
"""

import ipaddress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.instance.credentials import is_loopback
from holdfast.query.http_protocol import Headers, quick_answers_of
from holdfast.query.problems import Problem
from holdfast.query.refusing import RefusedRequests
from holdfast.settings.rest import ANY_HOST, RestSettings

_HOST: Final = b"host"
_ORIGIN: Final = b"origin"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing. OPTIONS is asked before others, by browsers."""
_MOST_KNOWN: Final = 1_000
_SHOWN: Final = 100


class OwnHosts:
    """An ASGI application that refuses requests which name another host, and writes of pages of other origins."""

    def __init__(self, app: ASGIApp, settings: RestSettings) -> None:
        self._app = app
        self._quick = quick_answers_of(app)
        self._refused = RefusedRequests()
        self._hosts = hosts_of(settings)
        self._known: set[bytes] = set()
        self._asks_tokens = settings.tokens is not None or settings.tokens_file is not None
        self._allowed = frozenset(settings.host_names)
        origins = settings.cors_origins
        self._origins = frozenset() if origins is None else frozenset(map(str.strip, origins.lower().split(",")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, send)
            return
        self._refused.report(scope, problem)
        await problem.response()(scope, receive, send)

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        """For requests that name a host of this instance. The others go the usual way, where they are refused."""
        if self._quick is None or self._another_host(headers) is not None:
            return None
        return self._quick.quick_answer(url, headers)

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        return self._quick is not None and self._another_host(headers) is None and self._quick.is_lookup(url, headers)

    def _problem(self, scope: Scope) -> Problem | None:
        headers: Headers = scope["headers"]
        if (host := self._another_host(headers)) is not None:
            return Problem(
                403,
                "host_refused",
                f"The request names the host {_shown(host)}, which is not known as one of this instance.",
                "Ask it by its address or as localhost. If the name is meant, because a proxy passes it on, say, add "
                "it to rest.allowed_hosts; docs/security.md has more.",
            )
        if scope["method"] in _SAFE or self._asks_tokens or (origin := self._another_origin(headers)) is None:
            return None
        return Problem(
            403,
            "origin_refused",
            f"A page of the origin {_shown(origin)} may not send a {scope['method']} here.",
            "If the page is meant, add its origin to rest.cors_origins; or, if a proxy serves it and passes on another "
            "Host, its host to rest.allowed_hosts.",
        )

    def _another_host(self, headers: Headers) -> bytes | None:
        """The `Host` that is not one of this instance, if there is one."""
        if self._hosts is None:
            return None
        for name, value in headers:
            if name == _HOST and value not in self._known and not self._learn(value, self._hosts):
                return value
        return None

    def _learn(self, value: bytes, hosts: frozenset[str]) -> bool:
        host = host_in(value)
        known = host in hosts or _is_address(host)
        if known and len(self._known) < _MOST_KNOWN:
            self._known.add(value)
        return known

    def _another_origin(self, headers: Headers) -> bytes | None:
        """The `Origin` that is not one of this instance, if there is one."""
        hosts = {value.lower() for name, value in headers if name == _HOST}
        for name, value in headers:
            if name != _ORIGIN:
                continue
            at = value.lower().partition(b"://")[2]
            allowed = not self._origins.isdisjoint((value.decode("latin-1").lower(), ANY_HOST))
            if not allowed and at not in hosts and host_in(at) not in self._allowed:
                return value
        return None


def hosts_of(settings: RestSettings) -> frozenset[str] | None:
    """The names that requests may have as their host, besides addresses; None for all names.

    >>> sorted(hosts_of(RestSettings(allowed_hosts="state.example.com")))
    ['127.0.0.1', 'localhost', 'state.example.com']
    >>> hosts_of(RestSettings(tokens="ann 0123456789abcdef read:*")) is None
    True
    """
    given = settings.host_names
    if ANY_HOST in given or (not given and (settings.authenticates or not is_loopback(settings.host))):
        return None
    return frozenset({"localhost", settings.host.lower(), *given})


def host_in(value: bytes) -> str:
    """The host of a `Host` header, without its port.

    >>> host_in(b"LOCALHOST:8080"), host_in(b"[::1]:8080"), host_in(b"example.com")
    ('localhost', '::1', 'example.com')
    """
    text = value.decode("latin-1").strip().lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return repr(value[:_SHOWN].decode("latin-1"))
