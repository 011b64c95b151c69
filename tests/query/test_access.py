"""Who may ask what over REST: tokens with scopes, on every route there is."""

import errno
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError, SettingsError
from holdfast.query.access import EVERYTHING, OPEN, Guarded, needed
from holdfast.query.access_tokens import TokenFile, Tokens
from holdfast.query.grants import ADMIN, READ_ALL, Grant
from holdfast.query.http_protocol import quick_answers_of
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.service import RestService
from holdfast.settings.rest import RestSettings
from holdfast.words import Millis
from tests.instance.processes import until
from tests.query.fake_tasks import APP as GAME
from tests.query.fake_tasks import NUMBERS, SCORES, STATE, World
from tests.query.instances import serving

ALL, SCORES_ONLY, OPERATOR, EXPIRED = (f"{who}-0123456789abcdef" for who in ("all", "scores", "operator", "expired"))
TOKENS = f"""
# name    token          scopes
all       {ALL}          read:*,admin
dashboard {SCORES_ONLY}  read:scores
operator  {OPERATOR}     admin
former    {EXPIRED}      read:*,admin     2020-01-31
"""


def routes_of(app: ASGIApp) -> list[Route]:
    """All routes of the application, whatever is in front of it."""
    inside: Any = app
    while not isinstance(inside, Starlette):
        inside = next(getattr(inside, name) for name in ("app", "_app", "_others") if hasattr(inside, name))
    return [route for route in inside.routes if isinstance(route, Route)]


def path_of(route: Route) -> str:
    return re.sub(r"\{\w+(:\w+)?\}", "scores", route.path)


WORLD = World()
WORLD.commit(1, SCORES, {("alice",): (12, None, None, None, 1)})
APP = create_app(WORLD.reader, lambda: STATE, settings=RestSettings(tokens=TOKENS))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestService]:
    """REST of an instance, with all paths that it has there."""
    settings = RestSettings(port=0, tokens=TOKENS)
    with serving(tmp_path_factory.mktemp("access"), GAME, settings) as (driver, instance, service):
        driver.commit(SCORES, {("alice",): (12, None, None, None, 1)})
        instance.committed(driver.commit(NUMBERS, {(n,): n for n in range(5)}))
        until(lambda: all(each.replica.published.version == 2 for each in instance.hosted()), "version 2")
        yield service


@pytest.fixture(scope="module")
def rest(service: RestService) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=service.url, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def paths(service: RestService) -> list[str]:
    found = {path_of(route) for route in routes_of(service._server._app)}
    return sorted(found | {"/v1/stores/scores/keys/alice", "/v1/nothing", "/"})


def ask(rest: httpx2.Client, path: str, headers: Any = None, method: str = "GET") -> httpx2.Response:
    """An answer; of one that may have no end, its status and headers."""
    with rest.stream(method, path, headers=headers) as answer:
        if answer.status_code != 200:
            answer.read()
    return answer


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def refused(answer: httpx2.Response) -> tuple[int, str, str]:
    body = answer.json()
    assert body["message"] and body["what_to_do"]
    return answer.status_code, body["error"], answer.headers["www-authenticate"]


def test_a_whole_store_needs_its_own_scope(rest: httpx2.Client) -> None:
    for method, path in (("GET", "arrow"), ("POST", "hold?seconds=0")):
        for store, status in (("scores", 200), ("numbers", 403)):
            answer = rest.request(method, f"/v1/stores/{store}/{path}", headers=bearer(SCORES_ONLY))
            assert answer.status_code == status, answer.text


def test_the_routes_are_those_of_an_instance(paths: list[str]) -> None:
    assert {"/v1/stores/scores/watch", "/v1/sql", "/v1/routing", "/v1/stores/scores/arrow"} <= {*paths}
    assert needed("/v1/stores/scores/watch") == ("read:scores",)


