"""REST: exact statuses and bodies, over a real server."""

import datetime as dt
import math
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from holdfast import metrics
from holdfast.query.health import AppStateInfo, TaskInfo
from holdfast.query.reader import StoreReader
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import ANY_REPLICA, KeyRead, NotReady, ReadNeeds, Restoring
from holdfast.stores.access import Now
from holdfast.words import TaskId, Version
from tests.query.fake_tasks import LEVELS, NUMBERS, SCORES, FakeTask, World, served

STATE = AppStateInfo(
    app="game",
    instance="game-0",
    state="running",
    version=7,
    committed=8,
    ready=True,
    tasks=(TaskInfo(task="0_0", phase="running", version=7, ready=True),),
)

ALICE = (12, math.nan, Decimal("3.50"), dt.date(2026, 1, 31), 4)


@pytest.fixture(scope="module")
def world() -> World:
    world = World()
    world.commit(1, SCORES, {("alice",): ALICE, ("bob/ü ?",): (None, -math.inf, None, None, None), ("",): ALICE})
    world.commit(2, LEVELS, {("alice", n): {"n": n, "raw": b"hello"} for n in range(-2, 3)} | {("bob", 0): [1.5, None]})
    world.commit(3, NUMBERS, {(n,): n * n for n in range(150)})
    for task in world.tasks.values():
        task.now = Now(wall=1_700, event=1_600)
    return world


@pytest.fixture(scope="module")
def rest(world: World) -> Iterator[httpx2.Client]:
    with serve(create_app(world.reader, lambda: STATE), port=0) as server:
        with httpx2.Client(base_url=server.url, timeout=20) as client:
            yield client


def _problem(response: httpx2.Response, status: int, error: str) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["error"]) == (status, error), body
    assert response.headers["content-type"] == "application/json"
    assert body["message"]
    assert body["what_to_do"]
    return body


def test_a_row_is_an_object_of_its_columns(rest: httpx2.Client, world: World) -> None:
    response = rest.get("/v1/stores/scores/keys/alice")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "store": "scores",
        "key": "alice",
        "value": {"points": 12, "best": "NaN", "money": "3.50", "day": "2026-01-31"},
        "version": 3,
        "committed": 1_700,
        "event_time": 1_600,
        "task": str(world.task_of(SCORES, ("alice",))),
        "role": "active",
        "instance": "game-0",
    }


def test_a_key_may_have_any_characters(rest: httpx2.Client) -> None:
    body = rest.get("/v1/stores/scores/keys/" + quote("bob/ü ?", safe="")).json()
    assert body["key"] == "bob/ü ?"
    assert body["value"] == {"points": None, "best": "-Infinity", "money": None, "day": None}
    assert rest.get("/v1/stores/scores/keys/bob/%C3%BC%20%3F").json() == body
    assert rest.get("/v1/stores/scores/keys/").json()["key"] == ""


def test_a_key_of_several_components_is_an_array(rest: httpx2.Client) -> None:
    body = rest.get("/v1/stores/levels/keys/" + quote('["alice", -2]')).json()
    assert (body["key"], body["value"]) == (["alice", -2], {"n": -2, "raw": "aGVsbG8="})


def test_a_missing_key_is_404_with_the_version(rest: httpx2.Client) -> None:
    body = _problem(rest.get("/v1/stores/scores/keys/carol"), 404, "key_not_found")
    assert body["version"] == 3
    assert body["key"] == "carol"
    assert body["message"] == "Store 'scores' has no key 'carol' at version 3."
    assert body["what_to_do"].endswith("/v1/stores/scores/range?limit=10")
    there = rest.get("/v1/stores/scores/keys/alice").json()
    source = ("version", "committed", "event_time", "role", "instance")
    assert {name: body[name] for name in source} == {name: there[name] for name in source}


@pytest.mark.parametrize("path", ["/v1/stores/scroes/keys/a", "/v1/stores/scroes/range"])
def test_an_unknown_store_is_404_with_the_existing_ones(rest: httpx2.Client, path: str) -> None:
    body = _problem(rest.get(path), 404, "unknown_store")
    assert body["stores"] == ["levels", "numbers", "scores"]
    assert "levels, numbers, scores" in body["message"]


