"""Limits of REST: how large a request may be, how many are worked on at a time, and for how long.

A request beyond a limit is refused at once, with a status that says who has to change something and when to ask again.
A queue without a limit would only make everyone wait until nobody waits any more. Requests within the limits share a
few threads: those that find none free wait for one, until their time has passed. Paths that read no store are always
answered: a program that has to find out that an instance is overloaded, or where else to ask, must get an answer.

    413    the body is too large
    429    this caller has as many requests under way, or as many streams, as one may have
    503    the instance has, or the request took too long; the header Retry-After says when to ask again

Lookups that are answered on the event loop are never under way: the instance is overloaded if too many of them wait.

A request counts until its answer begins. An answer without an end that is known (a watch, a scan) is a stream from then
on, and counts as one until it ends. Its endpoint says so before it reads anything (`begin_stream`), so one stream too
many is refused like any other request. When the client leaves, its request is cancelled, and what reads for it stops.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import metrics
from holdfast.query.grants import caller
from holdfast.query.listening import LIVE
from holdfast.query.measuring import LOOKUPS, REQUESTS
from holdfast.query.outgoing import HELD_PIECES, LARGE_ANSWER, OUTGOING, Outgoing
from holdfast.query.problems import OVERLOADED, TOO_MANY, Problem
from holdfast.query.wanted import LiveRequest, begin
from holdfast.settings.rest import RestSettings
from holdfast.settings.units import format_duration, format_size

ALWAYS_ANSWERED: Final = frozenset({LIVE, "/health/ready", "/v1/state", "/v1/stores", "/v1/routing", "/metrics"})
"""Paths that read no store and wait for nothing."""

_SUCCESS: Final = 200
_BEGIN_STREAM: Final = "holdfast.begin_stream"
_LATER: Final = "Ask again after the time in Retry-After, or ask another instance of the app."
_shed = metrics.counter("holdfast_rest_requests_shed", "REST requests beyond a limit, by error.", ["error"])
_under_way = metrics.gauge("holdfast_rest_requests_under_way", "REST requests that are being worked on.")
_streams = metrics.gauge("holdfast_rest_streams", "REST answers that are being streamed.")


class Slots:
    """How many requests and streams there are at a time, and of whom."""

    def __init__(self, limits: RestSettings) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._scans = 0

    def enter(self, who: str) -> None:
        """Counts a request, or raises if there are too many."""
        limits = self._limits
        if self._requests[who] >= limits.max_requests_per_caller:
            fact = f"{limits.max_requests_per_caller} requests of {who} are under way, as many as one caller may have."
            raise Problem(429, TOO_MANY, fact, "Wait for their answers, and ask again after Retry-After.")
        if self._requests.total() >= limits.max_requests:
            fact = f"This instance works on {limits.max_requests} requests, as many as it may."
            raise Problem(503, OVERLOADED, fact, _LATER)
        self._requests[who] += 1
        _under_way.inc()

    def leave(self, who: str) -> None:
        self._requests[who] -= 1
        if not self._requests[who]:
            del self._requests[who]
        _under_way.dec()

    def begin_stream(self, who: str, *, is_scan: bool) -> None:
        """Counts a stream beside its request, or raises if there are too many."""
        limits = self._limits
        if is_scan and self._scans >= limits.max_scans:
            fact = f"This instance sends {limits.max_scans} scans, as many as it may."
            raise Problem(503, OVERLOADED, fact, _LATER)
        if self._streams[who] >= limits.max_streams_per_caller:
            fact = f"{limits.max_streams_per_caller} streams are sent to {who}, as many as one caller may have."
            raise Problem(429, TOO_MANY, fact, "End some of them, and ask again after Retry-After.")
        if self._streams.total() >= limits.max_streams:
            fact = f"This instance sends {limits.max_streams} streams, as many as it may."
            raise Problem(503, OVERLOADED, fact, _LATER)
        self._streams[who] += 1
        self._scans += is_scan
        _streams.inc()

    def end_stream(self, who: str, *, is_scan: bool) -> None:
        self._scans -= is_scan
        self._streams[who] -= 1
        if not self._streams[who]:
            del self._streams[who]
        _streams.dec()


def begin_stream(scope: Scope, *, is_scan: bool) -> None:
    """Says that the answer of a request will be a stream; once is enough. Raises a Problem if there are too many."""
    begin: Callable[[bool], None] | None = scope.get(_BEGIN_STREAM)
    if begin is not None:
        begin(is_scan)


class LookupLimit:
    """How many lookups are answered in one turn of the event loop: of those that wait when it looks for requests.

    They are answered one after the other, so the last one waits for all others, and health behind them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        fact = f"{most} lookups were waiting before this one, as many as this instance answers at a time."
        self._refusal = msgspec.json.encode(Problem(503, OVERLOADED, fact, _LATER).body())

    def refusal(self) -> bytes:
        """The body of the answer to one lookup more. Counts it."""
        _shed.labels(OVERLOADED).inc()
        REQUESTS.refused(LOOKUPS, 503)
        return self._refusal


