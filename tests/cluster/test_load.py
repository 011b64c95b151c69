"""Load that ends by an error fails the test that uses it."""

import itertools
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cluster.load import Clients, Lookups, Records, Versions
from tests.instance.processes import until


class Cut(BaseHTTPRequestHandler):
    """Its answers break off."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"{")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def failing(times: Iterator[int]) -> int:
    if next(times) == 3:
        raise ValueError("the log can't be read")
    return 1


def stopped_after_its_error(load: Records | Lookups | Versions) -> Callable[[], None]:
    load.start()
    until(lambda: not load._loop._thread.is_alive(), "it fails")
    return load.stop


def test_whoever_stops_a_part_of_the_load_gets_its_error(tmp_path: Path) -> None:
    times, taken = itertools.count(), tmp_path / "taken"
    taken.write_bytes(b"")
    for stop in (
        stopped_after_its_error(Versions(lambda: failing(times), pause=0.001)),
        stopped_after_its_error(Lookups(lambda: [str(1 // 0)], pause=0.001)),
        stopped_after_its_error(Records(taken, pause=0.001)),
    ):
        with pytest.raises((ValueError, ZeroDivisionError, OSError)):
            stop()


def test_an_answer_that_breaks_off_is_a_failed_lookup() -> None:
    with HTTPServer(("127.0.0.1", 0), Cut) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            lookups = Lookups(lambda: [address], pause=0.001)
            lookups.start()
            until(lambda: lookups.failed, "a failed lookup")
            lookups.stop()
            with Clients([address]) as clients:
                until(lambda: clients.failed, "a failed lookup")
            assert lookups.done == clients.done == 0
        finally:
            server.shutdown()
            serving.join()
