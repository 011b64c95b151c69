"""Connections whose requests end at a deadline, however the answer arrives.

The timeouts of httpx count from one read of the socket to the next, so a server that sends one byte at a time may take
for ever, in the head of an answer without any turn for us. Here each read and write has the time that is left of the
call in whose thread it is made.
"""

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import httpcore2
import httpx2

from holdfast.client.http import LIMITS, are_proxies_named
from holdfast.clock import Clock

_END: Final[ContextVar[float | None]] = ContextVar("holdfast_end", default=None)
_LEAST_SECONDS: Final = 0.001
"""A timeout of 0 would mean not to wait at all, which is another error."""


@contextmanager
def ending(end: float | None) -> Iterator[None]:
    """Reads and writes of this thread end then, by the monotonic clock."""
    token = _END.set(end)
    try:
        yield
    finally:
        _END.reset(token)


def transport_of(tls: ssl.SSLContext | None, clock: Clock) -> httpx2.BaseTransport | None:
    """None if the environment names proxies: httpx finds the one of an address only with a transport of its own.

    Then the head of an answer has no deadline, but proxies read it before they send it on.
    """
    return None if are_proxies_named() else _Transport(tls, clock)


class _Transport(httpx2.HTTPTransport):
    """The transport of httpx with a pool of our own, since it can't be given a network backend."""

    def __init__(self, tls: ssl.SSLContext | None, clock: Clock) -> None:
        context = httpx2.create_ssl_context() if tls is None else tls
        super().__init__(verify=context, limits=LIMITS)
        self._pool = httpcore2.ConnectionPool(
            ssl_context=context,
            max_connections=LIMITS.max_connections,
            max_keepalive_connections=LIMITS.max_keepalive_connections,
            keepalive_expiry=LIMITS.keepalive_expiry,
            network_backend=_Backend(clock),
        )


class _Backend(httpcore2.SyncBackend):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        left = _left(self._clock, timeout)
        stream = super().connect_tcp(host, port, left, local_address, socket_options)
        return _Stream(stream, self._clock)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._clock, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._clock, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, _left(self._clock, timeout))
        return _Stream(secured, self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(clock: Clock, timeout: float | None) -> float | None:
    end = _END.get()
    if end is None:
        return timeout
    left = max(end - clock.monotonic(), _LEAST_SECONDS)
    return left if timeout is None else min(timeout, left)
