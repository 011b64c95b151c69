"""Who calls an instance: calls without an accepted token are refused before anything in them is decoded.

Flight shows the headers of a call to a middleware, and the address of the caller to the method only. So the middleware
compares the tokens, in a time that doesn't depend on them, and the method's first step refuses the call.
"""

import hmac
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow.flight as flight

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    _Factory = object
    _Middleware = object
else:
    _Factory = flight.ServerMiddlewareFactory
    _Middleware = flight.ServerMiddleware

_LOG = logging.getLogger(__name__)
HEADER = "authorization"
CALLERS = "callers"
"""The name of the middleware in the server."""
_SCHEME = b"Bearer "
_WARN_SECONDS = 60.0
_ADDRESSES = 1_000
"""Of how many addresses it is known when they were warned about. Beyond that, refused calls are only counted."""
_METHODS = (flight.FlightMethod.DO_GET, flight.FlightMethod.DO_EXCHANGE, flight.FlightMethod.DO_ACTION)

_refused = metrics.counter("holdfast_state_calls_refused", "Calls of an instance without an accepted token.")


def header_of(token: bytes) -> tuple[bytes, bytes]:
    """The header of a call with a token."""
    return HEADER.encode(), _SCHEME + token


class _Call(_Middleware):
    """One call: whether it has an accepted token."""

    def __init__(self, accepted: bool) -> None:
        self.accepted = accepted


class Callers(_Factory):
    """The callers of one instance. Without tokens, all are accepted."""

    def __init__(self, tokens: Sequence[bytes], clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._tokens = tuple(tokens)
        self._named = NamedOnce(clock)

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> _Call:
        if info.method not in _METHODS:  # pyarrow's own answer to these has a stack trace
            raise flight.FlightServerError("an instance has no such method. Use the client of the same release.")
        sent = [value for name, values in headers.items() if name.lower() == HEADER for value in values]
        return _Call(not self._tokens or (len(sent) == 1 and self._accepts(sent[0])))

    def _accepts(self, sent: str | bytes) -> bool:
        given = sent.encode() if isinstance(sent, str) else sent
        # All are compared, and to the end: how long it takes says nothing about a token.
        equal = [hmac.compare_digest(given, _SCHEME + token) for token in self._tokens]
        return any(equal)

    def check(self, context: flight.ServerCallContext) -> None:
        """Raises for a call without an accepted token."""
        call: _Call = context.get_middleware(CALLERS)
        if call.accepted:
            return
        _refused.inc()
        self._warn(context.peer().rpartition(":")[0])
        raise flight.FlightUnauthenticatedError("the call has no token that this instance accepts")

    def _warn(self, address: str) -> None:
        """One warning per address and minute: a caller without a token may call all the time."""
        if self._named.first(address):
            _LOG.warning(
                "refused a call from %s: it has no token that is in security.token_file of this instance. If it is one "
                "of the app, give it the same file. More calls from there are counted, and named once per minute.",
                address,
            )


class NamedOnce:
    """Which addresses the log has named within the last minute, so that nobody can fill it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._named: dict[str, float] = {}

    def first(self, address: str) -> bool:
        """Whether the address is to be named now."""
        now = self._clock.monotonic()
        with self._lock:
            if now - self._named.get(address, -_WARN_SECONDS) < _WARN_SECONDS:
                return False
            self._named = {each: at for each, at in self._named.items() if now - at < _WARN_SECONDS}
            if len(self._named) >= _ADDRESSES:
                return False
            self._named[address] = now
        return True
