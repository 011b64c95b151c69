"""Clients that take memory and files of an instance: a real process, whose peak of memory has a bound.

Limits are small here, so that a missing one shows with few clients. Each client would take some MB without it.
"""

import asyncio
import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec
import pytest

from holdfast.log.appfile import AppSpec
from holdfast.query.accepting import AT_ONCE
from holdfast.settings.rest import RestSettings
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.instances import Driver, config, process

TEXTS = StoreSpec(name="texts", key=Schema.of(n="bigint"), codec="msgpack/1", engine="memory")
APP = AppSpec(id="game", partitions=1, stores=(TEXTS,), subtopologies=subtopologies_of({"texts": 0}))
LARGE = 8 << 20
"""A value, of which a kernel takes 2 to 4 MB for a client that reads nothing."""
LOOKUP = "/v1/stores/texts/keys/0"
CLIENTS = 50


@dataclass
class Server:
    """An instance in a process of its own."""

    url: httpx2.URL
    pid: int
    client: httpx2.Client

    def connect(self, *, from_: str = "127.0.0.1") -> socket.socket:
        client = socket.socket()
        client.settimeout(30)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.bind((from_, 0))
        client.connect((self.url.host, self.url.port or 0))
        return client

    def peak(self) -> int:
        """The most memory that it has had, in MiB."""
        return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) >> 10

    def resident(self) -> int:
        """The memory that it has now, in MiB."""
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) >> 10

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def metric(self, name: str) -> float:
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return sum(map(float, found))

    def get(self, path: str) -> httpx2.Response:
        return self.client.get(path)


@contextmanager
def running(folder: Path, *, more: int = 0, **limits: object) -> Iterator[Server]:
    """`more` is how many further values of 1 MiB there are."""
    driver = Driver(str(folder / "log"), APP)
    driver.commit(TEXTS, {(0,): "x" * LARGE, (1,): "small", **{(2 + n,): "y" * (1 << 20) for n in range(more)}})
    rest = RestSettings(
        port=0,
        timeout="3s",
        max_unread="16MiB",
        max_unread_per_caller="8MiB",
        max_unfinished="2MiB",
        **limits,  # type: ignore[arg-type]
    )
    with ExitStack() as stack:
        instance = stack.enter_context(
            process(msgspec.structs.replace(config(folder, "game-0", APP.tasks()), rest=rest))
        )
        url = httpx2.URL(instance.addresses()["rest"])
        server = Server(url, instance.pid, stack.enter_context(httpx2.Client(base_url=url, timeout=30)))
        until(lambda: server.get("/health/ready").status_code == 200, "it is ready")
        assert len(server.get(LOOKUP).content) > LARGE
        yield server


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def send_all(client: socket.socket, data: bytes) -> None:
    """As much as the server takes: it may end the connection."""
    with suppress(OSError):
        client.sendall(data)


def status(client: socket.socket) -> int:
    with client.makefile("rb") as answer:
        return int(answer.readline().split()[1])


def many_headers(server: Server, client: socket.socket) -> None:
    """In one request, which begins like any other: 60,000 headers take 7 MB."""
    send_all(client, get("/", *["a:"] * 60_000)[:-2])


def long_heads(server: Server, client: socket.socket) -> None:
    """Heads that never end, each of which is small enough."""
    send_all(client, get("/", "a: " + "b" * 200_000)[:-4])


def requests_ahead(server: Server, client: socket.socket) -> None:
    """Behind one that is never answered to its end."""
    send_all(client, get("/v1/stores/texts/watch") + b"GET /v1/stores HTTP/1.1\r\n\r\n" * 10_000)


def small_chunks(server: Server, client: socket.socket) -> None:
    """A body that comes in the smallest pieces."""
    head = b"POST /v1/stores/texts/keys HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    send_all(client, head + b"1\r\na\r\n" * 60_000)


def never_read(path: str) -> Callable[[Server, socket.socket], None]:
    def ask(server: Server, client: socket.socket) -> None:
        send_all(client, get(path))

    return ask