@pytest.mark.parametrize("path", ["keys/seven", "range?from=seven", "range?to=7.5", "keys/9223372036854775808"])
def test_a_key_of_another_type_is_400_with_schema_and_example(rest: httpx2.Client, path: str) -> None:
    body = _problem(rest.get(f"/v1/stores/numbers/{path}"), 400, "bad_key")
    assert (body["schema"], body["example"]) == ("n bigint", "42")
    assert "n bigint" in body["message"]
    assert "42" in body["what_to_do"]
    assert rest.get("/v1/stores/numbers/keys/" + body["example"]).status_code == 200


@pytest.mark.parametrize("path", ["keys/%FF", "keys/a%00%C3"])
def test_a_key_that_is_not_utf_8_is_refused(rest: httpx2.Client, path: str) -> None:
    _problem(rest.get(f"/v1/stores/scores/{path}"), 400, "bad_key")


def test_a_range_is_in_key_order_and_includes_both_ends(rest: httpx2.Client) -> None:
    body = rest.get("/v1/stores/numbers/range?from=140&to=143").json()
    assert body == {
        "store": "numbers",
        "version": 3,
        "committed": 1_700,
        "event_time": 1_600,
        "consistent": True,
        "role": "active",
        "instances": ["game-0"],
        "entries": [{"key": n, "value": n * n} for n in range(140, 144)],
        "cursor": None,
    }


def test_a_range_without_bounds_has_100_entries_and_a_cursor(rest: httpx2.Client) -> None:
    first = rest.get("/v1/stores/numbers/range").json()
    assert [entry["key"] for entry in first["entries"]] == list(range(100))
    second = rest.get("/v1/stores/numbers/range", params={"cursor": first["cursor"]}).json()
    assert [entry["key"] for entry in second["entries"]] == list(range(100, 150))
    assert (second["cursor"], second["moved_on"]) == (None, False)


def test_the_first_components_of_a_key_can_bound_a_range(rest: httpx2.Client) -> None:
    body = rest.get("/v1/stores/levels/range", params={"from": '["alice"]', "to": '["alice"]'}).json()
    assert [entry["key"] for entry in body["entries"]] == [["alice", n] for n in range(-2, 3)]
    body = rest.get("/v1/stores/levels/range", params={"from": '["alice", 2]'}).json()
    assert [entry["key"] for entry in body["entries"]] == [["alice", 2], ["bob", 0]]


def test_a_range_whose_end_is_before_its_start_is_empty(rest: httpx2.Client) -> None:
    body = rest.get("/v1/stores/numbers/range?from=9&to=3").json()
    assert (body["entries"], body["cursor"]) == ([], None)


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "many", "", "1e3", "٣"])
def test_an_invalid_limit_is_refused(rest: httpx2.Client, limit: str) -> None:
    body = _problem(rest.get("/v1/stores/numbers/range", params={"limit": limit}), 400, "bad_limit")
    assert "1 to 10000" in body["what_to_do"]


def test_a_cursor_is_valid_for_its_own_range_only(rest: httpx2.Client) -> None:
    cursor = rest.get("/v1/stores/numbers/range?from=5&to=90&limit=2").json()["cursor"]
    same = rest.get("/v1/stores/numbers/range", params={"from": "5", "to": "90", "limit": "3", "cursor": cursor})
    assert [entry["key"] for entry in same.json()["entries"]] == [7, 8, 9]
    for params in ({"from": "6"}, {"to": "91"}):
        _problem(rest.get("/v1/stores/numbers/range", params={**params, "cursor": cursor}), 400, "bad_cursor")
    _problem(rest.get("/v1/stores/levels/range", params={"cursor": cursor}), 400, "bad_cursor")
    _problem(rest.get("/v1/stores/numbers/range", params={"cursor": cursor[:-3]}), 400, "bad_cursor")
    _problem(rest.get("/v1/stores/numbers/range", params={"cursor": ""}), 400, "bad_cursor")


@pytest.mark.parametrize("query", ["form=1", "from=1&from=2", "from=%FF", "limit=1&x"])
def test_an_unknown_parameter_is_refused(rest: httpx2.Client, query: str) -> None:
    body = _problem(rest.get(f"/v1/stores/numbers/range?{query}"), 400, "bad_parameter")
    assert "from, to, prefix, reverse, limit, cursor" in body["what_to_do"] or "twice" in body["message"]
    assert ("Percent-encode" in body["what_to_do"]) == ("%" in query)