def test_every_route_needs_a_token_with_its_scope(paths: list[str], rest: httpx2.Client) -> None:
    guarded = [path for path in paths if path not in OPEN]
    assert len(guarded) > 20
    for path in guarded:
        check_scopes(path, rest)


def check_scopes(path: str, rest: httpx2.Client) -> None:
    invalid = 'Bearer error="invalid_token"'
    methods = ("GET", "POST", "DELETE")
    for method in (*methods, "HEAD", "OPTIONS"):
        assert ask(rest, path, method=method).status_code == 401, path
    assert refused(ask(rest, path)) == (401, "token_missing", "Bearer"), path
    for wrong in ("Bearer wrong-0123456789abcdef", "Bearer", f"Basic {ALL}", f"Bearer {ALL}x", f"Bearer {ALL[:-1]}"):
        assert refused(ask(rest, path, {"Authorization": wrong})) == (401, "token_unknown", invalid), path
    twice = [("Authorization", f"Bearer {ALL}"), ("Authorization", f"Bearer {SCORES_ONLY}")]
    assert refused(ask(rest, path, twice)) == (401, "token_unknown", invalid), path
    for method in methods:
        assert refused(ask(rest, path, bearer(EXPIRED), method)) == (401, "token_expired", invalid), path
    assert ask(rest, path, bearer(ALL)).status_code not in (401, 403), path
    assert ask(rest, path, {"Authorization": f"bearer  {ALL}"}).status_code not in (401, 403), path

    needs = set(EVERYTHING if (found := needed(path)) is None else found)
    tokens = ((SCORES_ONLY, {"read:scores"}), (OPERATOR, {ADMIN}))
    for (token, has), method in itertools.product(tokens, methods):
        if path == "/v1/sql" and token == OPERATOR:
            continue  # refused by the statement's own rule, which has a test of its own
        answer = ask(rest, path, bearer(token), method)
        if needs <= has:
            assert answer.status_code not in (401, 403), path
        else:
            assert refused(answer) == (403, "out_of_scope", 'Bearer error="insufficient_scope"'), path
            assert set(answer.json()["needs"]) == needs, path


@pytest.mark.parametrize("path", sorted(OPEN))
def test_what_supervisors_ask_needs_no_token(path: str, rest: httpx2.Client) -> None:
    for headers in ({}, bearer("wrong-0123456789abcdef")):
        assert rest.get(path, headers=headers, follow_redirects=True).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stores/numbers/keys/3",
        "/v1/stores/numb%65rs/keys/3",
        "/v1/stores/no-such-store/keys/3",
        "/v1/stores/",
        "/v1//stores/scores/keys/alice",
        "/v1/stores/numbers%2Fkeys/3",
        "/v1/stores/scores%2F..%2Fnumbers/range",
        "/v1/stores/%F0%9F%98%80/range",
        "/v1/stores/a%0D%0AX-Y:1/range",
        "/health/live%0A",
        "//health/live",
    ],
)
def test_a_token_of_one_store_learns_nothing_of_others(path: str, rest: httpx2.Client) -> None:
    answer = rest.get(path, headers=bearer(SCORES_ONLY))
    assert answer.status_code == (400 if ".." in path else 403), "the route of '..' is a query of scores"
    assert "numbers" not in answer.text.replace("read:numbers", "")
    assert "levels" not in answer.text


def test_a_token_of_one_store_reads_it_and_sees_no_other_name(rest: httpx2.Client) -> None:
    found = rest.get("/v1/stores/scores/keys/alice", headers=bearer(SCORES_ONLY))
    assert (found.status_code, found.json()["value"]["points"]) == (200, 12)
    listed = rest.get("/v1/stores", headers=bearer(SCORES_ONLY)).json()["stores"]
    assert [each["store"] for each in listed] == ["scores"]
    assert len(rest.get("/v1/stores", headers=bearer(ALL)).json()["stores"]) == 3
    assert rest.get("/v1/stores", headers=bearer(OPERATOR)).json()["stores"] == []


