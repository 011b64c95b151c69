"""Bytes of answers that clients haven't read yet: limited per caller and together.

What the kernel doesn't take is kept here, in the order of the answers, and handed on in pieces as the client reads. So
it is known how much waits, for whom, and who reads: `asyncio` says neither over TLS.

    room for an answer    its caller has less than `rest.max_unread_per_caller` waiting, and all together have less
                          than `rest.max_unread`. A large answer without room is refused before it begins; a stream
                          waits before its next piece is made
    a client that reads   is never cut off, however slowly
    one that doesn't      is cut off after 60 s; after 10 s if there is no room for others, the longest first
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections import Counter, deque
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl

from holdfast import metrics
from holdfast.query.problems import OVERLOADED, TOO_MANY, Problem
from holdfast.settings.units import format_size

UNREAD_SECONDS: Final = 60.0
"""How long a client may read nothing of what was sent to it. Then its connection ends, and what was read for it."""
STALLED_SECONDS: Final = 10.0
"""The same while there is no room for others. Machines acknowledge what they get more often, on slow networks too."""
LOOK_SECONDS: Final = 1.0
LARGE_ANSWER: Final = 64 << 10
OUTGOING: Final = "holdfast.outgoing"
"""In the scope of a request: its connection's `Outgoing`."""

_PIECE: Final = 128 << 10
_INT: Final = struct.Struct("i")
_waiting = metrics.gauge("holdfast_rest_unread_bytes", "Bytes of REST answers that clients haven't read yet.")
_cut = metrics.counter("holdfast_rest_connections_stalled", "Connections that were ended: their client reads nothing.")


