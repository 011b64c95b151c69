"""Server-sent events over one connection: what one watcher gets, from its place on.

    id: 3fa9c1d2-42-9be1a4f0.0.7              a change; the id is that of `watch_places`
    data: {"key":"alice","value":...}

    : heartbeat                               nothing was sent for a while
    id: 3fa9c1d2-57-c07d51aa                  ... and nothing was missed up to the end of version 57

    event: end                                the last event, with the reason, like any error of REST
    data: {"error":"slow_watcher",...}

A block without data isn't an event to a client, but its id counts: a watcher of a key that rarely changes goes on from
the last heartbeat, whose version the log still has.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance.log_reader import LogReader
from holdfast.query.outgoing import OUTGOING, Outgoing
from holdfast.query.problems import Problem, problem_of, report
from holdfast.query.watch_changes import Interest
from holdfast.query.watch_places import EventPlace, ForeignEventId, abandoned, id_before
from holdfast.query.watch_reader import SharedReader, WatchedVersion, WatchedVersionGone
from holdfast.words import Version

log = logging.getLogger(__name__)

HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy such as nginx would collect events before it passes them on
}
_RETRY_MS: Final = 1_000
_ROWS_AT_ONCE: Final = 50
"""How many changes are rendered and sent before other requests get their turn: about a millisecond."""

_watchers = metrics.gauge("holdfast_watchers", "Connections that watch a store.", ["store"])
_slow = metrics.counter("holdfast_watchers_too_slow", "Watchers that were cut off because they read too slowly.")


class NewestVersion:
    """Has watchers wait for the next version, on the event loop of REST. Costs nothing while none waits."""

    def __init__(self, source: LogReader) -> None:
        self._source = source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.closed = False
        source.on_newest = self._on_newest

    @property
    def known(self) -> Version:
        return self._source.newest_known

    @property
    def timeline(self) -> int:
        return self._source.timeline

    async def wait(self, version: Version, seconds: float) -> None:
        """Waits until this version is there, REST ends, or the time has passed."""
        self._loop = asyncio.get_running_loop()
        woken = self._loop.create_future()
        self._waiting.add(woken)
        try:
            if version > self.known and not self.closed:  # asked only now: a version from here on wakes it
                async with asyncio.timeout(seconds):
                    await woken
        except TimeoutError:
            pass  # the caller looks what there is
        finally:
            self._waiting.discard(woken)

    def close(self) -> None:
        """Has all watchers end. Can be called on any thread."""
        self.closed = True
        self._on_newest()

    def _on_newest(self) -> None:
        """On any thread."""
        if self._waiting and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed, and REST has ended
                log.debug("version %d comes after the end of REST", self.known)

    def _wake(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)


@dataclass(frozen=True)
class Watcher:
    """What one client asked for."""

    store: str
    interest: Interest
    begin: EventPlace
    log: str
    reader: SharedReader
    newest: NewestVersion
    heartbeat: float
    recheck: Callable[[], None] = lambda: None
    """Raises once the client may no longer watch: asked before changes and heartbeats are sent."""

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        """The stream, in the frames that are sent at once. It ends with an `end` event.

        Who sends them empties the list before the wait for the client: a watcher that has read all holds none of it.
        """
        yield [b"retry: %d\nid: %b\n\n" % (_RETRY_MS, id_before(self.log, self.begin).encode())]
        try:
            async with aclosing(self._changes()) as changes:
                async for each in changes:
                    yield each
        except Exception as error:  # noqa: BLE001  the answer has begun, so nobody else can report it
            problem = problem_of(as_problem(error))
            report(error, problem, f"watching {self.store}")
        yield [b"event: end\ndata: %b\n\n" % msgspec.json.encode(problem.body())]

    async def _changes(self) -> AsyncGenerator[list[bytes], None]:
        place, sent, caught_up = self.begin, SYSTEM_CLOCK.monotonic(), False
        timeline = -1
        while True:
            self._check_open()
            if timeline != self.newest.timeline:
                timeline = self.newest.timeline
                if not await self.reader.has(place):
                    raise abandoned(place)
            if (left := sent + self.heartbeat - SYSTEM_CLOCK.monotonic()) <= 0:
                yield [b": heartbeat\nid: %b\n\n" % id_before(self.log, place).encode()]
                sent = SYSTEM_CLOCK.monotonic()
            elif place.version > self.newest.known:
                caught_up = True
                await self.newest.wait(place.version, left)
            elif caught_up and self.reader.has_dropped(place.version):
                _slow.inc()
                raise _too_slow(self.newest.known - place.version + 1)
            else:
                version = await self.reader.version(place.version)
                if not place.is_in(version.commit):
                    raise abandoned(place)
                async with aclosing(self._version(version, place)) as changes:
                    async for each in changes:
                        yield each
                        sent = SYSTEM_CLOCK.monotonic()
                place = EventPlace(Version(place.version + 1), commit=version.commit.id)
                del version  # it may have all of its changes

    def _check_open(self) -> None:
        if self.newest.closed:
            raise _stopping()
        self.recheck()

    async def _version(self, version: WatchedVersion, place: EventPlace) -> AsyncGenerator[list[bytes], None]:
        """The changes of one version from a place on."""
        for number, piece in enumerate(version.pieces):
            if piece[-1].number < place.part or not any(self.interest.wants(each.task) for each in piece):
                continue
            for changes in await self.reader.changes(version, number):
                if changes.part < place.part:
                    continue
                rows = changes.rows(self.interest, place.row if changes.part == place.part else 0)
                for first in range(0, len(rows), _ROWS_AT_ONCE):
                    self._check_open()
                    yield [changes.frame(row) for row in rows[first : first + _ROWS_AT_ONCE]]


class EventStream(Response):
    """The answer to a watch. It ends when the client leaves."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with _watchers.labels(self._watcher.store).track_inprogress(), self._watcher.reader.joined():
            if scope["method"] == "HEAD":
                await super().__call__(scope, receive, send)
            else:
                await self._stream(receive, send, scope.get(OUTGOING))

    async def _stream(self, receive: Receive, send: Send, outgoing: Outgoing | None) -> None:
        both = asyncio.ensure_future(self._send(send, outgoing)), asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            log.debug("REST ends while a client reads too slowly to be told")  # a second answer can't follow this one
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _send(self, send: Send, outgoing: Outgoing | None) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._watcher.events()) as events:
            async for frames in events:
                if outgoing is not None:
                    await outgoing.reserve(sum(map(len, frames)))
                message = {"type": "http.response.body", "body": b"".join(frames), "more_body": True}
                frames.clear()
                await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def as_problem(error: Exception) -> Exception:
    """An error of watching as an answer; any other error as it is."""
    start_over = "Read the store, whose answer has a version, and watch from the next one on, without Last-Event-ID"
    match error:
        case WatchedVersionGone():
            what = f"{start_over}; or watch with from_version={error.oldest}, and miss what was changed before."
            return Problem(410, "version_gone", str(error), what, {"oldest": error.oldest})
        case ForeignEventId():
            return Problem(410, "version_gone", str(error), f"{start_over}.")
    return error


def _stopping() -> Problem:
    what = "Connect again in a moment, or to another instance of the app, with the last id as Last-Event-ID."
    return Problem(503, "stopping", "This instance is stopping.", what)


def _too_slow(behind: int) -> Problem:
    return Problem(
        503,
        "slow_watcher",
        f"The client has read so slowly that it is {behind} versions behind, and they are no longer in memory.",
        "Connect again with the last id as Last-Event-ID: nothing is lost. Read faster, or watch a key or a prefix.",
    )
