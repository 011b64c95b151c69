"""Times of answers are measured apart for where they came from."""

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import metrics
from holdfast.instance.config import Role
from holdfast.query.measuring import REQUESTS
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import Served
from holdfast.settings.rest import RestSettings
from tests.query.fake_tasks import APP, SCORES, STATE, World, served
from tests.query.instances import Group, started
from tests.query.test_freshness import GAME, KEYS, STORE

_ONE = "/v1/stores/{store}/keys/{key}"
_RANGE = "/v1/stores/{store}/range"
TOKEN = {"authorization": "Bearer ann-0123456789abcdef"}


def _counts(path: str = _ONE) -> dict[str, float]:
    kinds = ("local", "routed", "standby", "scattered", "other")
    return {kind: metrics.value("holdfast_rest_request_seconds_count", path=path, answered=kind) for kind in kinds}


def _more(before: dict[str, float], path: str = _ONE) -> dict[str, float]:
    return {kind: number - before[kind] for kind, number in _counts(path).items() if number != before[kind]}


@pytest.mark.parametrize(
    ("remote", "role", "kind"),
    [
        (False, Role.ACTIVE, "local"),
        (True, Role.ACTIVE, "routed"),
        (False, Role.STANDBY, "standby"),
        (True, Role.STANDBY, "standby"),
    ],
)
@pytest.mark.parametrize("query", ["", "?at_least=1"])
def test_lookups_are_measured_by_the_replica_that_answers(remote: bool, role: Role, kind: str, query: str) -> None:
    world = World(remote=APP.tasks() if remote else ())
    world.commit(1, SCORES, {("ann",): (1, None, None, None, None)})
    for task in world.tasks.values():
        task.served = Served(role, "game-0")
    with served(world.reader) as client:
        before = _counts()
        answer = client.get(f"/scores/keys/ann{query}")
        assert (answer.status_code, answer.json()["role"]) == (200, role)
        assert _more(before) == {kind: 1}
        before = _counts()
        assert client.get("/scores/keys/ann?fields=x").status_code == 400
        assert _more(before) == {"other": 1}


@pytest.mark.parametrize(
    ("method", "path", "headers", "counted", "status"),
    [
        ("GET", _ONE.format(store="scores", key="ann"), {}, _ONE, 401),
        ("GET", "/v1/stores/levels/range", TOKEN, _RANGE, 403),
        ("GET", "/metrics", TOKEN, "/metrics", 403),
        ("GET", "/v1/stores/scores/range", {**TOKEN, "holdfast-log": "another"}, _RANGE, 421),
        ("POST", "/v1/stores/scores/keys", {**TOKEN, "content-length": "100"}, "/v1/stores/{store}/keys", 413),
        ("POST", "/v1/stores/scores/range", TOKEN, _RANGE, 405),
        ("GET", "/v1/stores/scores/range?limit=0", TOKEN, _RANGE, 400),
        ("GET", "/v1/stores/scores/nothing", TOKEN, "unknown", 404),
        ("GET", "/favicon.ico", {}, "unknown", 401),
        ("?", "/v1/stores", {}, "unknown", 400),
    ],
)
def test_a_refusal_is_counted_once_with_its_path_and_status(
    method: str, path: str, headers: dict[str, str], counted: str, status: int
) -> None:
    settings = RestSettings(tokens="ann ann-0123456789abcdef read:scores", max_body=10)
    with serve(create_app(World().reader, lambda: STATE, settings=settings), port=0) as server:
        before = _statuses()
        with socket.create_connection((server.host, server.port), timeout=30) as client:
            lines = [f"{method} {path} HTTP/1.1", "host: x", *(f"{name}: {text}" for name, text in headers.items())]
            client.sendall("\r\n".join([*lines, "", ""]).encode())
            assert client.recv(100).startswith(f"HTTP/1.1 {status} ".encode())
    assert _statuses() - before == Counter({(counted, str(status)): 1})


def _statuses() -> Counter[tuple[str, str]]:
    """How many requests there were, by path and status."""
    requests = next(iter(REQUESTS.collect()))
    return Counter({(each.labels["path"], each.labels["status"]): int(each.value) for each in requests.samples})


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        group.driver.commit(STORE, {(n,): n for n in KEYS})
        group.settle()
        yield group


def test_answers_of_several_partitions_are_measured_apart(group: Group) -> None:
    before, ranges = _counts(), _counts(_RANGE)
    for n in KEYS:
        group.get(f"/v1/stores/numbers/keys/{n}")
    group.get("/v1/stores/numbers/range")
    assert _more(ranges, _RANGE) == {"scattered": 1}
    more = _more(before)
    assert set(more) == {"local", "routed"}
    assert sum(more.values()) == len(KEYS)
