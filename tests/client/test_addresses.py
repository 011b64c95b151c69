"""Which addresses a client asks, and so sends its token to: never those that it must not follow from its seeds."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

import holdfast as hf
from holdfast.client.addresses import may_follow
from holdfast.query.routes import Routing
from tests.client.effects import ROUTING, A, B, C, encoded
from tests.client.test_asking import World, down, value

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("seeds", "address", "allowed"),
    [
        (["https://lb"], "http://b:1", False),
        (["HTTPS://lb"], "http://b:1", False),
        (["https://lb"], "HTTPS://b:1", True),
        (["http://a:1", "https://lb"], "http://b:1", False),
        (["http://a:1", "https://lb"], "http://a:1", True),
        (["https://lb"], "https://127.0.0.1:1", False),
        (["http://lb"], "http://b:1", True),
        (["http://lb"], "http://localhost:1", False),
        (["http://lb"], "http://0.0.0.0:1", False),
        (["http://lb"], "http://[::1]:1", False),
        (["http://lb"], "http://[::]:1", False),
        (["http://lb"], "http://[::ffff:127.0.0.1]:1", False),
        (["http://localhost:1"], "http://127.0.0.1:2", True),
        (["http://localhost:1"], "http://b:2", True),
        (["http://lb", "http://localhost:1"], "http://127.0.0.1:2", False),
        (["http://lb"], "http://[::1", False),
    ],
)
def test_which_addresses_of_a_routing_may_be_asked(seeds: list[str], address: str, allowed: bool) -> None:
    assert may_follow(seeds, address) is allowed


def test_without_an_instance_to_follow_all_is_asked_of_the_seeds() -> None:
    lb = "https://lb.example"
    world = World(seeds=(lb,))
    world.answers = {lb: lambda send: value(send, instance="b"), A: down, B: down, C: down}
    for _ in range(10):
        world.clock.advance(2)
        assert world.get() == lb
    assert {*world.played.asked} == {lb} and world.played.refreshed == 1, "and the routing isn't read again for it"


class Instance(BaseHTTPRequestHandler):
    """An instance whose routing names those of `named`; `heard` has what each was sent."""

    named: Mapping[str, str]
    heard: list[tuple[int, str | None]]

    def do_GET(self) -> None:
        port = self.server.server_port  # type: ignore[attr-defined]
        self.heard.append((port, self.headers.get("authorization")))
        tasks = {f"0_{n}": tuple(self.named) for n in range(2)}
        routing = Routing(app="game", version=1, stores=ROUTING.stores, instances=dict(self.named), tasks=tasks)
        answer = {"key": 1, "value": port, "task": "0_0", "instance": "a", "version": 1}
        body = encoded(routing if self.path == "/v1/routing" else answer)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing on standard error."""


@contextmanager
def listening(kind: type[Instance], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def blocking(address: str, tls: ssl.SSLContext) -> object:
    with hf.Client(address, token=TOKEN, tls=tls) as client:
        return client.store("numbers").get(1)


def awaited(address: str, tls: ssl.SSLContext) -> object:
    async def run() -> object:
        async with hf.AsyncClient(address, token=TOKEN, tls=tls) as client:
            return await client.store("numbers").get(1)

    return asyncio.run(run())


@pytest.mark.parametrize("get", [blocking, awaited])
def test_behind_a_proxy_that_ends_tls_no_token_is_sent_in_the_clear(
    get: Callable[[str, ssl.SSLContext], object],
) -> None:
    ca, ends_tls, trusting = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("localhost").configure_cert(ends_tls)
    ca.configure_trust(trusting)

    class OfThisTest(Instance):
        named: Mapping[str, str] = {}
        heard: list[tuple[int, str | None]] = []

    with listening(OfThisTest, ends_tls) as proxy, listening(OfThisTest) as instance:
        OfThisTest.named = {"a": f"http://localhost:{instance}"}
        assert get(f"https://localhost:{proxy}", trusting) == proxy
        assert OfThisTest.heard == [(proxy, f"Bearer {TOKEN}")] * 2