def test_the_openapi_document_names_only_stores_that_the_token_may_read(rest: httpx2.Client) -> None:
    def named(token: str) -> set[str]:
        paths = rest.get("/v1/openapi.json", headers=bearer(token)).json()["paths"]
        parameters = [
            each for methods in paths.values() for operation in methods.values() for each in operation["parameters"]
        ]
        return {store for each in parameters if each["name"] == "store" for store in each["schema"].get("enum", ())}

    assert named(ALL) == {"scores", "levels", "numbers"}
    assert named(SCORES_ONLY) == {"scores"}
    assert named(OPERATOR) == set()
    for token, hidden in ((SCORES_ONLY, ("levels", "numbers")), (OPERATOR, ("levels", "numbers", "scores"))):
        text = rest.get("/v1/openapi.json", headers=bearer(token)).text
        assert not any(f'"{store}"' in text for store in hidden)


def test_routing_has_only_stores_and_tasks_that_the_token_may_read(rest: httpx2.Client) -> None:
    def routes(token: str) -> tuple[list[str], set[str], int]:
        found = rest.get("/v1/routing", headers=bearer(token)).json()
        return [each["store"] for each in found["stores"]], {*found["tasks"]}, len(found["instances"])

    everything = {str(task) for task in GAME.tasks()}
    assert routes(ALL) == (["levels", "numbers", "scores"], everything, 1)
    assert routes(SCORES_ONLY) == (["scores"], {task for task in everything if task.startswith("0_")}, 1)
    assert routes(OPERATOR) == ([], set(), 1)


def test_an_unknown_store_names_those_that_the_token_may_read() -> None:
    settings = RestSettings(tokens=f"one {ALL} read:scores,read:gone")
    with serve(create_app(WORLD.reader, lambda: STATE, settings=settings), port=0) as server:
        answer = httpx2.get(f"{server.url}/v1/stores/gone/keys/a", headers=bearer(ALL))
    assert (answer.status_code, answer.json()["stores"]) == (404, ["scores"])
    assert "numbers" not in answer.text


def test_a_new_route_that_is_not_listed_is_closed() -> None:
    assert needed("/v1/sql/") is needed("/health/live\n") is None
    assert set(EVERYTHING) == {ADMIN, READ_ALL}


def test_a_token_is_valid_until_it_expires() -> None:
    clock = ManualClock(Millis(0))
    tokens = Tokens.parsed(f"ann {ALL} read:* 1970-01-01T00:00:10Z", "here")
    guard = Guarded(APP, lambda: tokens, clock=clock)
    headers = [(b"authorization", f"Bearer {ALL}".encode())]
    assert guard._granted(headers).name == "ann"
    clock.advance(10)
    with pytest.raises(Exception, match="has expired"):
        guard._granted(headers)


def test_a_date_and_a_time_are_in_utc() -> None:
    def expiry(text: str) -> int | None:
        found = Tokens.parsed(f"ann {ALL} admin {text}", "here").grant(ALL.encode())
        assert found is not None
        return found.expires

    assert expiry("1970-01-02") == expiry("1970-01-02T00:00:00") == expiry("1970-01-02T02:00:00+02:00") == 86_400_000


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "has no token"),
        ("# ann 0123456789abcdef-secret admin", "has no token"),
        ("ann 0123456789abcdef-secret", "line 1 has 2 words"),
        ("\nann 0123456789abcdef-secret admin 2030-01-01 more", "line 2 has 5 words"),
        ("ann secret admin", "line 1: the token needs 16"),
        ("ann 0123456789ab√-secret admin", "line 1: the token needs 16"),
        ("ann 0123456789abcdef-secret admni", "line 1: the scopes must be"),
        ("ann 0123456789abcdef-secret read:", "line 1: the scopes must be"),
        ("ann 0123456789abcdef-secret admin tomorrow", "line 1: the last word must be a date"),
        ("a/b 0123456789abcdef-secret admin", "line 1: the name"),
        ("ann 0123456789abcdef-secret admin\nann 1123456789abcdef-secret admin", "line 2: this name or this token"),
        ("ann 0123456789abcdef-secret admin\nbob 0123456789abcdef-secret admin", "line 2: this name or this token"),
    ],
)
def test_tokens_that_cannot_be_read_are_an_error_without_them(text: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(fact)) as found:
        create_app(WORLD.reader, lambda: STATE, settings=RestSettings(tokens=text))
    assert "secret" not in str(found.value)
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(SettingsError, match=f"rest.tokens_file = {tmp_path}/tokens.*{re.escape(fact)}"):
        TokenFile(tmp_path / "tokens")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can't be read: No such file"):
        TokenFile(tmp_path / "none")


