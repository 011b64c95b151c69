"""What both shells set of HTTP."""

import ssl
from typing import Any, Final

import httpx2

from holdfast.client.effects import Listen, Lost, Send
from holdfast.client.tokens import token_of

LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0)
"""As many connections as there are requests under way and watches; each is kept for the next request."""
UNDER_WAY: Final = 8
"""The requests that one client has under way at one instance; others wait for their turn.

An instance reads as many at a time. More would only take longer: a pool of connections takes as long per request as
there are connections in it (2,000 gets: 1.05 s of CPU with 8, 1.4 s with 32, 0.9 s one by one).
"""
WAITING: Final = 32
"""The same for requests with which an instance may wait. Both together are below `rest.max_requests_per_caller`."""
_CONNECT_SECONDS: Final = 2.0
"""A host that exists accepts or refuses a connection in milliseconds."""


def headers_of(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token_of(token, 'token=')}"}


def request_of(effect: Send | Listen) -> dict[str, Any]:
    """The arguments of httpx for a request."""
    silence = effect.seconds if effect.silence is None else effect.silence
    return {
        "method": effect.request.method,
        "url": effect.address + effect.request.path,
        "content": effect.request.body,
        "headers": effect.request.headers,
        "timeout": httpx2.Timeout(silence, connect=min(effect.seconds, _CONNECT_SECONDS)),
    }


def turns_at_once(send: Send) -> int:
    return WAITING if send.waits else UNDER_WAY


def unasked(send: Send) -> Lost:
    """For a request whose turn didn't come."""
    reason = f"not asked: {turns_at_once(send)} requests of this client were under way there all the time"
    return Lost(send.address, reason, unasked=True)


def lost(address: str, error: Exception) -> Lost:
    """Says why. An error about the request itself may have its headers, and so the token."""
    said = "" if isinstance(error, httpx2.LocalProtocolError) else str(error)
    hint = ""
    if isinstance(error, httpx2.RemoteProtocolError) and address.startswith("http:"):
        hint = " Does it serve https://?"
    elif "WRONG_VERSION_NUMBER" in said:
        hint = " Does it serve http://?"
    return Lost(address, f"{type(error).__name__}: {said}{hint}" if said else type(error).__name__, _untrusted(error))


def _untrusted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None
