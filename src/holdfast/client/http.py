"""What both shells set of HTTP."""

import ssl
from typing import Any, Final
from urllib.request import getproxies

import httpx2

from holdfast.client.effects import Listen, Lost, Send
from holdfast.client.tokens import token_of

LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0)
"""As many connections as there are requests under way and watches; each is kept for the next request."""
_CONNECT_SECONDS: Final = 2.0
"""A host that exists accepts or refuses a connection in milliseconds."""


def are_proxies_named() -> bool:
    """Whether the environment names proxies. httpx finds the one of an address only if it is given no transport."""
    proxies = getproxies()
    return any(proxies.get(name) for name in ("http", "https", "all"))


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
