"""REST over TLS, with certificates of real CAs: HTTPS, client certificates, and who is refused."""

import asyncio
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from typer.testing import CliRunner, Result

import holdfast as hf
from holdfast import metrics
from holdfast.cli import app as command
from holdfast.client.errors import NoAnswer
from holdfast.errors import SettingsError
from holdfast.instance.credentials import Unprotected
from holdfast.occupied import check_places
from holdfast.query import accepting
from holdfast.query.rest import create_app
from holdfast.query.server import RestServer, serve
from holdfast.settings.model import Settings
from holdfast.settings.rest import RestSettings
from holdfast.settings.security import SecuritySettings
from holdfast.tls_files import BadTlsFile, TlsOptions, tls_of_files
from holdfast.words import TaskId
from tests.certificates import Authority
from tests.instance.processes import until
from tests.query.fake_tasks import NUMBERS, STATE, World

TOKEN = "0123456789abcdef-hush"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def settings_of(files: SecuritySettings, *, mutual: bool, **others: object) -> RestSettings:
    found = {each.name: getattr(files, each.name) for each in fields(files) if each.name.startswith("tls_")}
    if not mutual:
        del found["tls_ca_file"]
    return RestSettings(port=0, **found, **others)  # type: ignore[arg-type]


def started(settings: RestSettings) -> RestServer:
    return serve(create_app(World().reader, lambda: STATE, settings=settings), settings)


