"""Who may ask what over REST, checked in front of everything that answers.

Every path needs scopes, and `needed` says which. A path that nobody has listed needs all of them: a new route that is
forgotten here is closed, and a path that doesn't exist looks to a stranger like one that does. The scopes of a path
under a store follow from the store's name alone, whether there is such a store or not: a refusal tells nothing.

    /health/live, /health/ready    nothing: load balancers and supervisors have no token, and the answers have a status,
                                   a version and the app's id. They read no store and cost nothing
    /, /v1/docs, and its files     nothing: the page is the same in every app
    /v1/stores, /v1/routing,       any token; they name the stores that the token may read, and the tasks of these
    /v1/openapi.json
    /v1/stores/{store}, and below  read:{store}
    /v1/state, /metrics,           admin
    /health/stores
    /v1/sql                        read:{store} of each store that the statement reads: it has no others as tables
    your own endpoints             read:{store} of each store that they read
    everything else                admin and read:*

In front of that are the hosts and origins that a request may name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.query.access_tokens import Tokens, tokens_of
from holdfast.query.cors import CrossOrigin
from holdfast.query.grants import ADMIN, READ_ALL, Grant, admit, read
from holdfast.query.http_protocol import Headers, quick_answers_of
from holdfast.query.listening import LIVE
from holdfast.query.own_hosts import OwnHosts
from holdfast.query.problems import Problem
from holdfast.query.refusing import RefusedRequests
from holdfast.settings.rest import RestSettings

DOCS: Final = "/v1/docs"
PAGE_FILES: Final[Mapping[str, str]] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "start.js": "text/javascript",
    "start.css": "text/css",
}
"""What the page of the operations loads, with the types."""
OPEN: Final = frozenset({LIVE, "/health/ready", "/", DOCS, *(f"{DOCS}/{name}" for name in PAGE_FILES)})
_STORES: Final = "/v1/stores/"
_NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "/v1/stores": (),
    "/v1/openapi.json": (),
    "/v1/routing": (),
    "/v1/sql": (),
    "/v1/state": (ADMIN,),
    "/metrics": (ADMIN,),
    "/health/stores": (ADMIN,),
}
EVERYTHING: Final = (ADMIN, READ_ALL)
_AUTHORIZATION: Final = b"authorization"
_BEARER: Final = b"bearer "

Needs = Callable[[Scope], Sequence[str] | None]
"""The scopes that a request for a path of the user's own needs; None for other paths."""


def needed(path: str) -> Sequence[str] | None:
    """The scopes that a path of Holdfast's own needs, by its decoded text, which routes are found by.

    >>> needed("/v1/stores/scores/keys/alice"), needed("/metrics"), needed("/v1/no/such/path")
    (('read:scores',), ('admin',), None)
    """
    return (read(path.split("/", 4)[3]),) if path.startswith(_STORES) else _NEEDS.get(path)


def guarded(app: ASGIApp, settings: RestSettings, own: Needs = lambda scope: None) -> ASGIApp:
    """The application for the clients that the settings allow."""
    if (tokens := tokens_of(settings)) is not None:
        app = Guarded(app, tokens, own)
    if settings.cors_origins is not None:
        # In front of the tokens: a browser asks whether it may ask without sending one.
        app = CrossOrigin(app, settings.cors_origins)
    return app if tokens is not None and settings.allowed_hosts is None else OwnHosts(app, settings)


class Guarded:
    """An ASGI application that answers those who may ask, and refuses all others before it."""

    def __init__(
        self, app: ASGIApp, tokens: Callable[[], Tokens], own: Needs = lambda scope: None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._app = app
        self._quick = quick_answers_of(app)
        self._tokens = tokens
        self._own = own
        self._clock = clock
        self._refused = RefusedRequests(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN:
            try:
                grant = self._admitted(scope)
                admit(scope, grant, partial(self._admitted, scope), partial(self._demand, scope, grant))
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        """For requests that may be answered. A refusal goes the usual way, where it is counted and explained.

        The URL may be taken for the path: one with a percent sign before the key has no quick answer.
        """
        if self._quick is None:
            return None
        try:
            grant = self._granted(headers)
        except Problem:
            return None
        needs = needed(url.decode("latin-1"))
        return None if needs is None or not all(map(grant.covers, needs)) else self._quick.quick_answer(url, headers)

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        """A refusal for want of time depends on no token, so its client isn't asked for one."""
        return self._quick is not None and self._quick.is_lookup(url, headers)

    def _admitted(self, scope: Scope) -> Grant:
        """The grant of a request that may be answered now. A refusal is raised, and counted."""
        try:
            grant, needs = self._granted(scope["headers"]), needed(scope["path"])
            if needs is None:
                needs = self._own(scope) or EVERYTHING
            if not all(map(grant.covers, needs)):
                raise _out_of_scope(grant, needs)
        except Problem as problem:
            self._refused.report(scope, problem)
            raise
        return grant

    def _demand(self, scope: Scope, grant: Grant, needs: Sequence[str]) -> None:
        """For what a request turns out to need. A refusal is raised, and counted."""
        if not all(map(grant.covers, needs)):
            problem = _out_of_scope(grant, needs)
            self._refused.report(scope, problem)
            raise problem

    def _granted(self, headers: Iterable[tuple[bytes, bytes]]) -> Grant:
        sent = None
        for name, value in headers:
            if name == _AUTHORIZATION:
                if sent is not None:
                    raise _unknown()  # two headers: a proxy in front of us may have looked at the other one
                sent = value
        if sent is None:
            raise _unauthorized(
                "token_missing", "This path needs a token.", "Send the header Authorization: Bearer TOKEN."
            )
        if sent[:7].lower() != _BEARER or (grant := self._tokens().grant(sent[7:].strip())) is None:
            raise _unknown()
        if grant.expires is not None and self._clock.now() >= grant.expires:
            fact = f"The token of {grant.name!r} has expired."
            raise _unauthorized("token_expired", fact, "Ask the operator of the app for a new one.", _INVALID)
        return grant


_INVALID: Final = 'Bearer error="invalid_token"'


def _unauthorized(error: str, fact: str, what: str, challenge: str = "Bearer") -> Problem:
    return Problem(401, error, fact, what, headers={"WWW-Authenticate": challenge})


def _unknown() -> Problem:
    what = "Send one header Authorization: Bearer TOKEN, with a token of this app."
    return _unauthorized("token_unknown", "The token is not one of this app.", what, _INVALID)


def _out_of_scope(grant: Grant, needs: Sequence[str]) -> Problem:
    shown = [scope[:100] for scope in needs]  # a store's name is as the client wrote it
    return Problem(
        403,
        "out_of_scope",
        f"The token of {grant.name!r} is not for this path, which needs {' and '.join(shown)}.",
        "Ask the operator of the app for a token with these scopes.",
        {"needs": shown},
        {"WWW-Authenticate": 'Bearer error="insufficient_scope"'},
    )