@pytest.mark.parametrize(
    ("attack", "most"),
    [
        pytest.param(many_headers, 60, id="many headers"),
        pytest.param(long_heads, 60, id="long heads"),
        pytest.param(requests_ahead, 60, id="requests ahead"),
        pytest.param(small_chunks, 60, id="small chunks"),
        pytest.param(never_read(LOOKUP), 250, id="lookups that nobody reads"),
        pytest.param(never_read("/v1/stores/texts/range"), 250, id="ranges that nobody reads"),
        pytest.param(never_read("/v1/stores/texts/scan"), 400, id="scans that nobody reads"),
        pytest.param(never_read("/v1/stores/texts/watch?from_version=1"), 400, id="watches that nobody reads"),
    ],
)
def test_greedy_clients_take_a_bounded_amount_of_memory(
    attack: Callable[[Server, socket.socket], None], most: int, tmp_path: Path
) -> None:
    """`most` MiB for 50 of them. Without limits many headers took 350, requests ahead 900, unread answers 430 to 820.

    Eight answers may be made at a time, each of which takes a few times the bytes of its value.
    """
    with running(tmp_path) as server, ExitStack() as stack:
        before = server.peak()
        for n in range(CLIENTS):
            attack(server, stack.enter_context(server.connect(from_=f"127.0.0.{2 + n % 4}")))
            assert server.get("/v1/stores/texts/keys/1").json()["value"] == "small", "others are answered"
        until(lambda: server.metric("holdfast_rest_requests_under_way") == 0, "all are answered, or as far as they go")
        assert server.peak() - before < most
        assert server.metric("holdfast_rest_unread_bytes") <= (16 << 20) + 2 * LARGE


