"""Bytes of answers that clients haven't read yet: limited per caller and together.

What the kernel doesn't take is kept here, in the order of the answers, and handed on in pieces as the client reads. So
it is known how much waits, for whom, and who reads: `asyncio` says neither over TLS.

    room for an answer    its caller has less than `rest.max_unread_per_caller` waiting, and no more than what is left
                          of `rest.max_unread`: so one caller can fill half of it, two a third each, and there is
                          always some left. A large answer without room is refused before it begins
    room for a piece      the same of what waits and what is reserved. A stream reserves the bytes of its next piece
                          before that is made, and those that what it reads takes meanwhile; callers take turns. One
                          small piece goes to every client that has read all, such as a heartbeat, and one of any size
                          to a caller that has
    a client that reads   is never cut off while there is room for others. While there isn't, the slowest is that reads
                          less than 16 KiB per second, of the callers with as much waiting or more
    one that doesn't      is cut off after 60 s
"""

import asyncio
import fcntl
import math
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
LEAST_RATE: Final = 16 << 10
"""The bytes per second that a client has to read while there is no room for others."""
RATE_SECONDS: Final = 10
"""Over how long that is looked at. Machines acknowledge what they get more often, on slow networks too."""
LOOK_SECONDS: Final = 1.0
LARGE_ANSWER: Final = 64 << 10
HELD_PIECES: Final = 2
"""What a scan holds beside the piece that is sent, in such pieces: its block, and what is read ahead."""
OUTGOING: Final = "holdfast.outgoing"
"""In the scope of a request: its connection's `Outgoing`."""

_PIECE: Final = 128 << 10
_INT: Final = struct.Struct("i")
_waiting = metrics.gauge("holdfast_rest_unread_bytes", "Bytes of REST answers that clients haven't read yet.")
_reserved = metrics.gauge("holdfast_rest_reserved_bytes", "Bytes reserved for the next pieces of REST streams.")
_cut = metrics.counter(
    "holdfast_rest_connections_stalled", "Connections that were ended: their client reads nothing, or too slowly."
)


