"""A TCP proxy in front of a server, which can be cut off as a network is: nothing arrives, and nothing is refused."""

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """Passes bytes on from its own port to another one, until it is cut."""

    target: tuple[str, int]
    _cut: threading.Event = field(default_factory=threading.Event)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """From now on bytes and new connections disappear."""
        self._cut.set()

    def restore(self) -> None:
        """New connections work again; those that were cut are closed."""
        self._cut.clear()

    def close(self) -> None:
        self._closed.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), name="proxied", daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as closing:
            closing.enter_context(client)
            if self._silent():
                return
            try:
                server = closing.enter_context(socket.create_connection(self.target, timeout=5))
            except OSError:
                return
            watching = closing.enter_context(selectors.DefaultSelector())
            watching.register(client, selectors.EVENT_READ, server)
            watching.register(server, selectors.EVENT_READ, client)
            while not self._closed.is_set() and not self._silent():
                for ready, _ in watching.select(timeout=0.2):
                    source: socket.socket = ready.fileobj  # type: ignore[assignment]
                    try:
                        if not (data := source.recv(1 << 16)):
                            return
                        ready.data.sendall(data)
                    except OSError:
                        return

    def _silent(self) -> bool:
        """Waits while the proxy is cut, which a connection doesn't survive; whether it was."""
        if not self._cut.is_set():
            return False
        while self._cut.is_set() and not self._closed.is_set():
            self._closed.wait(0.05)
        return True
