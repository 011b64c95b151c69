"""What a client shows of itself: its token, and over HTTPS whom it believes."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

import holdfast as hf
from holdfast.client import errors
from holdfast.client.blocking import Blocking
from holdfast.client.effects import Flow, Lost, Outcome, Request, Send
from holdfast.query.rest import create_app
from holdfast.query.routes import Routing
from holdfast.query.server import serve
from holdfast.settings.rest import RestSettings
from tests.certificates import Authority
from tests.client.effects import ROUTING, encoded
from tests.query.fake_tasks import STATE, World


class Guarded(BaseHTTPRequestHandler):
    """Answers those that send the token `secret`, as an instance does."""

    def do_GET(self) -> None:
        allowed = self.headers.get("authorization") == "Bearer secret"
        problem = {"error": "token_missing", "message": "This path needs a token.", "what_to_do": "Send one."}
        body = encoded(self._answer() if allowed else problem)
        self.send_response(200 if allowed else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> object:
        if self.path == "/v1/routing":
            return Routing(app="game", version=1, stores=ROUTING.stores)
        return {"key": 1, "value": 2, "task": "0_0", "instance": "a", "version": 1}

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing on standard error."""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http{'' if tls is None else 's'}://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_token_is_sent() -> None:
    with serving() as address:
        with hf.Client(address, token="secret") as client:
            assert client.store("numbers").get(1) == 2
        with (
            hf.Client(address, timeout="5s") as client,
            pytest.raises(errors.TokenMissing, match=r"needs a token.*token="),
        ):
            client.store("numbers").get(1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("# name token\ndash 5f0c9d1b7a33e8c4 read:*", "6 words.*rest.tokens_file"),
        ("dash 5f0c9d1b7a33e8c4 read:*", "3 words"),
        ("5f0c9d1b7a33e8c4\x00", "characters that a token can't have"),
        ("5f0c9d1b7a33e8c4\u00e9", "characters that a token can't have"),
    ],
)
def test_a_text_that_is_no_token_is_refused_and_not_shown(text: str, why: str) -> None:
    for made in (hf.Client, hf.AsyncClient):
        with pytest.raises(errors.BadToken, match=why) as refused:
            made("http://localhost:1", token=text)
        assert "5f0c9d1b7a33e8c4" not in str(refused.value)


def test_a_token_with_its_line_end_is_sent_without() -> None:
    with serving() as address, hf.Client(address, token="secret\n") as client:
        assert client.store("numbers").get(1) == 2


def test_an_error_of_headers_is_not_shown() -> None:
    with serving() as address, closing(Blocking(None, None)) as shell:
        sent = Send(address, Request("/", headers={"authorization": "Bearer secret\n"}), 5.0)
        assert shell.run(performed(sent)) == Lost(address, "LocalProtocolError")


def performed(send: Send) -> Flow[Outcome]:
    outcome: Outcome = yield send
    return outcome


def test_a_store_that_the_token_may_not_read_is_not_called_missing() -> None:
    world, tokens = World(), "dash 5f0c9d1b7a33e8c4 read:others\nall 0123456789abcdef read:*"
    with serve(create_app(world.reader, lambda: STATE, settings=RestSettings(tokens=tokens)), port=0) as server:
        with hf.Client(server.url, token="5f0c9d1b7a33e8c4") as client:
            for store in ("numbers", "nothing"):
                with pytest.raises(errors.OutOfScope, match=f"read:{store}"):
                    client.store(store).get(1)
        with hf.Client(server.url, token="0123456789abcdef") as client:
            for store in ("nothing", "no/thing", ""):
                with pytest.raises(errors.UnknownStore) as unknown:
                    client.store(store).get(1)
                assert "numbers" in unknown.value.more["stores"]


def test_only_instances_with_a_certificate_of_the_ca_are_believed() -> None:
    ca, other = trustme.CA(), trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(server)
    trusting, doubting = ssl.create_default_context(), ssl.create_default_context()
    ca.configure_trust(trusting)
    other.configure_trust(doubting)
    with serving(server) as address:
        with hf.Client(address, token="secret", tls=trusting) as client:
            assert client.store("numbers").get(1) == 2
        with hf.Client(address, token="secret", tls=doubting, timeout="20s") as client:
            with pytest.raises(errors.NotTrusted, match="CERTIFICATE_VERIFY_FAILED.*--ca-file"):
                client.store("numbers").get(1)


def test_the_other_scheme_is_asked_about(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue()
    files = {"tls_cert_file": issued.tls_cert_file, "tls_key_file": issued.tls_key_file}
    settings = RestSettings(port=0, **files)  # type: ignore[arg-type]
    with serve(create_app(World().reader, lambda: STATE, settings=settings), settings) as server:
        assert reason(server.url.replace("https:", "http:")).endswith("Does it serve https://?")
    with serving() as address:
        assert reason(address.replace("http:", "https:")).endswith("Does it serve http://?")


def reason(address: str) -> str:
    with closing(Blocking(None, None)) as shell:
        outcome = shell.run(performed(Send(address, Request("/v1/stores"), 30.0)))
    assert isinstance(outcome, Lost)
    return outcome.reason


def test_a_call_of_a_closed_client_is_an_error_of_its_own() -> None:
    with hf.Client("http://localhost:1") as client:
        store = client.store("numbers")
    for call in (lambda: store.get(1), lambda: store.get(1, hedge="1ms"), lambda: list(store.range())):
        with pytest.raises(errors.ClientClosed, match="The client is closed"):
            call()

    async def get() -> None:
        async with hf.AsyncClient("http://localhost:1") as client:
            store = client.store("numbers")
        with pytest.raises(errors.ClientClosed, match="The client is closed"):
            await store.get(1)

    asyncio.run(get())