class Limited:
    """An ASGI application within its limits."""

    def __init__(self, app: ASGIApp, limits: RestSettings) -> None:
        self._app = app
        self._limits = limits
        self._slots = Slots(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        request = _Request(self._slots, caller(scope), send, scope.get(OUTGOING))
        scope[_BEGIN_STREAM] = request.begin_stream
        try:
            self._check_length(scope)
            self._slots.enter(request.who)
        except Problem as problem:
            await _refuse(problem, send)
            return
        try:
            await self._answer(request, scope, receive)
        except Problem as problem:
            await _refuse(problem, send)
        finally:
            request.end()

    async def _answer(self, request: "_Request", scope: Scope, receive: Receive) -> None:
        body = b""
        watch: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._limits.timeout.total_seconds()) as request.deadline:
                if scope["method"] not in ("GET", "HEAD"):
                    body = await self._body(request, receive)
                task = asyncio.current_task()
                assert task is not None
                watch = asyncio.ensure_future(request.watch(receive, task))
                await self._app(scope, request.receiving(body), request.send)
        except TimeoutError:
            if not request.deadline.expired():
                raise
            if watch is None:
                raise Problem(408, "slow_request", "The body didn't arrive in time.", "Send it at once.") from None
            raise self._too_slow() from None
        except asyncio.CancelledError:
            # A stream that ends here is cut off where it is: the server closes the connection before the end of the
            # body, so that no client takes what it has for all of it.
            if not request.left.is_set() and not request.is_stream:
                raise
        finally:
            request.waiting.ended = True  # of use for threads that still read
            if watch is not None:
                watch.cancel()

    def _too_slow(self) -> Problem:
        fact = f"There was no answer within {format_duration(self._limits.timeout)}."
        return Problem(503, "timed_out", fact, "Ask for less, or ask again after the time in Retry-After.")

    async def _body(self, request: "_Request", receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                request.left.set()
                raise asyncio.CancelledError
            body += message.get("body", b"")
            if len(body) > self._limits.max_body:
                raise self._too_large()
            if not message.get("more_body"):
                return bytes(body)

    def _check_length(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self._limits.max_body:
                raise self._too_large()

    def _too_large(self) -> Problem:
        most = format_size(self._limits.max_body)
        return Problem(413, "too_large", f"The body has more than {most}.", "Ask for less at a time.")


class _Request:
    """One request while it is answered: whether its client is there, and whether the answer has begun."""

    def __init__(self, slots: Slots, who: str, send: Send, outgoing: Outgoing | None) -> None:
        self.who = who
        self.left = asyncio.Event()
        self.deadline: asyncio.Timeout
        self.waiting: LiveRequest = begin()
        self._slots = slots
        self._send = send
        self._outgoing = outgoing
        self._start: Message | None = None
        """The beginning of the answer, which is sent with the first of its bytes."""
        self.is_stream = False
        self._begun: bool | None = None
        """Whether the stream that was begun is a scan; None while there is none."""

    async def watch(self, receive: Receive, task: "asyncio.Task[object]") -> None:
        """Cancels the task when the client leaves: nobody would read its answer."""
        message, is_whole = await receive(), False
        while message["type"] == "http.request" and not is_whole:  # the body of a GET, which nobody reads
            is_whole = not message.get("more_body")
            message = await receive()
        if message["type"] != "http.disconnect":
            return
        self.left.set()
        self.waiting.ended = True
        task.cancel()

    def receiving(self, body: bytes) -> Receive:
        """What the application receives: the whole body, then the end of the connection."""
        given = False

        async def receive() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await self.left.wait()
            return {"type": "http.disconnect"}

        return receive

    def begin_stream(self, is_scan: bool) -> None:
        if self._begun is None:
            try:
                if self._outgoing is not None and is_scan:
                    self._outgoing.owned_by(self.who)
                    if not self._outgoing.make_room():
                        raise self._outgoing.refusal()
                self._slots.begin_stream(self.who, is_scan=is_scan)
            except Problem as problem:
                _shed.labels(problem.error).inc()
                raise
            self._begun = is_scan

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif self._start is not None:
            await self._begin_answer(self._start, len(message.get("body", b"")))
            self._start = None
        if self._start is None:
            await self._send(message)
            if self.is_stream and message.get("more_body") and self._outgoing is not None:
                self._outgoing.keep_reserved(HELD_PIECES * len(message["body"]) if self._begun else 0)
                message["body"] = b""  # what waits of it does so in `outgoing`, and only there
                await self._outgoing.taken()

    async def _begin_answer(self, start: Message, size: int) -> None:
        """Begins the answer, or a refusal if its bytes would have to wait and too many do."""
        self.deadline.reschedule(None)
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.owned_by(self.who)
            if size > LARGE_ANSWER and not outgoing.make_room():
                await _refuse(outgoing.refusal(), self._send)
                self.left.set()  # as if the client had: what would be sent is not made
                raise asyncio.CancelledError
        self.is_stream = self._begun is not None and start["status"] == _SUCCESS  # or it became a refusal
        if self.is_stream:
            self._slots.leave(self.who)
        await self._send(start)

    def end(self) -> None:
        if self._begun is not None:
            if self._outgoing is not None:
                self._outgoing.keep_reserved(0)
            self._slots.end_stream(self.who, is_scan=self._begun)
        if not self.is_stream:
            self._slots.leave(self.who)


async def _refuse(problem: Problem, send: Send) -> None:
    _shed.labels(problem.error).inc()
    answer = problem.response()
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body})
