"""The HTTP server: uvicorn's protocol on uvloop, inside the instance's process, on a thread and a loop of its own.

The socket is ours: bound before the loop starts, without SO_REUSEPORT. So a port that is taken is an error here and
now, port 0 finds a free one, and the address is known before the first request. Stopping closes the listener first,
answers those who have connected before, lets requests under way finish for a moment, then cancels what is left: a slow
query must not delay an instance that has to stop.
"""

import asyncio
import logging
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from holdfast.clock import pause
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.credentials import checked_pem, is_loopback
from holdfast.query.accepting import Acceptor, Connections
from holdfast.query.http_protocol import LAST_REQUEST_SECONDS, HttpProtocol, quick_answers_of
from holdfast.query.incoming import Incoming
from holdfast.query.limits import LookupLimit
from holdfast.query.listening import listen
from holdfast.query.outgoing import Outbox, Unread
from holdfast.query.problems import Problem
from holdfast.settings.rest import RestSettings

log = logging.getLogger(__name__)

_THREADS = 8
"""Threads for ranges, and for lookups on other instances. Those that may wait for a version there have their own."""

STREAMED = "holdfast.streamed"
"""In the scope of a request whose answer is sent in pieces. If it is cancelled, its last piece is missing."""

KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle, or take to send a head. Proxies close theirs after 60 s, and should be first."""
_DEFAULTS = RestSettings()
_START_DEADLINE = 10.0
_CANCEL_DEADLINE = 0.5
_LOOK_SECONDS = 0.01


def tls_of(settings: RestSettings) -> ssl.SSLContext | None:
    """HTTPS with the files of the settings; with those of a CA, clients have to show certificates of it.

    TLS 1.2 or later, also where the machine's OpenSSL allows less: all clients of today have it, some not 1.3.
    """
    cert, key, ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file
    if cert is None or key is None:
        return None
    checked_pem("rest", cert, key, ca)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    if ca is not None:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class RestNotStarted(HoldfastError):
    category = ErrorCategory.BUG


class RestServer:
    """REST while it runs. `serve` starts one; it ends with `stop` or with its `with` block."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, settings: RestSettings, tls: ssl.SSLContext | None
    ) -> None:
        self.host, self.port = settings.host, int(listener.getsockname()[1])
        self._settings = settings
        self._tls = tls
        self._app = app
        self._listener = listener
        self._connections = Connections(settings.max_connections, settings.max_connections_per_address)
        self._state = ServerState()
        self._state.connections = self._connections  # type: ignore[assignment]
        self._loop = uvloop.new_event_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-rest")
        self._cancelled = False
        self._stopping = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-rest", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open, or in their handshake, without those that are told to end."""
        return self._connections.staying

    @property
    def under_way(self) -> int:
        """How many requests an application works on."""
        return len(self._state.tasks)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Returns when it answers. Connections that were made before have waited for this."""
        self._thread.start()
        if not self._started.wait(_START_DEADLINE) or not self.running:
            raise RestNotStarted(f"REST did not start on {self.url}; the log above says why. Report this with the log.")

    def stop(self, grace: float = 1.0) -> None:
        """Takes no new requests, gives those under way `grace` seconds, and ends. Stopping twice is fine."""
        if not self.running:
            if not self._started.is_set():
                self._listener.close()  # nobody else has it yet
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
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
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("REST on %s ended", self.url)
        finally:
            self._started.set()  # `start` waits for this, then checks that the thread is alive
            self._loop.close()

    async def _serve(self) -> None:
        config, quick = config_of(self._tracked), quick_answers_of(self._app)
        settings, outbox = self._settings, Outbox(self._loop)
        limit, incoming = LookupLimit(settings.max_lookups), Incoming(settings.max_unfinished)
        unread = Unread(settings.max_unread, settings.max_unread_per_caller)

        def connection(accepted: socket.socket, address: str) -> HttpProtocol:
            return HttpProtocol(config, self._state, quick, outbox, limit, incoming, unread, accepted, address)

        acceptor = Acceptor(self._listener, self._tls, self._connections, connection)
        acceptor.start()
        self._started.set()
        await self._stopping.wait()
        acceptor.stop()
        for open_ in tuple(self._connections):
            open_.shutdown()
        until = self._loop.time() + LAST_REQUEST_SECONDS
        while self._connections and self._loop.time() < until:
            await pause(_LOOK_SECONDS)
        while self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks))
        await acceptor.wait_connected()

    def _cancel(self) -> None:
        self._cancelled = True
        for task in tuple(self._state.tasks):
            task.cancel()
        self._loop.call_later(_CANCEL_DEADLINE / 2, self._abort)

    def _abort(self) -> None:
        """Ends connections of clients that don't read what was sent to them."""
        for connection in tuple(self._connections):
            connection.abort()

    async def _tracked(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cancelled or STREAMED in scope:
                raise
            await _answer_stopping(send)


def serve(app: ASGIApp, settings: RestSettings = _DEFAULTS, port: int | None = None) -> RestServer:
    """Starts REST and returns when it answers, at the address and for the clients of the settings.

    `port` is used instead of `rest.port`; 0 uses any free one. `app` asks for tokens itself.

    >>> from starlette.applications import Starlette
    >>> with serve(Starlette(), port=0) as rest:
    ...     rest.host, rest.port > 0, rest.running
    ('127.0.0.1', True, True)
    """
    server = bind(app, settings, port)
    server.start()
    return server


def bind(app: ASGIApp, settings: RestSettings, port: int | None = None) -> RestServer:
    """The same, which answers from its start on. Its address is known before that."""
    tls = tls_of(settings)
    if settings.authenticates and tls is None and not is_loopback(settings.host):
        log.warning(
            "REST on %s has no TLS, so tokens travel in the clear. Set rest.tls_cert_file and rest.tls_key_file, or "
            "let only a proxy that ends TLS reach it.",
            settings.host,
        )
    at = settings.port if port is None else port
    listener = listen(settings.host, at, authenticates=settings.authenticates, insecure=settings.insecure)
    listener.setblocking(False)
    return RestServer(app, listener, settings, tls)


async def _answer_stopping(send: Send) -> None:
    """The answer to a request that was cancelled. Nothing was sent yet: only streamed answers have several pieces."""
    what = "Ask again in a moment, or ask another instance of the app."
    answer = Problem(503, "stopping", "This instance is stopping.", what).response()
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body})


def config_of(app: Any) -> Config:
    """How uvicorn runs an application here: no log lines per request, no headers that nobody asked for."""
    config = Config(
        app,
        lifespan="off",
        interface="asgi3",
        ws="none",
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    config.load()
    return config
