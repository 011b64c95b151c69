"""Endpoints of the user's own: their paths, parameters and answers, and what happens when they fail."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from jsonschema_rs import Draft202012Validator

import holdfast as hf
from holdfast import metrics
from holdfast.errors import StorageUnavailable, TopologyError
from holdfast.instance.held_versions import TooManyHolds
from holdfast.log.appfile import AppSpec, EndpointSpec, content
from holdfast.query import own_endpoints
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import ANY_REPLICA, ReadInterrupted, ReadNeeds, TaskStore
from holdfast.settings.rest import RestSettings
from holdfast.testing import records
from holdfast.topology.endpoints import OwnEndpoint, check_endpoints
from holdfast.words import TaskId, Version
from tests.instance.processes import until
from tests.query import own_functions
from tests.query.fake_tasks import APP, LEVELS, NUMBERS, SCORES, STATE, FakeHold, FakeTask, Files, World
from tests.query.instances import serving

FUNCTIONS: list[OwnEndpoint] = [
    own_functions.player,
    own_functions.players,
    own_functions.both,
    own_functions.wrong,
    own_functions.typed,
    own_functions.career,
    own_functions.careers,
    own_functions.odd,
    own_functions.counts,
]
SPECS = tuple(EndpointSpec(each.path, each.place, tuple(each.reads)) for each in FUNCTIONS)
GONE = EndpointSpec("/api/state/gone", "nowhere.at.all:function", ("scores",))


def world_of(app: AppSpec) -> World:
    world = World(app)
    world.commit(1, SCORES, {(name,): (n, None, None, None, 1) for n, name in enumerate(("ann", "bob", "cleo"))})
    world.commit(2, LEVELS, {("ann", n): {"n": n} for n in range(3)} | {("bob", 7): None})
    world.commit(3, NUMBERS, {(n,): 100 - n for n in range(50)})
    return world


@pytest.fixture
def world() -> World:
    return world_of(msgspec.structs.replace(APP, endpoints=(*SPECS, GONE)))


@pytest.fixture
def client(world: World) -> Iterator[httpx2.Client]:
    app = create_app(world.reader, lambda: STATE, settings=RestSettings(timeout="2s"))
    with serve(app, port=0) as server, httpx2.Client(base_url=server.url + "/api/state", timeout=20) as client:
        yield client


def problem(answer: httpx2.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["message"] and body["what_to_do"]
    assert "Traceback" not in answer.text
    return answer.status_code, body["error"]


def test_a_function_answers_its_path_from_a_store(client: httpx2.Client) -> None:
    answer = client.get("/players/bob")
    assert answer.json() == {"name": "bob", "points": 1, "best": None, "money": None, "day": None}, "no hidden column"
    assert (answer.headers["holdfast-version"], answer.headers["holdfast-consistent"]) == ("3", "true")
    assert (answer.headers["holdfast-role"], answer.headers["holdfast-instances"]) == ("active", "game-0")
    assert (answer.headers["holdfast-committed"], "holdfast-event-time" in answer.headers) == ("0", False)
    nobody = client.get("/players/nobody")
    assert problem(nobody) == (404, "not_found")
    assert nobody.json()["message"] == "The endpoint /api/state/players/{name} has found nothing for name='nobody'."
    assert (nobody.headers["holdfast-version"], nobody.headers["holdfast-role"]) == ("3", "active")
    assert problem(client.post("/players/bob")) == (405, "method_not_allowed")
    assert problem(client.get("/players")) == (404, "no_such_path")
    assert problem(client.get("/players/bob/more")) == (404, "no_such_path")
    assert "/api/state/players/{name}" in client.get("/player/bob").json()["what_to_do"]


def test_their_times_are_measured_by_where_they_were_answered(client: httpx2.Client, world: World) -> None:
    path = "/api/state/players/{name}"

    def counted(answered: str) -> float:
        return metrics.value("holdfast_rest_request_seconds_count", path=path, answered=answered)

    before = {kind: counted(kind) for kind in ("scattered", "other")}
    found = metrics.value("holdfast_rest_requests_total", path=path, status="200")
    client.get("/players/bob")
    assert counted("scattered") == before["scattered"] + 1
    assert metrics.value("holdfast_rest_requests_total", path=path, status="200") == found + 1
    client.get("/players/bob?no=such")
    assert counted("other") == before["other"] + 1


def test_fixed_parts_come_before_parameters_and_ranges_are_in_order(client: httpx2.Client) -> None:
    assert client.get("/players/all").json() == [["ann", 0], ["bob", 1], ["cleo", 2]]
    assert [key for key, _ in client.get("/players/all?limit=5").json()] == ["ann", "bob", "cleo"]


def test_several_stores_and_typed_parameters(client: httpx2.Client) -> None:
    answer = client.get("/both/ann/2?day=2026-01-31").json()
    assert answer == {
        "points": {"points": 0, "best": None, "money": None, "day": None},
        "level": {"n": 2},
        "many": [["ann", 2, {"n": 2}]],
        "known": True,
        "prefix": [[["ann", n], {"n": n}] for n in range(3)],
        "backwards": [["ann", 2], ["ann", 1], ["ann", 0]],
        "count": 3,
        "day": "2026-01-31",
        "version": 3,
    }
    assert client.get("/both/ann/2").json()["day"] is None
    assert client.get("/both/nobody/9").json()["level"] is None


def test_a_whole_store_is_counted_and_iterated_over_all_partitions(client: httpx2.Client, world: World) -> None:
    levels = world.reader.tasks_of("levels")
    cells = [world.tasks[task].versions[3]["levels"] for task in levels]
    for task, moved in zip(levels, [*cells[1:], cells[0]], strict=True):  # a processor may write a key in any task
        world.tasks[task].versions[3]["levels"] = moved
    answer = client.get("/counts").json()
    partitions = answer.pop("partitions")
    assert answer == {
        "name": "numbers",
        "count": 50,
        "about": 50,
        "keys": [*range(50)],
        "values": [100 - n for n in range(50)],
        "default": [{"n": 2}, "none", 7],
    }
    assert (len(partitions), sum(partitions), max(partitions) < 50) == (3, 50, True)


def test_values_of_a_declared_store_are_of_its_type(client: httpx2.Client) -> None:
    assert client.get("/typed/ann").json() == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("/both/ann/two", "level='two' is not a bigint."),
        ("/both/ann/2?day=tomorrow", "day='tomorrow' is not a date."),
        ("/both/ann/2?dya=2026-01-31", "There is no parameter 'dya' here."),
        ("/both/ann/2?day=2026-01-31&day=2026-01-31", "A parameter is given twice."),
        ("/players/all?limit=", "limit='' is not a bigint."),
        ("/players/bob?x=%FF", "The query string is not percent-encoded UTF-8."),
    ],
)
def test_what_is_not_of_its_type_is_refused(path: str, fact: str, client: httpx2.Client) -> None:
    answer = client.get(path)
    assert problem(answer) == (400, "bad_parameter")
    assert answer.json()["message"] == fact


def test_a_part_may_have_any_characters(client: httpx2.Client) -> None:
    assert client.get("/wrong/a%2Fb").json() == {"what": "a/b"}
    assert client.get("/wrong/%F0%9F%98%80%00%0A").json() == {"what": "😀\x00\n"}


@pytest.mark.parametrize(
    ("what", "raised"),
    [
        ("raises", "RuntimeError: too bad"),
        ("file", "FileNotFoundError: [Errno 2] No such file or directory: '/etc/holdfast/none'"),
        ("exits", "SystemExit: closed"),
        ("interrupts", "KeyboardInterrupt: stopped"),
        ("closes", "GeneratorExit: left"),
        ("cancels", "CancelledError: given up"),
        ("object", "TypeError: Encoding objects of type object is unsupported"),
        ("half", "UnicodeEncodeError"),
        ("endless", "ValueError: it has more than 10,000 items"),
        ("other", "KeyError"),
        ("writes", "AttributeError: the view of store 'numbers' has no 'put'"),
    ],
)
def test_an_error_of_the_users_code_is_answered_as_such(
    what: str, raised: str, client: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get(f"/wrong/{what}")
    assert problem(answer) == (500, "endpoint_failed")
    kind, _, text = raised.partition(": ")
    body = answer.json()
    assert body["message"] == f"The endpoint /api/state/wrong/{{what}} raised {kind}."
    assert body["what_to_do"] == f"The instance's log has its text and its trace, by the id {body['id']}."
    assert not text or text not in answer.text, "it may name anything"
    assert "own_functions" not in answer.text
    assert f"GET /api/state/wrong/{what} failed ({body['id']})" in caplog.text
    assert any(record.exc_info for record in caplog.records) and raised in caplog.text, "the trace is in the log"
    assert "Fix tests.query.own_functions:wrong." in caplog.text


def test_values_that_json_does_not_have_are_written_as_elsewhere(client: httpx2.Client) -> None:
    assert client.get("/wrong/floats").json() == ["NaN", "aGVsbG8=", "2026-01-31"]


def test_a_key_of_another_type_and_a_store_that_restores_are_no_errors_of_the_code(
    client: httpx2.Client, world: World
) -> None:
    assert problem(client.get("/wrong/key")) == (400, "bad_key")
    next(iter(world.tasks.values())).error = StorageUnavailable("task 0_0 restores.")
    assert problem(client.get("/players/bob")) == (503, "not_ready")


class Interrupted(FakeTask):
    """A task whose instance goes away in the middle of its first read."""

    reads = 0

    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        with super().at(store, version, needs) as found:
            yield found
            self.reads += 1
            if self.reads == 1:
                raise ReadInterrupted("the instance has gone away.")


def test_a_function_starts_over_if_an_instance_goes_away_while_it_reads(client: httpx2.Client, world: World) -> None:
    id = world.task_of(SCORES, ("bob",))
    task = Interrupted(id)
    task.versions = world.tasks[id].versions
    world.tasks[id] = task
    assert client.get("/players/bob").json()["points"] == 1
    assert task.reads == 2


def test_other_instances_hold_the_version_while_a_function_reads(
    client: httpx2.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[TaskId] = []
    hold = FakeTask._hold

    def noted(self: FakeTask, version: Version) -> FakeHold:
        held.append(self.task)
        return hold(self, version)

    monkeypatch.setattr(FakeTask, "_hold", noted)
    for partition in (1, 2):
        world.tasks[TaskId(0, partition)].local = False
    assert client.get("/players/ann").status_code == 200
    assert sorted(held) == [TaskId(0, 1), TaskId(0, 2)]
    assert [task.holds for task in world.tasks.values()] == [0] * len(world.tasks)


def test_a_function_reads_although_no_more_versions_can_be_held(
    client: httpx2.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeTask, version: Version) -> FakeHold:
        raise TooManyHolds("64 versions are held")

    monkeypatch.setattr(FakeTask, "_hold", refuse)
    world.tasks[TaskId(0, 1)].local = False
    assert client.get("/players/ann").status_code == 200


def test_a_function_that_is_not_here_says_what_to_install(client: httpx2.Client) -> None:
    answer = client.get("/gone")
    assert problem(answer) == (500, "endpoint_not_found")
    assert "Make the module nowhere.at.all importable" in answer.json()["what_to_do"]


def test_code_that_takes_too_long_ends_where_it_reads(client: httpx2.Client) -> None:
    own_functions.REACHED.clear()
    assert problem(client.get("/wrong/scans")) == (503, "timed_out")
    assert own_functions.REACHED.is_set()


def test_code_that_hangs_takes_no_thread_from_others(client: httpx2.Client) -> None:
    own_functions.HELD.clear()
    own_functions.REACHED.clear()
    connections = []
    try:
        for _ in range(12):  # more than there are threads for endpoints
            connections.append(socket.create_connection((client.base_url.host, client.base_url.port or 0)))
            connections[-1].sendall(b"GET /api/state/wrong/hangs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(own_functions.REACHED.is_set, "they hang")
        found = httpx2.get(str(client.base_url.join("/v1/stores/numbers/range?limit=3")))
        assert (found.status_code, len(found.json()["entries"])) == (200, 3)
    finally:
        own_functions.HELD.set()
        for connection in connections:
            connection.close()


def test_their_threads_end_with_rest(tmp_path: Path) -> None:
    app = msgspec.structs.replace(APP, endpoints=SPECS)
    with serving(tmp_path, app, RestSettings(port=0)) as (_, instance, service):
        until(lambda: all(each.caught_up for each in instance.hosted()), "it is ready")
        before = {*threading.enumerate()}
        assert httpx2.get(f"{service.url}/api/state/players/ann", timeout=30).status_code == 404
        own = [each for each in threading.enumerate() if each not in before and "endpoints" in each.name]
        assert own
        service.stop()
        until(lambda: not any(each.is_alive() for each in own), "they have ended")


def test_tokens_need_the_scopes_of_the_stores_that_an_endpoint_reads(world: World) -> None:
    tokens = {"one": "read:scores", "two": "read:scores,read:levels", "all": "read:*", "admin": "admin"}
    text = "\n".join(f"{name} {name}-0123456789abcdef {scopes}" for name, scopes in tokens.items())
    app = create_app(world.reader, lambda: STATE, settings=RestSettings(tokens=text))
    with serve(app, port=0) as server, httpx2.Client(base_url=server.url + "/api/state") as client:

        def statuses(path: str) -> list[int]:
            headers = [{"Authorization": f"Bearer {name}-0123456789abcdef"} for name in tokens]
            return [client.get(path, headers=each).status_code for each in ({}, *headers)]

        assert statuses("/players/bob") == [401, 200, 200, 200, 403]
        assert statuses("/both/ann/2") == [401, 403, 200, 200, 403]
        assert statuses("/wrong/a%2Fb") == [401, 403, 403, 200, 403]
        assert statuses("/no/such") == [401, 403, 403, 403, 403]


def test_endpoints_follow_a_newer_app_file(world: World) -> None:
    files = world.reader._log
    assert isinstance(files, Files)
    files.app = msgspec.structs.replace(files.app, endpoints=SPECS[:1])
    app = create_app(world.reader, lambda: STATE)
    with serve(app, port=0) as server, httpx2.Client(base_url=server.url + "/api/state") as client:
        assert [client.get(path).status_code for path in ("/players/bob", "/players/all")] == [200, 404]
        files.app = msgspec.structs.replace(files.app, endpoints=SPECS[1:2])
        until(lambda: client.get("/players/all").status_code == 200, "the added one is there")
        until(lambda: client.get("/players/bob").status_code == 404, "the removed one is gone")


def test_a_table_of_endpoints_that_cannot_be_made_leaves_the_former_one(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = world.reader._log
    assert isinstance(files, Files)
    files.app = msgspec.structs.replace(files.app, endpoints=SPECS[:1])
    app = create_app(world.reader, lambda: STATE)

    def fails(path: str) -> tuple[str | None, ...]:
        raise RuntimeError("nobody expects this")

    with serve(app, port=0) as server, httpx2.Client(base_url=server.url + "/api/state") as client:
        with monkeypatch.context() as patched:
            patched.setattr(own_endpoints, "parts_of", fails)
            files.app = msgspec.structs.replace(files.app, endpoints=SPECS[:2])
            statuses = [client.get(path).status_code for path in ("/no/such", "/players/bob", "/no/such")]
            assert statuses == [404, 200, 404]
        assert "nobody expects this" in caplog.text
        assert client.get("/players/all").status_code == 404, "it isn't tried again for the same file"
        files.app = msgspec.structs.replace(files.app, endpoints=SPECS[:2])
        until(lambda: client.get("/players/all").status_code == 200, "the next file is tried")


def test_the_openapi_document_has_only_endpoints_that_the_token_may_ask(world: World) -> None:
    text = "one one-0123456789abcdef read:scores\nall all-0123456789abcdef read:*"
    app = create_app(world.reader, lambda: STATE, settings=RestSettings(tokens=text))
    with serve(app, port=0) as server:

        def own(name: str) -> set[str]:
            headers = {"Authorization": f"Bearer {name}-0123456789abcdef"}
            paths = httpx2.get(f"{server.url}/v1/openapi.json", headers=headers).json()["paths"]
            return {path for path in paths if path.startswith("/api")}

        assert own("one") == {"/api/state/players/{name}", "/api/state/players/all"}
        assert own("all") == {each.path for each in FUNCTIONS}


def test_endpoints_are_in_the_openapi_document(world: World) -> None:
    app = create_app(world.reader, lambda: STATE)
    with serve(app, port=0) as server:
        paths = httpx2.get(f"{server.url}/v1/openapi.json").json()["paths"]
    assert paths["/api/state/players/{name}"]["get"]["summary"] == "The points of a player."
    both = paths["/api/state/both/{name}/{level}"]["get"]
    name, level, day = both["parameters"]
    assert (name["in"], name["schema"]) == ("path", {"type": "string"})
    assert level["schema"] == {"type": "integer"}
    assert (day["in"], day["required"]) == ("query", False)
    assert day["schema"] == {"type": "string", "format": "date"}
    [limit] = paths["/api/state/players/all"]["get"]["parameters"]
    assert limit["schema"] == {"type": "integer", "default": 3}
    assert both["responses"]["200"]["content"]["application/json"]["schema"]["type"] == "object"
    assert {"400", "401", "403", "404", "429", "500", "503"} <= {*both["responses"]}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/typed/{name}", "/typed/ann"),
        ("/careers/{name}", "/careers/ann"),
        ("/careers", "/careers"),
        ("/players/{name}", "/players/ann"),
        ("/odd", "/odd"),
    ],
)
def test_answers_are_as_the_document_says(client: httpx2.Client, template: str, path: str) -> None:
    document = client.get("/../../v1/openapi.json").json()
    described = document["paths"]["/api/state" + template]["get"]["responses"]["200"]["content"]["application/json"]
    validator = Draft202012Validator({**described["schema"], "components": document["components"]})
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    validator.validate(answer.json())
    if template not in ("/odd", "/players/{name}"):  # any object is one of these
        assert not validator.is_valid({"something": "else"})


def test_classes_in_the_types_of_answers_are_components(client: httpx2.Client) -> None:
    document = client.get("/../../v1/openapi.json").json()
    components = document["components"]["schemas"]
    assert components["own.Career"]["properties"]["by_level"] == {
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/own.Entry"},
    }
    assert components["own.Entry"]["properties"]["level"] == {"$ref": "#/components/schemas/own.Level"}
    assert "found" in components["Entry"]["properties"], "Holdfast's own is another one"
    assert document["paths"]["/api/state/careers"]["get"]["responses"]["200"]["content"]["application/json"] == {
        "schema": {"type": "array", "items": {"$ref": "#/components/schemas/own.Career"}}
    }


def fine(stores: hf.StoreViews, id: str) -> None: ...


def untyped(stores: hf.StoreViews, id) -> None: ...  # type: ignore[no-untyped-def]


def listed(stores: hf.StoreViews, id: list[str]) -> None: ...


def spread(stores: hf.StoreViews, id: str, *others: str) -> None: ...


def defaulted(stores: hf.StoreViews, id: str = "a") -> None: ...


def without(stores: hf.StoreViews) -> None: ...


@pytest.mark.parametrize(
    ("path", "function", "fact"),
    [
        ("api/{id}", fine, "a path is /part/part"),
        ("/api/{id", fine, "a path is /part/part"),
        ("/api/{id}/", fine, "a path is /part/part"),
        ("/api/{id:path}", fine, "a path is /part/part"),
        ("/api/%61/{id}", fine, "a path is /part/part"),
        ("/v1/users/{id}", fine, "/v1 is Holdfast's own"),
        ("/v2/users/{id}", fine, "/v2 is Holdfast's own"),
        ("/health/{id}", fine, "/health is Holdfast's own"),
        ("/metrics/{id}", fine, "/metrics is Holdfast's own"),
        ("/{id}/users", fine, "or no prefix"),
        ("/api", without, "or no prefix"),
        ("/api/{id}/{id}", fine, "twice"),
        ("/api/{id}", without, "the function has no parameter 'id'"),
        ("/api/{id}", untyped, "the parameter 'id' needs a type of these: str, int"),
        ("/api/{id}", listed, "the parameter 'id' needs a type of these: str, int"),
        ("/api/{id}", spread, "the parameter 'others' has no name of its own"),
        ("/api/{id}", defaulted, "Remove its default"),
        ("/api/{id}", lambda stores, id: None, "the parameter 'id' needs a type"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(path: str, function: Callable[..., Any], fact: str) -> None:
    with pytest.raises(TopologyError, match=fact):
        hf.endpoint(path, reads="scores")(function)


def test_a_function_that_instances_cannot_import_is_refused() -> None:
    def inner(stores: hf.StoreViews, id: str) -> None: ...

    with pytest.raises(TopologyError, match="within a function, where instances can't import it"):
        check_endpoints([hf.endpoint("/api/{id}", reads="scores")(inner)], ["scores"])
    with pytest.raises(TopologyError, match="names no store"):
        hf.endpoint("/api/{id}", reads=[])(fine)


def test_an_app_refuses_two_of_one_path_and_stores_that_it_does_not_have() -> None:
    one, other = (hf.endpoint(path, reads="scores")(fine) for path in ("/api/{id}", "/api/all"))
    check_endpoints([one, other], ["scores"])
    with pytest.raises(TopologyError, match="both answer /api/{id}"):
        check_endpoints([one, hf.endpoint("/api/{id}", reads="scores")(fine)], ["scores"])
    with pytest.raises(TopologyError, match=r"reads 'scores', and the app has no such store. It has points\."):
        check_endpoints([one], ["points"])
    app = hf.App("game")
    with pytest.raises(TopologyError, match="Decorate it with hf.endpoint"):
        app.serve(fine)  # type: ignore[arg-type]
    app.serve(one)
    app.stream(records("player string"), key="player").group_by().count().store("scores")
    assert "endpoint GET /api/{id}: tests.query.test_own_endpoints:fine reads scores" in app.describe()


def test_the_log_has_endpoints_only_where_there_are_some() -> None:
    assert b"endpoints" not in msgspec.json.encode(APP)
    with_some = msgspec.structs.replace(APP, endpoints=SPECS)
    assert msgspec.json.decode(msgspec.json.encode(with_some), type=AppSpec) == with_some
    assert content(with_some) != content(APP)


def test_the_function_can_be_called_in_a_test() -> None:
    scores = hf.DictBytes()
    store = hf.KeyValueStore("scores", value=dict[str, int]).bind(scores, hf.Now(wall=0))
    store.put("ann", {"points": 3})
    assert own_functions.player({"scores": store.read_only()}, "ann") == {"name": "ann", "points": 3}
