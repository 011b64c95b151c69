"""Accepts connections. Each counts from then on, since it is an open file, whatever its client does next.

asyncio's own servers tell nobody of a connection before its TLS handshake: clients that said nothing at all took as
many files as they liked. So connections are accepted here, which takes 0.06 ms more for each. Beyond the limit, the one
that has been idle the longest is closed for a new one; one in its handshake is idle. If none is idle, the new one is
refused: over HTTP by an answer, over HTTPS by its end, since a handshake takes longer than many lookups.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.query.http_protocol import HttpProtocol
from holdfast.query.limits import OVERLOADED
from holdfast.query.listening import accepted
from holdfast.query.problems import Problem

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""How long a client may take for its TLS handshake."""
_PAUSE_SECONDS: Final = 1.0


class Acceptor:
    """Takes the connections of a listener, until it is stopped. It runs on the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        most: int,
        open_: set[HttpProtocol],
        connection: Callable[[socket.socket], HttpProtocol],
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._most = most
        self._open = open_
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Stops listening. The last connections are those that waited: the kernel would reset them."""
        self._loop.remove_reader(self._listener)
        self._accept()
        if self._paused is not None:
            self._paused.cancel()
        self._listener.close()

    async def wait_connected(self) -> None:
        """Returns when no connection is in its handshake."""
        while self._connecting:
            await asyncio.wait(tuple(self._connecting))

    def _accept(self) -> None:
        try:
            for each in accepted(self._listener):
                self._begin(each)
        except OSError as error:
            log.warning(
                "REST can't accept connections for now: %s. If files are short, raise the limit of open files "
                "(ulimit -n), or lower rest.max_connections.",
                error.strerror,
            )
            self._loop.remove_reader(self._listener)  # which would call again at once, and say the same
            self._paused = self._loop.call_later(_PAUSE_SECONDS, self.start)

    def _begin(self, socket_: socket.socket) -> None:
        connection = self._connection(socket_)
        self._open.add(connection)
        if len(self._open) > self._most and not self._close_another(connection):
            if self._tls is not None:
                self._open.discard(connection)
                socket_.close()
                return
            fact = f"{self._most} connections have requests under way, as many as this instance has."
            what = "Ask again in a moment, or ask another instance of the app."
            connection.refusal = Problem(503, OVERLOADED, fact, what)
        task = self._loop.create_task(self._connect(connection, socket_))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _close_another(self, new: HttpProtocol) -> bool:
        """Closes the connection that has been idle the longest; whether there is one."""
        idle = [each for each in self._open if each is not new and each.may_be_closed()]
        if idle:
            min(idle, key=lambda each: each.quiet_number).abort()
        return bool(idle)

    async def _connect(self, connection: HttpProtocol, socket_: socket.socket) -> None:
        limits = {} if self._tls is None else {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
        try:
            await self._loop.connect_accepted_socket(lambda: connection, socket_, ssl=self._tls, **limits)
        except OSError as error:  # the client has left, doesn't say hello in TLS, or has no certificate that we accept
            log.debug("a connection was not made: %s", error)
        finally:
            if not connection.is_made:
                self._open.discard(connection)