class Unread:
    """The bytes that wait for all clients of a server, and those reserved for streams. It runs on the event loop."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._waiting: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        self._making: Counter[str] = Counter()
        """The pieces that have room and aren't sent yet."""
        self._total = self._total_reserved = 0
        self._slow: dict[Outgoing, None] = {}
        """The connections for which bytes wait."""
        self._asking: dict[str, deque[tuple[Outgoing, int, asyncio.Future[None]]]] = {}
        """The streams that wait for room, by caller, first come, first served."""
        self._looking = self._giving = False

    def has_room(self, who: str) -> bool:
        return self._waiting[who] < min(self._most_each, self._most - self._total)

    def has_room_for_piece(self, who: str) -> bool:
        left = self._most - self._total - self._total_reserved
        if self._waiting[who] + self._reserved[who] < min(self._most_each, left):
            return True
        return not self._waiting[who] and not self._making[who] and self._total < self._most

    def make_room(self, who: str) -> bool:
        """Whether there is room, if need be after clients were cut off that read too slowly."""
        while not self.has_room(who) and self._cut_slowest(who):
            pass
        return self.has_room(who)

    def _cut_slowest(self, who: str) -> bool:
        """Ends the slowest client of the callers with no less waiting than this one; whether there is one."""
        own = self._waiting[who]
        others = own < self._most_each
        found = [
            (each.rate, each.since, id(each), each)
            for each in self._slow
            if each.rate < LEAST_RATE and (each.who == who or (others and self._waiting[each.who] >= own))
        ]
        if found:
            min(found)[-1].cut()
        return bool(found)

    def refusal(self, who: str) -> Problem:
        """Why there is no room."""
        what = "Read the answers that were sent, or ask for less, and ask again after the time in Retry-After."
        own = self._waiting[who]
        if own >= self._most_each:
            most = format_size(self._most_each)
            fact = f"{most} of answers to {who} are unread, as much as one caller may have."
            return Problem(429, TOO_MANY, fact, what)
        if own and self._total < self._most:
            fact = f"{own:,} bytes of answers to {who} are unread, and one caller may have no more than what is left."
            return Problem(429, TOO_MANY, fact, what)
        fact = f"{format_size(self._most)} of answers are unread by clients, as much as this instance keeps."
        return Problem(503, OVERLOADED, fact, what)

    async def reserve(self, outgoing: "Outgoing", size: int) -> None:
        """Returns when there is room for so many bytes more, which are then reserved."""
        who = outgoing.who
        if who not in self._asking and self.has_room_for_piece(who):
            outgoing.reserved_for_piece(size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.setdefault(who, deque()).append((outgoing, size, granted))
        self._look_later()
        self._give_later()
        await granted

    def count_reserved(self, who: str, more: int, making: int) -> None:
        """Bytes were reserved for a caller, or aren't any more; and so many pieces more are being made."""
        self._total_reserved += more
        self._reserved[who] += more
        self._making[who] += making
        if not self._reserved[who]:
            del self._reserved[who]
        if not self._making[who]:
            del self._making[who]
        _reserved.inc(more)
        self._give_later()

    def count(self, outgoing: "Outgoing", who: str, more: int) -> None:
        """Bytes were added for a caller, or are gone."""
        self._total += more
        self._waiting[who] += more
        if not self._waiting[who]:
            del self._waiting[who]
        _waiting.inc(more)
        if outgoing.waiting:
            self._slow[outgoing] = None
            self._look_later()
        else:
            self._slow.pop(outgoing, None)
        if more < 0:
            self._give_later()

    def is_far_beyond(self, who: str) -> bool:
        """Whether so much waits that answers must have come past the question for room."""
        return self._total >= 2 * self._most or self._waiting[who] >= 2 * self._most_each

    def _give_later(self) -> None:
        if self._asking and not self._giving:
            self._giving = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """Gives room to streams that wait for it, to one of each caller in turn."""
        self._giving = False
        given = True
        while given:
            given = False
            for who, asking in tuple(self._asking.items()):
                while asking and asking[0][2].done():  # its request has ended
                    asking.popleft()
                if asking and self.has_room_for_piece(who):
                    outgoing, size, granted = asking.popleft()
                    outgoing.reserved_for_piece(size)
                    granted.set_result(None)
                    given = True
                if not asking:
                    del self._asking[who]

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        for each in tuple(self._slow):
            if each.look() >= UNREAD_SECONDS:
                each.cut()
        for who in tuple(self._asking):
            while not self.has_room_for_piece(who) and self._cut_slowest(who):
                pass
        self._give_later()
        self._looking = False
        if self._slow or self._asking:
            self._look_later()


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
        self.since = 0.0
        """When the client was first seen to have read as much."""
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_SECONDS + 1)
        """When it was looked, and how much the client had taken."""
        self._reserved = 0
        self._making = False

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
        """Returns when nothing waits here."""
        await self._flow.drain()

    async def reserve(self, size: int) -> None:
        """Returns when nothing waits here, and so many bytes are reserved for a stream that makes its next piece."""
        await self._flow.drain()
        if size > LARGE_ANSWER:
            await self._unread.reserve(self, size)

    def reserved_for_piece(self, size: int) -> None:
        """Has so many bytes reserved, at least, for a piece that is being made now."""
        self._unread.count_reserved(self.who, size - self._reserved, not self._making)
        self._reserved, self._making = size, True

    def keep_reserved(self, size: int) -> None:
        """The piece was sent. What the stream reads for the next one takes so many bytes, at most."""
        kept = min(size, self._reserved)
        if kept != self._reserved or self._making:
            self._unread.count_reserved(self.who, kept - self._reserved, -self._making)
            self._reserved, self._making = kept, False

    @property
    def rate(self) -> float:
        """How many bytes per second the client has read lately. Unlimited while that isn't known yet."""
        if len(self._looks) <= RATE_SECONDS:
            return math.inf
        (first, before), (last, now) = self._looks[0], self._looks[-1]
        return (now - before) / (last - first)

    def look(self) -> float:
        """Looks whether the client has read since the last look; for how many seconds it hasn't."""
        now, taken = asyncio.get_running_loop().time(), self._written - self._queued - self._in_kernel()
        self._looks.append((now, taken))
        if taken != self._taken:
            self._taken, self.since = taken, now
        return now - self.since

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
                self.since, self._taken = asyncio.get_running_loop().time(), -1
                self._looks.clear()
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