class Unread:
    """The bytes that wait for all clients of a server. It runs on the event loop."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._total = 0
        self._by: Counter[str] = Counter()
        self._slow: dict[Outgoing, None] = {}
        """The connections for which bytes wait."""
        self._looking = False
        self._changed = asyncio.Event()

    def has_room(self, who: str) -> bool:
        return self._total < self._most and self._by[who] < self._most_each

    def make_room(self, who: str) -> bool:
        """Whether there is room, if need be after clients were cut off that read nothing."""
        if not self.has_room(who):
            everyone = self._total >= self._most
            stalled = [each for each in self._slow if (everyone or each.who == who) and each.stalled >= STALLED_SECONDS]
            for each in sorted(stalled, key=lambda each: each.stalled, reverse=True):
                each.cut()
                if self.has_room(who):
                    break
        return self.has_room(who)

    def refusal(self, who: str) -> Problem:
        """Why there is no room."""
        what = "Read the answers that were sent, or ask for less, and ask again after the time in Retry-After."
        if self._by[who] >= self._most_each:
            most = format_size(self._most_each)
            fact = f"{most} of answers to {who} are unread, as much as one caller may have."
            return Problem(429, TOO_MANY, fact, what)
        fact = f"{format_size(self._most)} of answers are unread by clients, as much as this instance keeps."
        return Problem(503, OVERLOADED, fact, what)

    async def room(self, who: str) -> None:
        """Returns when there is room."""
        while not self.make_room(who):
            self._changed.clear()
            await self._changed.wait()

    def count(self, outgoing: "Outgoing", who: str, more: int) -> None:
        """Bytes were added for a caller, or are gone."""
        self._total += more
        self._by[who] += more
        if not self._by[who]:
            del self._by[who]
        _waiting.inc(more)
        if outgoing.waiting:
            self._slow[outgoing] = None
            if not self._looking:
                self._looking = True
                asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        else:
            self._slow.pop(outgoing, None)
        if more < 0:
            self._changed.set()

    def is_far_beyond(self, who: str) -> bool:
        """Whether so much waits that answers must have come past the question for room."""
        return self._total >= 2 * self._most or self._by[who] >= 2 * self._most_each

    def _look(self) -> None:
        for each in tuple(self._slow):
            if each.look() >= UNREAD_SECONDS:
                each.cut()
        self._changed.set()  # those who wait for room may find clients that have stalled
        self._looking = bool(self._slow)
        if self._looking:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)


class Outgoing:
    """The transport of one connection, which keeps what its client hasn't read."""

    def __init__(self, transport: asyncio.Transport, accepted: socket.socket, unread: Unread, who: str) -> None:
        self._transport = transport
        self._accepted = accepted
        self._unread = unread
        self._flow: FlowControl
        """Has those who send wait while bytes do."""
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._paused = self._closing = False
        self.who = who
        """For whom the bytes wait: the caller of the last request."""
        self.waiting = 0
        self._written = 0
        self._taken = -1
        """How many of the written bytes the client's machine has taken, at the last look."""
        self._since = 0.0

    def begin(self, flow: FlowControl) -> None:
        """From now on what the kernel doesn't take is known at once. Over TLS that may be the end of the handshake."""
        self._flow = flow
        self._transport.set_write_buffer_limits(1, 0)

    # What uvicorn calls.

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        self._written += len(data)
        if not self._paused and not self._queue and len(data) <= _PIECE:
            self._transport.write(data)
            self._count()
            return
        self._queue.append(memoryview(data))
        self._queued += len(data)
        self._push()
        if self.waiting and self._unread.is_far_beyond(self.who) and not self._unread.make_room(self.who):
            self.cut()

    def close(self) -> None:
        """Ends the connection when all is sent."""
        self._closing = True
        if not self._queue:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    # What the transport calls.

    def pause(self) -> None:
        self._paused = True
        self._flow.pause_writing()

    def resume(self) -> None:
        self._paused = False
        self._push()
        if not self.waiting:
            self._flow.resume_writing()

    def lost(self) -> None:
        """The connection has ended."""
        self._closing = True
        self._queue.clear()
        self._queued = 0
        self._paused = False
        self._count()

    # What `Unread` and the application ask.

    def owned_by(self, who: str) -> None:
        """From now on bytes wait for this caller."""
        if who != self.who:
            waiting, self.waiting = self.waiting, 0
            self._unread.count(self, self.who, -waiting)
            self.who, self.waiting = who, waiting
            self._unread.count(self, who, waiting)

    def make_room(self) -> bool:
        return self._unread.make_room(self.who)

    def refusal(self) -> Problem:
        return self._unread.refusal(self.who)

    async def taken(self) -> None:
        """Returns when nothing waits here, and there is room for a further piece."""
        await self._flow.drain()
        await self._unread.room(self.who)

    @property
    def stalled(self) -> float:
        """For how many seconds the client has read nothing."""
        return asyncio.get_running_loop().time() - self._since

    def look(self) -> float:
        """Looks whether the client has read since the last look; for how many seconds it hasn't."""
        taken = self._written - self._queued - self._in_kernel()
        if taken != self._taken:
            self._taken, self._since = taken, asyncio.get_running_loop().time()
        return self.stalled

    def cut(self) -> None:
        """Ends the connection of a client that reads nothing."""
        _cut.inc()
        self.abort()
        self.lost()

    def _push(self) -> None:
        while self._queue and not self._paused:
            first = self._queue[0]
            if len(first) > _PIECE:
                self._queue[0] = first[_PIECE:]
            else:
                self._queue.popleft()
            self._queued -= min(len(first), _PIECE)
            self._transport.write(first[:_PIECE])
        self._count()
        if self._queue:
            self._flow.pause_writing()
        elif self._closing:
            self._transport.close()

    def _count(self) -> None:
        waiting = self._queued + (self._transport.get_write_buffer_size() if self._paused else 0)
        if more := waiting - self.waiting:
            if not self.waiting:
                self._since, self._taken = asyncio.get_running_loop().time(), -1
            self.waiting = waiting
            self._unread.count(self, self.who, more)

    def _in_kernel(self) -> int:
        """The bytes that the client's machine hasn't acknowledged."""
        try:
            return int(_INT.unpack(fcntl.ioctl(self._accepted.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))[0])
        except (OSError, ValueError):  # the connection has just ended
            return 0


class Outbox:
    """Quick answers of all connections, sent together at the end of a turn of the event loop.

    To send an answer can mean to wake a client on another processor, which takes as long as a lookup or longer. Clients
    that are answered together are mostly awake by the second answer: 12,100 instead of 10,200 lookups per second. A
    large answer is sent at once, so that a client which reads nothing is noticed before the next one is made.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[asyncio.Transport | Outgoing, bytes]] = []
        self.answers = 0
        """How many there are in this turn: as many lookups were waiting when the loop looked for requests."""
        self.turn = 0

    def add(self, transport: asyncio.Transport | Outgoing, data: bytes) -> None:
        if not self.answers:
            self._loop.call_soon(self._end_turn)
        self.answers += 1
        self._waiting.append((transport, data))
        if len(data) > LARGE_ANSWER:
            self.send()

    def _end_turn(self) -> None:
        self.answers = 0
        self.turn += 1
        self.send()

    def send(self) -> None:
        """Sends what there is now."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