def trusting(authority: Authority, own: SecuritySettings | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if own is not None:
        assert own.tls_cert_file is not None
        context.load_cert_chain(own.tls_cert_file, own.tls_key_file)
    return context


@pytest.fixture
def https(ours: Authority) -> Iterator[RestServer]:
    with started(settings_of(ours.issue(), mutual=False, tokens=f"ann {TOKEN} admin")) as server:
        yield server


def test_https_with_a_token(https: RestServer, ours: Authority) -> None:
    assert https.url.startswith("https://127.0.0.1:")
    with httpx2.Client(base_url=https.url, verify=trusting(ours)) as client:
        assert client.get("/v1/state").status_code == 401
        assert client.get("/v1/state", headers=BEARER).json()["app"] == "game"


def test_a_client_of_another_ca_does_not_trust_the_server(https: RestServer, theirs: Authority) -> None:
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx2.get(f"{https.url}/v1/state", headers=BEARER, verify=trusting(theirs))


def test_nothing_is_answered_without_tls(https: RestServer) -> None:
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"http://127.0.0.1:{https.port}/health/live")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_is_1_2_or_later_whatever_the_machine_allows(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ssl.create_default_context

    def lax(*given: Any, **named: Any) -> ssl.SSLContext:
        context = made(*given, **named)
        context.set_ciphers("DEFAULT@SECLEVEL=0")  # of OpenSSL: without it there is nothing older than 1.2
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        return context

    with monkeypatch.context() as machine:
        machine.setattr(ssl, "create_default_context", lax)
        server, client = started(settings_of(ours.issue(), mutual=False)), trusting(ours)
    with server:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            client.maximum_version = version
            assert httpx2.get(f"{server.url}/health/live", verify=client).status_code == 200
        client.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health/live", verify=client)


def test_clients_show_certificates_of_the_ca(ours: Authority, theirs: Authority) -> None:
    with started(settings_of(ours.issue(), mutual=True)) as server:
        for path in ("/v1/state", "/health/live"):
            with httpx2.Client(base_url=server.url, verify=trusting(ours, ours.issue())) as client:
                assert client.get(path).json()["app"] == "game"
            for own in (None, theirs.issue(), ours.issue(expired=True)):
                with pytest.raises(httpx2.TransportError):
                    httpx2.get(server.url + path, verify=trusting(ours, own))


def test_programs_and_commands_show_their_certificates(ours: Authority, theirs: Authority) -> None:
    world = World()
    world.commit(1, NUMBERS, {(7,): 49})
    settings = settings_of(ours.issue(), mutual=True)
    with serve(create_app(world.reader, lambda: STATE, settings=settings), settings) as server:
        with hf.Client(server.url, tls=trusting(ours, ours.issue())) as client:
            assert client.store("numbers").get(7) == 49

        def get(*options: str, **env: str) -> Result:
            words = ["get", "numbers", "7", "--json", "--address", server.url, "--timeout", "500ms", *options]
            return CliRunner().invoke(command, words, env=env)

        def shown(own: SecuritySettings) -> list[str]:
            return ["--cert-file", str(own.tls_cert_file), "--key-file", str(own.tls_key_file)]

        found, own = get("--ca-file", ours.file, *shown(ours.issue())), ours.issue()
        assert found.exit_code == 0 and json.loads(found.output) == {"key": 7, "value": 49}, found.exception
        files = {"CA_FILE": ours.file, "CERT_FILE": str(own.tls_cert_file), "KEY_FILE": str(own.tls_key_file)}
        assert get(**{f"HOLDFAST_CLIENT_{name}": file for name, file in files.items()}).exit_code == 0
        for options in ([], shown(theirs.issue())):
            failed = get("--ca-file", ours.file, *options).exception
            assert failed is not None and isinstance(failed.__cause__, NoAnswer)


def test_files_of_a_client_that_cannot_be_used_are_named(ours: Authority, tmp_path: Path) -> None:
    options = TlsOptions("--ca-file", "--cert-file", "--key-file")
    cert, key = ours.issue().tls_cert_file, ours.issue().tls_key_file
    none = str(tmp_path / "none")
    assert tls_of_files(options, None, None, None) is None
    for ca_file, cert_file, key_file, fact in (
        (none, None, None, f"--ca-file = {none} can't be read: No such file"),
        (__file__, None, None, f"--ca-file = {__file__} can't be used. Give the CA"),
        (None, cert, None, "--cert-file is given without --key-file. Give both"),
        (ours.file, None, key, "--key-file is given without --cert-file. Give both"),
        (None, cert, none, f"with --key-file = {none} can't be read: No such file"),
        (None, cert, key, f"--cert-file = {cert} with --key-file = {key} can't be used. Give a certificate and its"),
    ):
        with pytest.raises(BadTlsFile, match=re.escape(fact)):
            tls_of_files(options, ca_file, cert_file, key_file)


def test_a_certificate_and_a_token_are_both_asked_for(ours: Authority) -> None:
    settings = settings_of(ours.issue(), mutual=True, tokens=f"ann {TOKEN} admin")
    with started(settings) as server, httpx2.Client(verify=trusting(ours, ours.issue())) as client:
        assert client.get(f"{server.url}/v1/state").status_code == 401
        assert client.get(f"{server.url}/v1/state", headers=BEARER).status_code == 200


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_connections_count_before_their_handshake(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 60.0)
    with started(settings_of(ours.issue(), mutual=False, max_connections=5)) as server, ExitStack() as stack:
        before = _files()
        silent = [stack.enter_context(socket.create_connection((server.host, server.port))) for _ in range(300)]
        for each in silent[:-5]:
            each.settimeout(30)
            assert each.recv(1) == b"", "it is closed for a later one"
        until(lambda: server.connections == 5, "the last ones are accepted")
        until(lambda: _files() < before + 310, "the files of the others are closed")
        with httpx2.Client(base_url=server.url, verify=trusting(ours)) as client:
            assert client.get("/health/live").status_code == 200
            assert server.connections == 5


def test_a_slow_client_gets_the_whole_of_a_large_answer(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """What it hasn't read is known, though it is encrypted on its way."""
    text = "0123456789abcdef" * (1 << 19)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(text)(scope, receive, send)

    with serve(large, settings_of(ours.issue(), mutual=False)) as server:
        url = httpx2.URL(server.url)
        plain = socket.create_connection((url.host, url.port or 0), timeout=30)
        with trusting(ours).wrap_socket(plain, server_hostname=url.host) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            until(lambda: metrics.value("holdfast_rest_unread_bytes") > 1 << 20, "it hasn't read most of it")
            received = b"".join(iter(lambda: client.recv(60_000), b""))
        assert received.endswith(text.encode()[-1000:]) and len(received.partition(b"\r\n\r\n")[2]) == len(text)
        until(lambda: metrics.value("holdfast_rest_unread_bytes") == 0, "all is read")
    assert not caplog.records


def test_a_client_that_does_not_say_hello_is_closed(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.1)
    with started(settings_of(ours.issue(), mutual=False)) as server:
        with socket.create_connection((server.host, server.port), timeout=30) as silent:
            assert silent.recv(1) == b""
        until(lambda: server.connections == 0, "it doesn't count any more")
        with socket.create_connection((server.host, server.port), timeout=30) as left:
            left.sendall(b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: server.connections == 0, "nor does one whose handshake failed")


def test_over_https_a_connection_is_closed_if_all_others_have_requests_under_way(ours: Authority) -> None:
    reached, release = threading.Event(), threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        reached.set()
        await asyncio.to_thread(release.wait, 30)
        await PlainTextResponse("done")(scope, receive, send)

    settings = settings_of(ours.issue(), mutual=False, max_connections=1)
    with serve(slow, settings) as server, ThreadPoolExecutor(1) as threads:
        busy = threads.submit(httpx2.get, server.url, verify=trusting(ours), timeout=30)
        assert reached.wait(30)
        with socket.create_connection((server.host, server.port), timeout=30) as refused:
            assert refused.recv(1) == b""
        assert server.connections == 1
        release.set()
        assert busy.result(30).text == "done"


def test_a_stop_does_not_wait_for_handshakes(ours: Authority) -> None:
    with started(settings_of(ours.issue(), mutual=False)) as server, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection((server.host, server.port)))
        until(lambda: server.connections == 20, "they are accepted")
        server.stop(grace=3600.0)  # pytest would end it long before
        assert not server.running and server.connections == 0


def test_files_that_do_not_belong_together_are_named(ours: Authority, tmp_path: Path) -> None:
    one, other = ours.issue(), ours.issue()
    with pytest.raises(SettingsError, match="rest.tls_cert_file = .* are not a certificate and its private key"):
        started(RestSettings(port=0, tls_cert_file=one.tls_cert_file, tls_key_file=other.tls_key_file))
    with pytest.raises(SettingsError, match="rest.tls_key_file = .* can't be read: No such file"):
        started(RestSettings(port=0, tls_cert_file=one.tls_cert_file, tls_key_file=str(tmp_path / "none")))
    with pytest.raises(SettingsError, match="rest.tls_ca_file = .* has no certificate in PEM"):
        started(settings_of(ours.issue(ca_file=__file__), mutual=True))


def test_other_machines_may_ask_if_they_are_asked_who_they_are(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Unprotected, match="rest.tokens_file"):
        started(RestSettings(host="0.0.0.0"))
    with pytest.raises(Unprotected, match="rest.tokens_file"):
        started(settings_of(ours.issue(), mutual=False, host="0.0.0.0"))  # TLS alone asks nobody
    started(settings_of(ours.issue(), mutual=True, host="0.0.0.0")).stop()
    assert "in the clear" not in caplog.text
    started(RestSettings(host="0.0.0.0", tokens=f"ann {TOKEN} admin")).stop()
    assert "REST on 0.0.0.0 has no TLS, so tokens travel in the clear" in caplog.text
    started(RestSettings(host="0.0.0.0", insecure=True)).stop()


@pytest.mark.parametrize("mutual", [False, True])
def test_a_port_is_known_as_the_apps_own_behind_tls_and_tokens(
    mutual: bool, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    settings = settings_of(ours.issue(), mutual=mutual, tokens=f"ann {TOKEN} read:scores")

    def check(app: str, files: RestSettings) -> None:
        own = {each.name: getattr(files, each.name) for each in fields(files)} | {"port": server.port}
        check_places(app, Settings(base_dir=str(tmp_path), rest=RestSettings(**own)), [TaskId(0, 0)])

    with started(settings) as server:
        check("game", settings)
        with pytest.raises(Exception, match="Address already in use"):
            check("another", settings)
        if mutual:
            with pytest.raises(Exception, match="Address already in use"):
                check("game", settings_of(theirs.issue(), mutual=True))
