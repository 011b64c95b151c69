"""Accepts connections. Each counts from then on until it is closed, since it is an open file that long.

asyncio's own servers tell nobody of a connection before its TLS handshake: clients that said nothing at all took as
many files as they liked. So connections are accepted here, which takes 0.06 ms more for each. Beyond the limit, or that
of its address, the one that has been idle the longest is closed for a new one; one in its handshake is idle. If none is
idle, the new one is refused: over HTTP by an answer, over HTTPS by its end, since a handshake takes longer than many
lookups.

One that was told to end is a file for some turns of the event loop more. So a few are accepted per turn, and none while
as many end as may: clients that connect faster than connections end wait in the kernel. (10,000 that asked and left had
6,400 files at a limit of 4,000.)
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from holdfast.query.http_protocol import HttpProtocol
from holdfast.query.listening import BACKLOG, accepted
from holdfast.query.problems import OVERLOADED, TOO_MANY, Problem

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""How long a client may take for its TLS handshake."""
AT_ONCE: Final = 64
"""How many connections are accepted in a turn of the loop, and how many beyond the limit may be ending."""
_PAUSE_SECONDS: Final = 1.0


class Connections(set[HttpProtocol]):
    """The connections that are open files."""

    def __init__(self, most: int, most_per_address: int) -> None:
        super().__init__()
        self.most = most
        self.most_per_address = most_per_address
        self.by_address: Counter[str] = Counter()
        self._ending: set[HttpProtocol] = set()
        self.on_closed: Callable[[], None] = lambda: None

    def add(self, connection: HttpProtocol) -> None:
        if connection not in self:
            super().add(connection)
            self.by_address[connection.address] += 1

    def discard(self, connection: HttpProtocol) -> None:  # type: ignore[override]
        if connection in self:
            self._uncount(connection)
            super().discard(connection)
            self._ending.discard(connection)
            self.on_closed()

    def end(self, connection: HttpProtocol) -> None:
        """Has one end, for which another one may be there already."""
        self._uncount(connection)
        self._ending.add(connection)
        connection.abort()

    def _uncount(self, connection: HttpProtocol) -> None:
        if connection not in self._ending:
            self.by_address[connection.address] -= 1
            if not self.by_address[connection.address]:
                del self.by_address[connection.address]

    @property
    def staying(self) -> int:
        """How many there are without those that end."""
        return len(self) - len(self._ending)

    @property
    def room(self) -> int:
        """How many may be accepted now."""
        return min(AT_ONCE, self.most + AT_ONCE - len(self))


class Acceptor:
    """Takes the connections of a listener, until it is stopped. It runs on the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        open_: Connections,
        connection: Callable[[socket.socket, str], HttpProtocol],
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._open = open_
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._resumed: asyncio.TimerHandle | None = None
        self._idle: dict[str | None, list[HttpProtocol]] = {}
        """The connections that may be closed for new ones, by address, as this turn has found them."""
        self._all_busy: set[str | None] = set()

    def start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Stops listening. The last connections are those that waited: the kernel would reset them."""
        self._loop.remove_reader(self._listener)
        self._open.on_closed = lambda: None
        self._take(BACKLOG)
        if self._resumed is not None:
            self._resumed.cancel()
        self._listener.close()

    async def wait_connected(self) -> None:
        """Returns when no connection is in its handshake."""
        while self._connecting:
            await asyncio.wait(tuple(self._connecting))

    def _accept(self) -> None:
        if (room := self._open.room) > 0:
            self._take(room)
        else:
            self._loop.remove_reader(self._listener)
            self._open.on_closed = self._go_on

    def _go_on(self) -> None:
        self._open.on_closed = lambda: None
        self.start()

    def _take(self, most: int) -> None:
        self._idle, self._all_busy = {}, set()
        try:
            for socket_, address in accepted(self._listener, most):
                self._begin(socket_, address)
        except OSError as error:
            log.warning(
                "REST can't accept connections for now: %s. If files are short, raise the limit of open files "
                "(ulimit -n), or lower rest.max_connections.",
                error.strerror,
            )
            self._loop.remove_reader(self._listener)  # which would call again at once, and say the same
            self._resumed = self._loop.call_later(_PAUSE_SECONDS, self.start)

    def _begin(self, socket_: socket.socket, address: str) -> None:
        open_, connection = self._open, self._connection(socket_, address)
        open_.add(connection)
        crowded = address if open_.by_address[address] > open_.most_per_address else None
        is_too_many = crowded is not None or open_.staying > open_.most
        if is_too_many and not self._close_another(connection, crowded):
            if self._tls is not None:
                open_.discard(connection)
                socket_.close()
                return
            connection.refusal = _too_many(open_, crowded)
        task = self._loop.create_task(self._connect(connection, socket_))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _close_another(self, new: HttpProtocol, address: str | None) -> bool:
        """Closes the connection that has been idle the longest, of an address or of all; whether there is one."""
        if address in self._all_busy:
            return False
        for known in (True, False):
            found = self._idle.get(address, []) if known else self._find_idle(address)
            while found:
                each = found.pop()
                if each is not new and each.may_be_closed():
                    self._idle[address] = found
                    self._open.end(each)
                    return True
        self._all_busy.add(address)
        return False

    def _find_idle(self, address: str | None) -> list[HttpProtocol]:
        """The connections that may be closed, the one that has been idle the longest last."""
        found = [each for each in self._open if address in (None, each.address) and each.may_be_closed()]
        return sorted(found, key=lambda each: each.quiet_number, reverse=True)

    async def _connect(self, connection: HttpProtocol, socket_: socket.socket) -> None:
        limits = {} if self._tls is None else {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
        try:
            await self._loop.connect_accepted_socket(lambda: connection, socket_, ssl=self._tls, **limits)
        except OSError as error:  # the client has left, doesn't say hello in TLS, or has no certificate that we accept
            log.debug("a connection was not made: %s", error)
        finally:
            if not connection.is_made:
                self._open.discard(connection)


def _too_many(open_: Connections, address: str | None) -> Problem:
    what = "Ask again in a moment, or ask another instance of the app."
    if address is None:
        fact = f"{open_.most} connections have requests under way, as many as this instance has."
        return Problem(503, OVERLOADED, fact, what)
    most = open_.most_per_address
    fact = f"{most} connections of {address} have requests under way, as many as one address may have."
    return Problem(429, TOO_MANY, fact, what)