def test_too_many_headers_are_refused(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.connect() as client:
        client.sendall(get("/v1/stores/texts/keys/1", *["a: b"] * 99))
        assert status(client) == 200
        with server.connect() as other:
            other.sendall(get("/v1/stores/texts/keys/1", *["a: b"] * 100))
            assert status(other) == 431


def test_a_large_chunk_extension_writes_no_refusal_into_the_answer_under_way(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.connect() as client:
        client.sendall(get("/v1/stores/texts/watch", "Transfer-Encoding: chunked"))
        received = client.recv(1 << 16)
        send_all(client, b"1;" + b"a" * 300_000)
        with suppress(ConnectionResetError):
            while part := client.recv(1 << 16):
                received += part
        assert received.count(b"HTTP/1.1") == 1


def test_unfinished_heads_of_one_address_leave_room_for_those_of_others(tmp_path: Path) -> None:
    with running(tmp_path) as server, ExitStack() as stack:
        greedy = [stack.enter_context(server.connect(from_="127.0.0.2")) for _ in range(3)]
        for client in greedy:
            long_heads(server, client)
        [refused], _, _ = select.select(greedy, [], [], 30)
        assert status(refused) == 429, "they have more than 512 KiB, a quarter of what all have"
        other = stack.enter_context(server.connect(from_="127.0.0.3"))
        other.sendall(get("/v1/stores/texts/keys/1", "a: " + "b" * 200_000)[:-2])
        other.sendall(b"\r\n")
        assert status(other) == 200


def test_columns_that_nobody_reads_take_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    """Ten streams of 40 MiB, whose pieces were made of a block of all entries once."""
    with running(tmp_path, more=32) as server, ExitStack() as stack:
        before = server.peak()
        for n in range(10):
            client = stack.enter_context(server.connect(from_=f"127.0.0.{2 + n % 4}"))
            client.sendall(get("/v1/stores/texts/arrow"))
        until(lambda: server.metric("holdfast_rest_streams") >= 2, "some are sent")
        whole = LARGE + (32 << 20)
        until(lambda: len(server.get("/v1/stores/texts/arrow").content) > whole, "one that reads gets all")
        assert server.peak() - before < 400


def test_watchers_that_have_read_all_keep_nothing_of_it(tmp_path: Path) -> None:
    """Each kept its last piece: 8 MiB more."""
    with running(tmp_path) as server, ExitStack() as stack:
        before = server.resident()
        for n in range(20):
            client = stack.enter_context(server.connect(from_=f"127.0.0.{2 + n % 4}"))
            client.sendall(get("/v1/stores/texts/watch?from_version=1"))
            left = LARGE
            while left > 0:
                left -= len(client.recv(1 << 20))
        assert server.metric("holdfast_rest_streams") == 20
        until(lambda: server.resident() - before < 100, "their pieces are gone")


def test_clients_that_fill_all_room_do_not_stop_streams_of_others(tmp_path: Path) -> None:
    with running(tmp_path) as server, ExitStack() as stack:
        for n in range(20):
            send_all(stack.enter_context(server.connect(from_=f"127.0.0.{2 + n % 4}")), get(LOOKUP))
        until(lambda: server.metric("holdfast_rest_requests_shed_total") > 0, "all room that they may have is taken")
        watcher = stack.enter_context(server.connect(from_="127.0.0.9"))
        watcher.sendall(get("/v1/stores/texts/watch?key=1&from_version=1"))
        with watcher.makefile("rb") as events:
            assert next(line for line in events if b'"small"' in line)
        assert not server.metric("holdfast_rest_connections_stalled_total"), "nobody was cut off for it"


def test_a_large_answer_is_refused_while_its_caller_does_not_read_others(tmp_path: Path) -> None:
    with running(tmp_path) as server, ExitStack() as stack:
        greedy = [stack.enter_context(server.connect(from_="127.0.0.2")) for _ in range(8)]
        for client in greedy:
            client.sendall(get(LOOKUP))
        until(lambda: server.metric("holdfast_rest_requests_shed_total") > 0, "some are refused")
        refused = httpx2.Client(transport=httpx2.HTTPTransport(local_address="127.0.0.2"), base_url=server.url)
        with refused:
            answer = refused.get(LOOKUP)
            assert (answer.status_code, answer.json()["error"]) == (429, "too_many_requests")
            assert answer.headers["retry-after"] == "1"
            assert "8MiB of answers to 127.0.0.2 are unread" in answer.json()["message"]
            assert refused.get("/v1/stores/texts/keys/1").status_code == 200, "small answers are given all the same"
        assert len(server.get(LOOKUP).content) > LARGE, "to another caller"
        for client in greedy:
            client.close()
        until(lambda: server.metric("holdfast_rest_unread_bytes") == 0, "what nobody will read is gone")


def test_a_slow_client_gets_the_whole_of_a_large_answer(tmp_path: Path) -> None:
    """Also one that has sent its next request already, and one that has nothing more to say."""
    with running(tmp_path) as server, server.connect() as slow, server.connect() as last:
        slow.sendall(get(LOOKUP) + get("/v1/stores/texts/keys/1"))
        last.sendall(get(LOOKUP))
        until(lambda: server.metric("holdfast_rest_unread_bytes") > 2 << 20, "they read nothing yet")
        last.shutdown(socket.SHUT_WR)
        for client, end in ((slow, b'"small"'), (last, b'"}')):
            received = bytearray()
            while len(received) < LARGE or end not in received[-400:]:
                part = client.recv(50_000)
                assert part, len(received)
                received += part


def test_clients_that_ask_and_reset_leave_no_more_files_than_there_may_be_connections(tmp_path: Path) -> None:
    """The process had all of 1,024 at once, whatever the limit."""
    most = 100
    with running(tmp_path, max_connections=most) as server:
        before, seen, done = server.files(), [0], threading.Event()

        def look() -> None:
            while not done.is_set():
                seen[0] = max(seen[0], server.files())

        async def ask_and_reset() -> None:
            loop = asyncio.get_running_loop()
            with socket.socket() as client, suppress(OSError):
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await loop.sock_connect(client, (server.url.host, server.url.port))
                await loop.sock_sendall(client, get("/v1/stores/texts/watch"))
                await asyncio.wait_for(loop.sock_recv(client, 1), 20)  # it was accepted

        async def all_of_them() -> None:
            await asyncio.gather(*(ask_and_reset() for _ in range(1_500)))

        looking = threading.Thread(target=look)
        looking.start()
        asyncio.run(all_of_them())
        done.set()
        looking.join()
        assert seen[0] <= before + most + AT_ONCE + 8
        until(lambda: server.files() <= before + 8, "all are closed")
        assert server.get("/v1/stores/texts/keys/1").status_code == 200


def test_one_address_has_a_part_of_the_connections(tmp_path: Path) -> None:
    with running(tmp_path, max_connections_per_address=5) as server, ExitStack() as stack:
        idle = [stack.enter_context(server.connect(from_="127.0.0.2")) for _ in range(8)]
        assert [client.recv(1) for client in idle[:3]] == [b""] * 3, "the longest idle ones are closed"
        for client in idle[3:]:
            client.sendall(get("/v1/stores/texts/watch"))
            assert status(client) == 200
        refused = stack.enter_context(server.connect(from_="127.0.0.2"))
        assert status(refused) == 429
        assert server.get("/health/live").status_code == 200
