"""HTTP/1.1 as uvicorn speaks it on httptools, with lookups answered as soon as their headers are parsed.

A request becomes a task of the event loop, a dictionary and several messages before an application sees it, which
takes longer than most lookups. So an application may have quick answers: it gets the URL and the headers of a GET
request and returns the body of an answer with status 200, or None, and then the request goes the usual way. If more
lookups wait than `limits.LookupLimit` allows, the rest are refused here, which takes less time than to answer them. A
client that has sent some of those ahead (pipelined) gets one refusal, and its connection ends.

A request is answered quickly only if nothing about it is unusual: it has no body and asks for no upgrade, all requests
before it on the connection are answered, and the client takes what was sent to it. The parser is the same in both cases
and has seen the whole head of the request, so nothing is parsed twice or in a second way.

Heads are limited in size, in headers and in time: httptools has no limits of its own. Requests behind one that isn't
answered wait as bytes, not as requests, which take a hundred times as much. What waits on all connections together is
limited by `incoming`, answers that aren't read by `outgoing`, and the number of connections where they are accepted.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.query.incoming import HEADER_BYTES, MOST_HEADERS, REQUEST_BYTES, Incoming
from holdfast.query.limits import LookupLimit
from holdfast.query.measuring import NO_PATH, REQUESTS
from holdfast.query.outgoing import LARGE_ANSWER, OUTGOING, Outbox, Outgoing, Unread
from holdfast.query.problems import REPORTED, RETRY_AFTER_SECONDS, Problem

log = logging.getLogger(__name__)

LARGEST_HEAD = 256 << 10
"""The bytes of a URL and headers together. A key of 32 KB, percent-encoded, has 96."""
LONGEST_PARSED = (1 << 16) - 1
"""The bytes of a URL that httptools can take apart."""
LAST_REQUEST_SECONDS = 0.1
"""How long an idle connection is kept when the server stops: a request may be on its way."""

Headers = Sequence[tuple[bytes, bytes]]
"""The names are in lower case."""

_FED = 4 << 10
"""The bytes that are parsed at a time. The shortest requests in it take 1 MB while they wait."""
_OK = b"200 OK"
_OVERLOADED = b"503 Service Unavailable\r\nretry-after: %d" % RETRY_AFTER_SECONDS
_ANSWER = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_LAST_ANSWER = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
_quiet_numbers = itertools.count()
"""In which order connections became idle: the clock of the event loop is the same for all that happens within 1 ms."""
_BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding", b"expect", b"upgrade"))


@runtime_checkable
class QuickAnswers(Protocol):
    """What an application has that answers lookups at once."""

    def quick_answer(self, url: bytes, headers: Headers) -> bytes | None:
        """The body of a JSON answer with status 200; None if the request has to go the usual way."""

    def is_lookup(self, url: bytes, headers: Headers) -> bool:
        """Whether the request would perhaps be answered quickly, and is refused if too many wait."""


def quick_answers_of(app: object) -> QuickAnswers | None:
    return app if isinstance(app, QuickAnswers) else None


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        quick: QuickAnswers | None,
        outbox: Outbox,
        limit: LookupLimit,
        incoming: Incoming,
        unread: Unread,
        accepted: socket.socket,
        address: str,
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._quick = quick
        self._limit = limit
        self._incoming = incoming
        self._unread = unread
        self._accepted = accepted
        self._outbox = outbox
        self._outgoing: Outgoing
        self.address = address
        self.incoming = 0
        self._held = bytearray()
        """What came behind requests that wait for their answers. It isn't parsed yet."""
        self.refusal: Problem | None = None
        """What the client is told at once, if there is no room for it."""
        self.quiet_number = next(_quiet_numbers)
        self._head_bytes = 0
        self._answered = False
        self._ending = False
        self.is_ending = False
        """It was aborted, and is an open file for a moment more."""
        self._quiet_since = 0.0
        self._answered_in = -1
        """The turn of the event loop in which the last quick answer was given."""
        self._too_many_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outgoing = Outgoing(transport, self._accepted, self._unread, self.address)
        super().connection_made(self._outgoing)  # type: ignore[arg-type]
        self._outgoing.begin(self.flow)
        self._wait_for_head()
        if self.refusal is not None:
            self._refuse(self.refusal)

    @property
    def is_made(self) -> bool:
        """Whether the client may send requests: over HTTPS, after the handshake."""
        return self.transport is not None

    def may_be_closed(self) -> bool:
        """Whether it is idle, and not about to end anyway."""
        return self._is_idle() and not (self.is_ending or (self.is_made and self.transport.is_closing()))

    def abort(self) -> None:
        """Ends it without another word, also in its handshake."""
        self.is_ending = True
        if self.is_made:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):  # the client has left
            self._accepted.shutdown(socket.SHUT_RDWR)  # by which the handshake fails

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.clear()
        self._incoming.count(self, 0)
        self._outgoing.lost()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._outgoing.pause()

    def resume_writing(self) -> None:
        self._outgoing.resume()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has nothing more to ask may still read its last answer. Over TLS it can't say so."""
        keep = self.scheme == "http" and self._is_idle() and self._outgoing.waiting > 0
        if keep:
            self._outgoing.close()
        return keep

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._hold(data)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Parses what came, as far as requests don't wait for others already."""
        for start in range(0, len(data), _FED):
            if self.pipeline:
                self._hold(data[start:])
                return
            self._parse(data[start : start + _FED] if len(data) > _FED else data)
            if self.transport.is_closing():
                return
        self._count_incoming()

    def _hold(self, data: bytes) -> None:
        self._held += data
        self.flow.pause_reading()
        self._count_incoming()

    def _feed_held(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        if not self.transport.is_closing():
            self._feed(data)

    def _count_incoming(self) -> None:
        waiting = self._head_bytes + len(self._held) + REQUEST_BYTES * len(self.pipeline)
        if waiting or self.incoming:
            headers = HEADER_BYTES * len(self.headers) if self._head_bytes and self.headers else 0
            self._incoming.count(self, waiting + headers)

    def refuse_incoming(self, problem: Problem) -> None:
        """It has sent too much that isn't whole."""
        if self._is_idle():
            self._refuse(problem)
        else:
            self.abort()

    def _parse(self, data: bytes) -> None:
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered as a usual request: there is nothing here to upgrade to
        except httptools.HttpParserError:
            if self.transport.is_closing():
                return  # there were requests behind the last one that is answered
            if not self._is_idle():  # the answers of the requests before come first, and then the connection ends
                self.cycle.keep_alive = False
                self.flow.pause_reading()
                self._head_bytes = 0
                return
            if self._too_many_headers:
                fact, what = f"The request has more than {MOST_HEADERS} headers.", "Send fewer headers."
                self._refuse(Problem(431, "too_large", fact, what))
                return
            self._refuse(Problem(400, "bad_request", "This is not HTTP/1.1.", "Send a valid request."))
            return
        if self._head_bytes > LARGEST_HEAD:
            what = "Send a shorter key, or many keys in the body of a POST."
            fact = f"The URL and headers have more than {LARGEST_HEAD} bytes."
            self.refuse_incoming(Problem(431, "too_large", fact, what))

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MOST_HEADERS:
            self._too_many_headers = True
            raise _ConnectionEnds
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            raise _ConnectionEnds  # which the parser raises again, without looking at the rest
        self._head_bytes = 0
        answer = self._quick_answer()
        self._answered = answer is not None
        if answer is None:
            self._unset_keepalive_if_required()
            self._start_usual()
            if self._ending:
                self.cycle.keep_alive = False
            return
        status, body = answer
        pipelined, self._answered_in = self._answered_in == self._outbox.turn, self._outbox.turn
        # To refuse a thousand requests that one client has sent ahead would take as long as to answer some others.
        ends = self._ending or (pipelined and status is _OVERLOADED)
        if self.parser.should_keep_alive() and not ends:
            self._outbox.add(self.transport, _ANSWER % (status, len(body), body))
            self.server_state.total_requests += 1
            self._wait_for_head()
        else:
            self._outbox.add(self.transport, _LAST_ANSWER % (status, len(body), body))
            self._outbox.send()
            self.transport.close()

    def _start_usual(self) -> None:
        """Hands the request to the application, whose task starts in a later turn of the loop."""
        self.scope[OUTGOING] = self._outgoing  # type: ignore[typeddict-unknown-key]
        if len(self.url) <= LONGEST_PARSED:
            super().on_headers_complete()
            return
        path, _, query = self.url.partition(b"?")
        self.url = b"/"
        super().on_headers_complete()
        self.scope |= {"raw_path": path, "path": unquote(path.decode("ascii")), "query_string": query}

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._answered:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._note_quiet()
        super().on_response_complete()  # which sets a timer, and reads on
        if self._held and self.pipeline:
            self.flow.pause_reading()
        elif self._held:
            self.loop.call_soon(self._feed_held)
        elif self.incoming:
            self._count_incoming()

    def shutdown(self) -> None:
        """Ends the connection after the request under way, or after one that was sent before the client could know."""
        self._ending = True
        if self._is_idle():
            self.loop.call_later(LAST_REQUEST_SECONDS, self._end_if_idle)
        else:
            self.cycle.keep_alive = False

    def _end_if_idle(self) -> None:
        if not self.is_made:
            self.abort()
        elif self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, partial(_until_answered, app, cycle))

    def _quick_answer(self) -> tuple[bytes, bytes] | None:
        """The status and the body of an answer that can be given at once."""
        quick = self._quick
        if quick is None or self.parser.get_method() != b"GET" or self.parser.get_http_version() != "1.1":
            return None
        if not self._is_idle() or self.pipeline:
            return None  # answers are sent in the order of the requests
        if self.flow.write_paused or self.transport.is_closing():
            return None
        for name, _ in self.headers:
            if name in _BODY_HEADERS:
                return None
        try:
            if self._outbox.answers >= self._limit.most and quick.is_lookup(self.url, self.headers):
                return _OVERLOADED, self._limit.refusal()
            body = quick.quick_answer(self.url, self.headers)
            if body is not None and len(body) > LARGE_ANSWER and not self._unread.has_room(self.address):
                return None  # so it is refused
        except Exception:  # the parser would take it for a malformed request
            log.exception("a request can't be answered quickly, and goes the usual way")
            return None
        return None if body is None else (_OK, body)

    def _wait_for_head(self) -> None:
        """From now on the next head may take some time. A timer that runs goes on: a new one takes 1.5 us."""
        self._note_quiet()
        if self.timeout_keep_alive_task is None:
            self._close_after(self.timeout_keep_alive)

    def _note_quiet(self) -> None:
        self._quiet_since = self.loop.time()
        self.quiet_number = next(_quiet_numbers)

    def _close_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        left = self._quiet_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._close_after(left)
        elif self._outgoing.waiting:  # it still reads: one that doesn't is cut off by `Unread`
            self._close_after(self.timeout_keep_alive)
        else:
            self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        REQUESTS.refused(NO_PATH, problem.status)
        body = msgspec.json.encode(problem.body())
        status = _OVERLOADED if problem.status == 503 else b"%d %b" % (problem.status, _phrase(problem.status))
        self._outbox.send()  # those of requests before this one
        if not self.transport.is_closing():
            self.transport.write(_LAST_ANSWER % (status, len(body), body))
            self.transport.close()


class _ConnectionEnds(HoldfastError):
    """A request was sent behind one whose answer ends the connection. The parser passes it on to `data_received`."""

    category = ErrorCategory.CLOSED


def _phrase(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


async def _until_answered(app: Any, cycle: RequestResponseCycle, scope: Any, receive: Any, send: Any) -> None:
    """Starlette raises an error again that it has answered; uvicorn would close the connection for it.

    An answer that an application cuts off, as limits do, ends with its connection: no client takes it for all of it.
    """
    try:
        await app(scope, receive, send)
    except Exception as error:
        if not cycle.response_complete:
            raise
        if scope.get(REPORTED) is not error:
            log.exception("an error after the answer to %s %s", scope["method"], scope["path"])
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.transport.abort()
