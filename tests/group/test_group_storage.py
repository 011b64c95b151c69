"""The storage of a group gives up a request that hangs while the session still lasts."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.errors import StorageUnavailable
from holdfast.group.storage import open_group_storage
from holdfast.log import names
from holdfast.log.objects import Storage
from holdfast.settings.group import GroupSettings
from holdfast.settings.sections import LogSettings, RetrySettings

SESSION = 6.0


def opened(port: int) -> Storage:
    options = {
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "region": "eu-1",
        "timeout": "1h",
    }
    group = GroupSettings(session_timeout=f"{SESSION:g}s")
    return open_group_storage("s3://bucket/log", LogSettings(options=options), group, RetrySettings())


@contextmanager
def mute() -> Iterator[int]:
    """Connections are accepted, and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def failing(times: int) -> Iterator[int]:
    """A server that answers so many requests with an error and then has an empty object."""
    left = iter(range(times))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if next(left, None) is not None else 206)
            self.send_header("Content-Length", "1")
            self.send_header("Content-Range", "bytes 0-0/1")
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


CALLS: dict[str, Callable[[Storage], object]] = {
    "read": lambda storage: storage.get_range(names.member("a"), 0, 10),
    "write": lambda storage: storage.replace(names.member("a"), b"x"),
    "list": lambda storage: storage.list_flat(names.MEMBERS),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_request_that_hangs_is_given_up_before_a_session_ends(call: Callable[[Storage], object]) -> None:
    with mute() as port:
        storage, began = opened(port), time.monotonic()
        with pytest.raises(StorageUnavailable):
            call(storage)
        assert time.monotonic() - began < SESSION / 2


def test_a_failure_of_a_moment_costs_no_heartbeat() -> None:
    with failing(2) as port:
        assert opened(port).get_range(names.member("a"), 0, 1) == b"x"