def test_the_list_of_stores(rest: httpx2.Client) -> None:
    body = rest.get("/v1/stores").json()
    assert body["version"] == 7
    assert [store["store"] for store in body["stores"]] == ["levels", "numbers", "scores"]
    assert body["stores"][2] == {
        "store": "scores",
        "kind": "key-value",
        "key": "player string",
        "example_key": "alice",
        "value": "points bigint, best double, money decimal(10,2), day date",
        "codec": "rows/1",
        "engine": "memory",
        "partitions": 3,
    }


def test_one_store_is_described_as_in_the_list(rest: httpx2.Client) -> None:
    listed = rest.get("/v1/stores").json()["stores"]
    assert rest.get("/v1/stores/scores").json() == {"version": 7, "store": listed[2]}
    assert _problem(rest.get("/v1/stores/score"), 404, "unknown_store")["stores"] == ["levels", "numbers", "scores"]


def test_the_state(rest: httpx2.Client) -> None:
    assert rest.get("/v1/state").json() == {
        "app": "game",
        "instance": "game-0",
        "state": "running",
        "version": 7,
        "committed": 8,
        "ready": True,
        "tasks": [{"task": "0_0", "phase": "running", "version": 7, "ready": True, "error": None}],
        "cause": None,
        "driver_metrics": None,
    }


@pytest.mark.parametrize("path", ["/v", "/v1", "/v1/stores/", "/v2/stores", "/v1/stores/a/b"])
def test_an_unknown_path_is_404_with_the_page_of_all_and_a_few_similar_ones(rest: httpx2.Client, path: str) -> None:
    what = _problem(rest.get(path), 404, "no_such_path")["what_to_do"]
    assert what.startswith("/v1/docs shows all paths") and len(what) < 400
    if path.startswith("/v1/stores/"):
        assert "Similar ones are /v1/stores" in what


@pytest.mark.parametrize("query", ["windows", "sessions"])
def test_windows_of_an_app_without_any_are_refused_with_the_paths_of_the_store(rest: httpx2.Client, query: str) -> None:
    for path in (f"/v1/stores/scores/{query}", f"/v1/stores/scores/{query}/alice"):
        what = _problem(rest.get(path), 400, "wrong_kind")["what_to_do"]
        assert "/v1/stores/scores/keys/{key}" in what
    assert f"/v1/stores/{{store}}/{query}" not in rest.get("/v1/openapi.json").json()["paths"]


def test_a_missing_key_before_the_first_version_says_so() -> None:
    with serve(create_app(World().reader, lambda: STATE), port=0) as server:
        response = httpx2.get(f"{server.url}/v1/stores/scores/keys/alice", timeout=20)
        assert "No batch is committed yet" in _problem(response, 404, "key_not_found")["what_to_do"]


def test_stores_cannot_be_written_over_rest(rest: httpx2.Client) -> None:
    response = rest.put("/v1/stores/scores/keys/alice", content=b"{}")
    _problem(response, 405, "method_not_allowed")
    assert "GET" in response.headers["allow"]
    assert rest.head("/v1/stores/scores/keys/alice").status_code == 200


def test_a_cursor_continues_at_a_newer_version_and_says_so() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(10)})
    with served(world.reader) as client:
        first = client.get("/numbers/range?limit=4").json()
        world.commit(2, NUMBERS, {(3,): None, (5,): None, (7,): -7})
        params = {"limit": 2, "cursor": first["cursor"]}
        second = client.get("/numbers/range", params=params).json()
        assert [entry["value"] for entry in second["entries"]] == [4, 5]
        assert (second["version"], second["moved_on"]) == (1, False)
        for version in range(3, 9):
            world.commit(version, NUMBERS, {})
        moved = client.get("/numbers/range", params={"cursor": second["cursor"]}).json()
        assert [entry["value"] for entry in moved["entries"]] == [6, -7, 8, 9]
        assert (moved["version"], moved["moved_on"]) == (8, True)


@pytest.mark.parametrize(
    ("given", "version"),
    [
        ({}, 1),
        ({"at": "latest"}, 1),
        ({"at_least": "1"}, 1),
        ({"max_lag": "2"}, 1),
        ({"at_least": "2"}, 3),
        ({"max_lag": "1"}, 3),
        ({"at": "2"}, 2),
    ],
)
def test_a_cursor_is_read_at_its_version_if_the_request_allows_it(given: dict[str, str], version: int) -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): 1 for n in range(10)})
    with served(world.reader) as client:
        cursor = client.get("/numbers/range?limit=4").json()["cursor"]
        for later in (2, 3):
            world.commit(later, NUMBERS, {(n,): later for n in range(10)})
        page = client.get("/numbers/range", params={**given, "cursor": cursor}).json()
    assert ({entry["value"] for entry in page["entries"]}, page["version"]) == ({version}, version)
    assert page["moved_on"] is (version != 1)


