"""Which hosts and origins a request may name: pages that let their name lead to this machine read nothing."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx2
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast import metrics
from holdfast.cli import app as command
from holdfast.client.errors import HostRefused, OriginRefused
from holdfast.client.refusals import refused
from holdfast.errors import SettingsError
from holdfast.query.http_protocol import quick_answers_of
from holdfast.query.rest import create_app
from holdfast.query.server import RestServer, serve
from holdfast.settings.rest import RestSettings
from tests.query.fake_tasks import NUMBERS, STATE, World

KEY = "/v1/stores/numbers/keys/7"
LATEST = f"{KEY}?at=latest"
TOKEN = "ann-0123456789abcdef"


@contextmanager
def started(**settings: object) -> Iterator[RestServer]:
    world = World()
    world.commit(1, NUMBERS, {(n,): n * n for n in range(20)})
    given = RestSettings(port=0, **settings)  # type: ignore[arg-type]
    with serve(create_app(world.reader, lambda: STATE, settings=given), given) as server:
        yield server


@pytest.fixture(scope="module")
def rest() -> Iterator[RestServer]:
    with started() as server:
        yield server


def ask(
    rest: RestServer, path: str, headers: Sequence[str], method: str = "GET", version: str = "1.1"
) -> tuple[int, bytes]:
    """The status and the body of an answer to exactly these headers."""
    with socket.create_connection(("127.0.0.1", rest.port), timeout=30) as connection:
        lines = [f"{method} {path} HTTP/{version}", "Connection: close", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


def statuses(rest: RestServer, *hosts: str) -> list[tuple[int, int]]:
    """Of a lookup that is answered quickly, and of one that goes the usual way."""
    asked = [[ask(rest, path, [f"Host: {host}"])[0] for path in (KEY, LATEST)] for host in hosts]
    return [(quick, usual) for quick, usual in asked]


def test_requests_may_name_an_address_or_localhost(rest: RestServer) -> None:
    hosts = (
        "127.0.0.1",
        f"127.0.0.1:{rest.port}",
        "127.8.9.1",
        "localhost:9000",
        "LOCALHOST",
        "[::1]:8080",
        "10.0.0.7",
    )
    for _ in range(2):  # known or not
        assert statuses(rest, *hosts) == [(200, 200)] * len(hosts)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "é",
        "[evil.example]",
    ],
)
def test_other_hosts_are_refused(rest: RestServer, host: str) -> None:
    before = metrics.value("holdfast_rest_requests_refused_total", error="host_refused")
    assert statuses(rest, host) == [(403, 403)]
    assert metrics.value("holdfast_rest_requests_refused_total", error="host_refused") == before + 2
    for path in ("/v1/stores", "/metrics", "/no/such", "/health/live"):
        assert ask(rest, path, [f"Host: {host}"])[0] == 403


def test_the_refusal_names_the_host_and_the_setting(rest: RestServer) -> None:
    with httpx2.Client(base_url=rest.url, headers={"Host": "evil.example"}) as client:
        for answer in (client.get(KEY), client.post("/v1/sql", json={"sql": "SELECT 1"})):
            body = answer.json()
            assert (answer.status_code, body["error"]) == (403, "host_refused")
            assert "'evil.example'" in body["message"] and "rest.allowed_hosts" in body["what_to_do"]


def test_one_of_two_hosts_is_enough_for_a_refusal(rest: RestServer) -> None:
    for hosts in (["Host: localhost", "Host: evil.example"], ["Host: evil.example", "Host: localhost"]):
        assert [ask(rest, path, hosts)[0] for path in (KEY, LATEST)] == [403, 403]


def test_a_program_without_a_host_is_answered(rest: RestServer) -> None:
    assert ask(rest, KEY, [], version="1.0")[0] == ask(rest, KEY, [])[0] == 200


def test_hosts_that_are_allowed_or_listened_on_are_accepted() -> None:
    with started(allowed_hosts="state.example.com, Other.Example") as rest:
        assert statuses(rest, "state.example.com", "other.example:80", "evil.example") == [(200, 200)] * 2 + [
            (403, 403)
        ]
        assert statuses(rest, "localhost", f"127.0.0.1:{rest.port}") == [(200, 200)] * 2
    with started(allowed_hosts="*") as rest:
        assert statuses(rest, "evil.example") == [(200, 200)]
    with started(host="localhost") as rest:
        assert statuses(rest, "localhost", "evil.example") == [(200, 200), (403, 403)]


def test_any_host_may_be_named_where_others_ask_or_tokens_protect() -> None:
    with started(host="0.0.0.0", insecure=True) as rest:
        assert statuses(rest, "game-0.game:8080", "10.0.0.7:8080") == [(200, 200)] * 2
    with started(host="0.0.0.0", insecure=True, allowed_hosts="game-0.game") as rest:
        assert statuses(rest, "game-0.game:8080", "10.0.0.7:8080", "evil.example") == [(200, 200)] * 2 + [(403, 403)]
    bearer = f"Authorization: Bearer {TOKEN}"
    with started(tokens=f"ann {TOKEN} read:*") as rest:
        assert ask(rest, KEY, ["Host: state.example.com", bearer])[0] == 200
    with started(tokens=f"ann {TOKEN} read:*", allowed_hosts="state.example.com") as rest:
        assert ask(rest, KEY, ["Host: state.example.com", bearer])[0] == 200
        assert ask(rest, KEY, ["Host: evil.example", bearer])[0] == 403


HOLD = "/v1/stores/numbers/hold?seconds=0"


def posted(rest: RestServer, origin: str, host: str = "localhost", method: str = "POST") -> int:
    headers = [f"Host: {host}", f"Origin: {origin}", "Content-Type: text/plain", "Content-Length: 0"]
    return ask(rest, HOLD, headers, method)[0]


def test_pages_of_other_origins_may_send_no_post(rest: RestServer) -> None:
    own = f"localhost:{rest.port}"
    assert posted(rest, f"http://{own}", own) == 200
    for origin in ("https://evil.example", "null", "http://localhost:3000", "http://", ""):
        assert posted(rest, origin, own) == 403
    assert ask(rest, HOLD, [f"Host: {own}"], "POST")[0] == 200, "a program sends none"
    body = httpx2.post(rest.url + HOLD, headers={"Origin": "https://evil.example"}).json()
    assert body["error"] == "origin_refused" and "'https://evil.example'" in body["message"]
    assert "rest.cors_origins" in body["what_to_do"]


def test_pages_that_are_allowed_may_send_a_post() -> None:
    with started(cors_origins="https://dash.example.com, https://b.example") as rest:
        origins = ("https://dash.example.com", "https://b.example", "https://evil.example")
        assert [posted(rest, each) for each in origins] == [200, 200, 403]
    with started(cors_origins="*") as rest:
        assert posted(rest, "https://evil.example") == 200
    with started(allowed_hosts="dash.example.com") as rest:  # of a proxy, which passes its own Host on or not
        assert posted(rest, "https://dash.example.com", "dash.example.com") == 200
        assert posted(rest, "https://dash.example.com") == 200
        assert posted(rest, "https://evil.example", "dash.example.com") == 403
    with started(tokens=f"ann {TOKEN} read:*") as rest:
        assert posted(rest, "https://evil.example") == 401, "its token decides"


def test_a_foreign_page_costs_no_lookup_its_quick_answer() -> None:
    world = World()
    world.commit(1, NUMBERS, {(7,): 49})
    quick = quick_answers_of(create_app(world.reader, lambda: STATE))
    assert quick is not None
    host, other = (b"host", b"localhost:8080"), (b"host", b"evil.example")
    for headers in ([host], [], [(b"accept", b"*/*"), host]):
        assert quick.quick_answer(KEY.encode(), headers) is not None
        assert quick.is_lookup(KEY.encode(), headers)
    assert quick.quick_answer(KEY.encode(), [other]) is None
    assert not quick.is_lookup(KEY.encode(), [other])


def test_clients_ask_by_addresses_and_are_told_of_a_refusal(rest: RestServer) -> None:
    for address in (rest.url, f"http://localhost:{rest.port}"):
        with hf.Client(address) as client:
            assert client.store("numbers").get(7) == 49
        found = CliRunner().invoke(command, ["get", "numbers", "7", "--address", address])
        assert found.exit_code == 0, found.output
    for headers, kind in (({"Host": "evil.example"}, HostRefused), ({"Origin": "null"}, OriginRefused)):
        answer = httpx2.post(rest.url + HOLD, headers=headers)
        assert type(refused(answer.status_code, answer.json())) is kind


@pytest.mark.parametrize("hosts", ["https://a.example", "a.example:8080", "a.example,,b.example", "", "*.example.com"])
def test_hosts_that_can_be_none_are_refused(hosts: str) -> None:
    with pytest.raises(SettingsError, match="rest.allowed_hosts = .* names of hosts, without https://"):
        RestSettings(allowed_hosts=hosts)