def test_a_changed_file_is_read_again_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "tokens", ManualClock(Millis(0))
    file.write_text(f"ann {ALL} read:*\n")
    tokens = TokenFile(file, clock)

    def change(text: str) -> None:
        written = tmp_path / "next"
        written.write_text(text)
        os.replace(written, file)
        clock.advance(1)

    def names() -> list[str | None]:
        found = [tokens().grant(token.encode()) for token in (ALL, SCORES_ONLY)]
        return [grant.name if grant else None for grant in found]

    assert names() == ["ann", None]
    change(f"bob {SCORES_ONLY} read:scores\n")
    assert names() == [None, "bob"]
    with caplog.at_level(logging.ERROR):
        change(f"bob {SCORES_ONLY}\n")
        assert names() == [None, "bob"], "one that can't be used changes nothing"
        file.unlink()
        clock.advance(1)
        assert names() == [None, "bob"]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the tokens stay as they were"] * 2
    assert "line 1 has 2 words" in caplog.text and SCORES_ONLY not in caplog.text
    change(f"eve {ALL} admin\n")
    assert names() == ["eve", None]


def test_a_file_that_could_not_be_read_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, clock = tmp_path / "tokens", ManualClock(Millis(0))
    file.write_text(f"ann {ALL} read:*\n")
    tokens = TokenFile(file, clock)
    written = tmp_path / "next"
    written.write_text(f"bob {SCORES_ONLY} read:*\n")
    os.replace(written, file)

    def forbidden(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as rights, caplog.at_level(logging.ERROR):
        rights.setattr(Path, "read_text", forbidden)  # tests may run as root, who reads every file
        for _ in range(3):
            clock.advance(1)
            assert tokens().grant(ALL.encode()) is not None
    assert caplog.text.count("can't be read: Permission denied") == 1
    clock.advance(1)
    assert tokens().grant(ALL.encode()) is None and tokens().grant(SCORES_ONLY.encode()) is not None


def test_a_text_of_the_same_size_and_time_is_a_change(tmp_path: Path) -> None:
    file, clock = tmp_path / "tokens", ManualClock(Millis(0))
    file.write_text(f"ann {ALL} read:*\n")
    before = os.stat(file)
    tokens = TokenFile(file, clock)
    file.write_text(f"bob {ALL} read:*\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.advance(1)
    found = tokens().grant(ALL.encode())
    assert found is not None and found.name == "bob"


def test_no_secret_is_logged_or_answered(
    paths: list[str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Any:
        raise RuntimeError("the state is broken")

    wrong = "wrong-0123456789abcdef"
    app = create_app(WORLD.reader, broken, settings=RestSettings(tokens=TOKENS))
    with caplog.at_level(logging.DEBUG), serve(app, port=0) as server, httpx2.Client(base_url=server.url) as client:
        logging.getLogger("httpx2").setLevel(logging.CRITICAL)
        logging.getLogger("httpcore2").setLevel(logging.CRITICAL)
        answers = [
            client.request(method, path, headers=bearer(token))
            for method in ("GET", "POST")
            for path in (*paths, f"/v1/stores/{'x' * 10}/keys/a")
            for token in (ALL, SCORES_ONLY, OPERATOR, EXPIRED, wrong)
        ]
    assert any(answer.status_code == 500 for answer in answers), "an error with its trace is in the log"
    said = "".join([*(answer.text + str(answer.headers) for answer in answers), caplog.text, *capfd.readouterr()])
    assert "refused a request from 127.0.0.1" in said
    assert not any(token in said for token in (ALL, SCORES_ONLY, OPERATOR, EXPIRED, wrong))
    settings = RestSettings(tokens=TOKENS)
    assert ALL not in repr(settings) + str(settings)


def test_strangers_are_named_once_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(WORLD.reader, lambda: STATE, settings=RestSettings(tokens=TOKENS))
    with serve(app, port=0) as server, httpx2.Client(base_url=server.url) as client:
        assert {client.get("/v1/state").status_code for _ in range(20)} == {401}
    assert caplog.text.count("refused a request from") == 1


def test_pages_of_other_origins_may_ask_only_if_it_is_set() -> None:
    origin = {"Origin": "https://dash.example.com"}
    preflight = {**origin, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}

    def asked(settings: RestSettings) -> tuple[httpx2.Response, httpx2.Response]:
        path = "/v1/stores/scores/keys/alice"
        with serve(create_app(WORLD.reader, lambda: STATE, settings=settings), port=0) as server:
            with httpx2.Client(base_url=server.url) as client:
                return client.get(path, headers=origin | bearer(ALL)), client.options(path, headers=preflight)

    for answer in asked(RestSettings(tokens=TOKENS)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    got, before = asked(RestSettings(tokens=TOKENS, cors_origins="https://a.example.com, https://dash.example.com"))
    assert (got.status_code, got.headers["access-control-allow-origin"]) == (200, "https://dash.example.com")
    assert before.status_code == 200
    assert before.headers["access-control-allow-headers"].count("authorization") == 1
    allowed = {name.strip() for name in before.headers["access-control-allow-headers"].lower().split(",")}
    assert {"authorization", "content-type", "last-event-id", "holdfast-log"} <= allowed
    assert "DELETE" in before.headers["access-control-allow-methods"]
    exposed = {name.strip() for name in got.headers["access-control-expose-headers"].split(",")}
    assert {"retry-after", "holdfast-version", "holdfast-consistent", "holdfast-more"} <= exposed
    got, before = asked(RestSettings(cors_origins="https://a.example.com"))
    assert "access-control-allow-origin" not in got.headers and before.status_code == 400


def test_lookups_of_programs_stay_quick_when_pages_of_other_origins_may_ask() -> None:
    url, origin = b"/v1/stores/scores/keys/alice", (b"origin", b"https://dash.example.com")
    token = (b"authorization", f"Bearer {ALL}".encode())
    for settings in (RestSettings(cors_origins="*"), RestSettings(cors_origins="*", tokens=TOKENS)):
        quick = quick_answers_of(create_app(WORLD.reader, lambda: STATE, settings=settings))
        assert quick is not None
        body = quick.quick_answer(url, [token])
        assert body is not None and b'"points":12' in body
        assert quick.is_lookup(url, [token])
        assert quick.quick_answer(url, [token, origin]) is None
        assert not quick.is_lookup(url, [origin]), "a page could not read the refusal"


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: RestSettings(tokens="a", tokens_file="b"), "both set"),
        (lambda: RestSettings(tls_cert_file="a"), "rest.tls_key_file must be set too"),
        (lambda: RestSettings(tls_key_file="a"), "rest.tls_cert_file must be set too"),
        (lambda: RestSettings(tls_ca_file="a"), "without rest.tls_cert_file"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make: Callable[[], RestSettings], fact: str) -> None:
    with pytest.raises(HoldfastError, match=fact):
        make()


def test_scopes_are_apart() -> None:
    everything, operator = Grant("a", frozenset({READ_ALL})), Grant("b", frozenset({ADMIN}))
    assert not everything.covers(ADMIN) and everything.covers("read:scores")
    assert operator.covers(ADMIN) and not operator.covers("read:scores")