def test_a_cursor_leaves_the_active_replica_required() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): 1 for n in range(10)})
    asked: list[bool] = []

    def find(task: TaskId, needs: ReadNeeds = ANY_REPLICA, /) -> FakeTask | None:
        asked.append(needs.active)
        return world.find(task)

    with served(StoreReader(world.log, find, world.clock)) as client:
        cursor = client.get("/numbers/range?limit=4").json()["cursor"]
        asked.clear()
        assert client.get("/numbers/range", params={"require": "active", "cursor": cursor}).json()["version"] == 1
    assert set(asked) == {True}


def test_a_task_that_is_not_ready_is_503_with_retry_after() -> None:
    world = World()
    for task in world.tasks.values():
        task.error = NotReady("task 1_1 restores: version 3 of 9.")
    with served(world.reader) as client:
        for path in ("keys/7", "range"):
            response = client.get(f"/numbers/{path}")
            assert "version 3 of 9" in _problem(response, 503, "not_ready")["message"]
            assert response.headers["retry-after"] == "1"


def test_a_task_that_moves_away_during_a_lookup_is_read_elsewhere_on_a_thread() -> None:
    """Another instance may take seconds to answer, and the event loop must answer others meanwhile."""
    world = World()
    world.commit(1, NUMBERS, {(7,): 49})
    id = world.task_of(NUMBERS, (7,))
    threads: list[str] = []

    class Here(FakeTask):
        def get(self, *_: object) -> KeyRead:
            world.tasks[id] = elsewhere
            raise Restoring(id, "", 0, 1)

    class Elsewhere(FakeTask):
        def get(
            self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA
        ) -> KeyRead:
            threads.append(threading.current_thread().name)
            return super().get(store, key, version, needs)

    elsewhere = Elsewhere(id, local=False)
    elsewhere.versions = world.tasks[id].versions
    world.tasks[id] = Here(id)
    with served(world.reader) as client:
        assert client.get("/numbers/keys/7?fields=any").json()["value"] == 49
    assert threads and "holdfast-rest" not in threads, "that is the name of the event loop's thread"


def test_an_unreadable_value_is_named_and_the_others_are_shown() -> None:
    world = World()
    world.commit(1, NUMBERS, {(1,): 1, (2,): 2, (3,): 3})
    task = world.tasks[world.task_of(NUMBERS, (2,))]
    cells = task.versions[1]["numbers"]
    damaged = next(key for key in cells if key[-1] == 2)
    cells[damaged] = cells[damaged][:-1]
    with served(world.reader) as client:
        body = _problem(client.get("/numbers/keys/2"), 500, "damaged_data")
        assert "Stop the app" in body["what_to_do"]
        assert "'2' in store 'numbers'" in body["message"]
        entries = client.get("/numbers/range").json()["entries"]
        assert [entry["value"] for entry in entries] == [1, None, 3]
        assert "can't be read" in entries[1]["error"]


def test_an_internal_error_is_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> AppStateInfo:
        raise RuntimeError("secret insides")

    with serve(create_app(World().reader, broken), port=0) as server:
        response = httpx2.get(server.url + "/v1/state")
    _problem(response, 500, "internal")
    assert "secret" not in response.text
    assert "secret insides" in caplog.text


def test_requests_are_counted_by_path_and_status(rest: httpx2.Client) -> None:
    labels = {"path": "/v1/stores/{store}/keys/{key}", "status": "404"}
    before = metrics.value("holdfast_rest_requests_total", **labels)
    rest.get("/v1/stores/scores/keys/nobody")
    assert metrics.value("holdfast_rest_requests_total", **labels) == before + 1


@pytest.mark.parametrize(
    "path", ["/v1%2Fstores/scores/keys/a", "/v1/stores/scores%2Fkeys%2Fa", "/v1/stores/scores%2Fkeys/x/y"]
)
def test_an_encoded_slash_before_the_key_is_refused(rest: httpx2.Client, path: str) -> None:
    _problem(rest.get(path), 400, "bad_request")


def test_json_that_is_nested_deeply_is_refused(rest: httpx2.Client) -> None:
    _problem(rest.post("/v1/stores/scores/keys", content="[" * 100_000), 400, "bad_body")
    assert rest.get(f"/v1/stores/levels/keys/{'[' * 10_000}").status_code == 400
