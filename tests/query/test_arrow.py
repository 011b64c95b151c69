"""GET /v1/stores/{store}/arrow on real instances, as pyarrow, Polars and pandas read it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import polars
import pyarrow as pa
import pytest

from holdfast import metrics
from holdfast.query import client_holds
from holdfast.query.answers import VERSION_HEADER
from holdfast.query.arrow import ARROW_TYPE
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import NotReady
from holdfast.settings.rest import RestSettings
from holdfast.words import TaskId, Version
from tests.instance.processes import until
from tests.query.fake_tasks import LEVELS, NUMBERS, STATE, FakeHold, FakeTask, World
from tests.query.instances import Group, replicas_of, started
from tests.query.test_service import GAME


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with started(tmp_path, GAME) as group:
        yield group


def table_of(group: Group, path: str, at: int = 0) -> pa.Table:
    answer = group.get(path, at)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW_TYPE
    assert answer.content.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00"), "the end marker"
    return pa.ipc.open_stream(answer.content).read_all()


def held(group: Group) -> int:
    replicas = [replica for instance in group.instances for replica in replicas_of(instance)]
    return sum(len(replica.published.held._held) for replica in replicas)


def test_any_instance_streams_the_whole_store(group: Group) -> None:
    assert table_of(group, "/v1/stores/levels/arrow").schema.names == ["player", "level", "value"]
    group.driver.commit(LEVELS, {("ann", n): {"n": n} for n in range(3_000)})
    group.settle()
    for at in range(2):
        found = table_of(group, "/v1/stores/levels/arrow", at)
        assert sorted(found["level"].to_pylist()) == list(range(3_000))
        assert len(polars.from_arrow(found)) == len(found.to_pandas()) == 3_000
        headers = group.get("/v1/stores/levels/arrow", at).headers
        assert headers[VERSION_HEADER] == "1" and int(headers["holdfast-committed"]) > 0
        assert (headers["holdfast-role"], headers["holdfast-instances"]) == ("active", "game-0,game-1")
        parts = [table_of(group, f"/v1/stores/levels/arrow?partition={n}&columns=level", at) for n in range(3)]
        assert sum(map(len, parts)) == 3_000 and parts[0].schema.names == ["level"]
    assert held(group) == 0, "every hold was released"


def test_a_held_version_is_read_later_and_another_one_is_gone(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): 1 for n in range(20)})
    group.settle()
    hold = group.client.post(f"{group.rests[0].url}/v1/stores/numbers/hold?seconds=60").json()
    assert len(hold.pop("hold")) == 32
    commit = group.driver.log.commit(Version(1))
    assert commit is not None
    assert hold == {
        "store": "numbers",
        "version": 1,
        "committed": commit.clocks.wall,
        "event_time": None,
        "consistent": True,
        "role": "active",
        "instances": ["game-0", "game-1"],
        "partitions": 3,
        "seconds": 60,
    }
    for version in range(2, 9):
        group.driver.commit(NUMBERS, {(n,): version for n in range(20)})
        group.settle()
        for instance in group.instances:
            for replica in replicas_of(instance):
                replica.flush_overlay()
    for at in range(2):
        found = table_of(group, "/v1/stores/numbers/arrow?at=1", at)
        assert found["value"].to_pylist() == ["1"] * 20
        gone = group.client.get(f"{group.rests[at].url}/v1/stores/numbers/arrow?at=2")
        assert (gone.status_code, gone.json()["error"]) == (410, "version_gone")


@pytest.mark.parametrize("at", ["", "&at=1"])
def test_one_partition_is_held_alone_and_with_a_version_opened_alone(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(30)})
    number = world.app.number_of("numbers")
    chosen, holds, hold = TaskId(number, 1), list[TaskId](), FakeTask._hold

    def noted(self: FakeTask, version: Version) -> FakeHold:
        holds.append(self.task)
        return hold(self, version)

    monkeypatch.setattr(FakeTask, "_hold", noted)
    if at:
        world.tasks[TaskId(number, 0)].error = NotReady("the task is being restored.")
    with serve(create_app(world.reader, lambda: STATE), port=0) as server:
        answer = httpx2.get(f"{server.url}/v1/stores/numbers/arrow?partition=1{at}")
    found = pa.ipc.open_stream(answer.content).read_all()
    assert holds == [chosen]
    assert [world.task_of(NUMBERS, (n,)) for n in found["n"].to_pylist()] == [chosen] * len(found)


def test_a_client_releases_its_hold_and_no_other(group: Group) -> None:
    group.driver.commit(NUMBERS, {(n,): 1 for n in range(20)})
    group.settle()
    path = f"{group.rests[0].url}/v1/stores/numbers/hold"
    first, second = (group.client.post(path).json()["hold"] for _ in range(2))
    for hold, left in ((first, 3), (second, 0)):
        assert group.client.delete(f"{path}/{hold}").json() == {"hold": hold, "store": "numbers", "version": 1}
        assert held(group) == left
        again = group.client.delete(f"{path}/{hold}")
        assert (again.status_code, again.json()["error"]) == (404, "unknown_hold")
    third = group.client.post(path).json()["hold"]
    for url in (f"{group.rests[1].url}/v1/stores/numbers/hold", f"{group.rests[0].url}/v1/stores/levels/hold"):
        assert group.client.delete(f"{url}/{third}").status_code == 404
    assert held(group) == 3


def test_clients_have_only_so_many_holds_and_statements_need_none_of_them(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_holds, "MOST", 2)
    group.driver.commit(NUMBERS, {(n,): 1 for n in range(20)})
    group.settle()
    path = f"{group.rests[0].url}/v1/stores/numbers/hold"
    for seconds in (0, 60, 60):
        assert group.client.post(f"{path}?seconds={seconds}").status_code == 200
    refused = group.client.post(path)
    assert (refused.status_code, refused.json()["error"]) == (503, "too_many_holds")
    assert table_of(group, "/v1/stores/numbers/arrow").num_rows == 20


def test_one_client_leaves_holds_to_the_others(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_holds, "MOST_OF_CALLER", 2)
    group.driver.commit(NUMBERS, {(n,): 1 for n in range(20)})
    group.settle()
    path = f"{group.rests[0].url}/v1/stores/numbers/hold"
    first, _ = (group.client.post(path).json()["hold"] for _ in range(2))
    refused = group.client.post(path)
    assert (refused.status_code, refused.json()["error"]) == (429, "too_many_holds")
    assert refused.headers["retry-after"] == "1"
    with httpx2.Client(transport=httpx2.HTTPTransport(local_address="127.0.0.2")) as other:
        assert other.post(path).status_code == 200
    assert group.client.delete(f"{path}/{first}").status_code == 200
    assert group.client.post(path).status_code == 200


class SlowHolds(FakeTask):
    """A task that takes until `go_on` to hold a version."""

    def __init__(self, fake: FakeTask) -> None:
        super().__init__(fake.task)
        self.versions = fake.versions
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.held = 0

    def _hold(self, version: Version) -> FakeHold:
        self.reached.set()
        assert self.go_on.wait(30)
        found = super()._hold(version)
        self.held += 1
        return found


@pytest.mark.parametrize("leaves", [True, False])
def test_a_request_that_ends_while_a_version_is_being_held_holds_nothing(leaves: bool) -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(5)})
    id = world.task_of(NUMBERS, (3,))
    world.tasks[id] = task = SlowHolds(world.tasks[id])
    app = create_app(world.reader, lambda: STATE, settings=RestSettings(timeout="30s" if leaves else "200ms"))
    with serve(app, port=0) as server:
        if leaves:
            with socket.create_connection((server.host, server.port)) as client:
                client.sendall(b"POST /v1/stores/numbers/hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
                assert task.reached.wait(30)
        else:
            assert httpx2.post(f"{server.url}/v1/stores/numbers/hold").json()["error"] == "timed_out"
        until(lambda: metrics.value("holdfast_rest_requests_under_way") == 0, "the request has ended")
        task.go_on.set()
        until(lambda: task.held and not any(each.holds for each in world.tasks.values()), "all is released")


def test_a_whole_store_counts_as_a_stream_and_one_that_is_refused_holds_nothing() -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(5)})
    app = create_app(world.reader, lambda: STATE, settings=RestSettings(max_streams=0))
    with serve(app, port=0) as server:
        refused = httpx2.get(f"{server.url}/v1/stores/numbers/arrow")
        assert (refused.status_code, refused.json()["error"]) == (503, "overloaded")
        until(lambda: not any(task.holds for task in world.tasks.values()), "no hold")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/v1/stores/nope/arrow", 404, "unknown_store"),
        ("/v1/stores/numbers/arrow?columns=n,nope", 400, "not_as_columns"),
        ("/v1/stores/numbers/arrow?partition=3", 400, "bad_parameter"),
        ("/v1/stores/numbers/arrow?at=-1", 400, "bad_parameter"),
        ("/v1/stores/numbers/arrow?limit=3", 400, "bad_parameter"),
        ("/v1/stores/numbers/hold", 405, "method_not_allowed"),
    ],
)
def test_requests_that_are_wrong_are_refused(group: Group, path: str, status: int, error: str) -> None:
    group.settle()
    answer = group.client.get(group.rests[0].url + path)
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
