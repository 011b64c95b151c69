"""The HTTP server: granian, inside the instance's process, on a thread and an event loop of its own.

The socket is ours: bound before granian starts, without SO_REUSEPORT. So a port that is taken is an error here and now
(granian's own sockets would share it, and two instances would answer in turns), port 0 finds a free one, and the
address is known before the first request. Stopping closes the listener first, lets requests that are under way finish
for a moment, then cancels what is left: a slow query must not delay an instance that has to stop.
"""

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.log import LogLevels
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.server.embed import Server
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.query.listening import BACKLOG, listen

log = logging.getLogger(__name__)

_THREADS = 8
"""Threads for what waits: ranges, and lookups on other instances."""

_START_DEADLINE = 10.0
_CANCEL_DEADLINE = 0.5

# granian would send its logs to stdout, where an instance reports to its parent, and in doing so close the existing
# handlers. An incremental configuration touches nothing but the level of its own logger.
_LOGGING = {"version": 1, "incremental": True, "handlers": {}, "loggers": {"_granian": {}}}


class RestNotStarted(HoldfastError):
    category = ErrorCategory.BUG


class RestServer:
    """REST while it runs. `serve` starts one; it ends with `stop` or with its `with` block."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self.host, self.port = listener.getsockname()[:2]
        self._app = app
        self._server = _Granian(self._tracked, listener)
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-rest")
        self._under_way: set[asyncio.Task[Any]] = set()
        self._cancelled = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-rest", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._server.on_startup(self._started.set)
        self._thread.start()
        if not self._started.wait(_START_DEADLINE) or not self.running:
            raise RestNotStarted(f"REST did not start on {self.url}; the log above says why. Report this with the log.")

    def stop(self, grace: float = 1.0) -> None:
        """Takes no new requests, gives those under way `grace` seconds, and ends. Stopping twice is fine."""
        if not self.running:
            return
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(grace)
        if self.running:
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(_CANCEL_DEADLINE)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.running:
            log.warning("REST on %s did not end in time; its thread ends with the process", self.url)

    def __enter__(self) -> "RestServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(self._threads)
        try:
            self._loop.run_until_complete(self._server.serve())
        except Exception:
            log.exception("REST on %s ended", self.url)
        finally:
            self._started.set()  # `start` waits for this, then checks that the thread is alive
            self._loop.close()

    def _cancel(self) -> None:
        self._cancelled = True
        for task in tuple(self._under_way):
            task.cancel()

    async def _tracked(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            await _answer_stopping(send)
        finally:
            self._under_way.discard(task)


def serve(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 8080, insecure: bool = False) -> RestServer:
    """Starts REST and returns when it answers; port 0 uses any free port.

    >>> from starlette.applications import Starlette
    >>> with serve(Starlette(), port=0) as rest:
    ...     rest.host, rest.port > 0, rest.running
    ('127.0.0.1', True, True)
    """
    listener = listen(host, port, insecure=insecure)
    listener.setblocking(False)
    server = RestServer(app, listener)
    server.start()
    return server


async def _answer_stopping(send: Send) -> None:
    """The answer to a request that was cancelled. Answers are sent in one piece, so nothing was sent yet."""
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    body = (
        b'{"error":"stopping","message":"This instance is stopping.",'
        b'"what_to_do":"Ask again in a moment, or ask another instance of the app."}'
    )
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Granian(Server):
    """granian's embedded server on a socket that is bound already. From here on granian owns and closes it."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            log_level=LogLevels.error,
            log_dictconfig=_LOGGING,
        )
        self._listener = listener

    def _init_shared_socket(self) -> None:
        # granian's own processes pass sockets on in this way (granian.net pickles a SocketHolder as these three).
        self._shd = SocketHolder(self._listener.detach(), False, BACKLOG)  # type: ignore[assignment, call-arg]
