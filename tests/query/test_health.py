"""Health and metrics, asked of a real server."""

from collections.abc import Iterator

import httpx2
import msgspec
import pytest

from holdfast.errors import StorageUnavailable
from holdfast.query.health import AppStateInfo, TaskInfo
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.words import TaskId, Version
from tests.query.fake_tasks import NUMBERS, SCORES, World

STATE = AppStateInfo(app="game", instance="game-0", state="running", version=7, committed=9, ready=True)
LATE = TaskInfo(task="0_1", phase="restoring", version=3, ready=False, error="no disk")


class Instance:
    """A world whose stores can be read, and the state of its instance as a test sets it."""

    def __init__(self) -> None:
        self.world = World()
        self.state = STATE
        for n, task in enumerate(sorted(self.world.tasks)):
            for store in (SCORES, NUMBERS):
                self.world.tasks[task].write(7 + n % 3, store.name)

    def set_broken(self, *broken: TaskId) -> None:
        for task, fake in self.world.tasks.items():
            fake.error = StorageUnavailable(f"task {task} restores.") if task in broken else None


@pytest.fixture
def instance() -> Instance:
    return Instance()


@pytest.fixture
def client(instance: Instance) -> Iterator[httpx2.Client]:
    app = create_app(instance.world.reader, lambda: instance.state)
    with serve(app, port=0) as rest, httpx2.Client(base_url=rest.url) as client:
        yield client


def test_an_instance_is_live_although_it_is_not_ready(client: httpx2.Client, instance: Instance) -> None:
    instance.state = msgspec.structs.replace(STATE, tasks=(LATE,))
    response = client.get("/health/live")
    assert (response.status_code, response.json()) == (200, {"status": "live", "app": "game", "version": 7})


def test_ready_reports_what_is_missing(client: httpx2.Client, instance: Instance) -> None:
    assert client.get("/health/ready").json() == {"status": "ready", "app": "game", "version": 7}
    instance.state = msgspec.structs.replace(STATE, tasks=(LATE, msgspec.structs.replace(LATE, task="0_2", ready=True)))
    response = client.get("/health/ready")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    body = response.json()
    assert (body["error"], body["message"]) == ("not_ready", "Task 0_1 is restoring: version 3 of 9.")
    assert (body["version"], bool(body["what_to_do"])) == (7, True)


def test_stores_health_reads_each_store(client: httpx2.Client) -> None:
    response = client.get("/health/stores")
    assert response.status_code == 200
    assert response.json()["stores"][2] == {
        "store": "scores",
        "available": True,
        "partitions": {"all": 3, "available": 3},
        "version": 7,
        "unavailable": {},
        "last_error": None,
    }


def test_a_store_with_an_unreadable_partition_is_unavailable(client: httpx2.Client, instance: Instance) -> None:
    instance.set_broken(TaskId(0, 0))
    response = client.get("/health/stores")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    body = response.json()
    assert (body["error"], body["message"]) == ("stores_unavailable", "levels, scores can't be read in full.")
    assert body["stores"][2] == {
        "store": "scores",
        "available": False,
        "partitions": {"all": 3, "available": 2},
        "version": 8,
        "unavailable": {"0_0": "task 0_0 restores."},
        "last_error": {"message": "task 0_0 restores.", "at": 1_000},
    }


def test_the_last_error_is_shown_after_the_store_has_recovered(client: httpx2.Client, instance: Instance) -> None:
    instance.set_broken(TaskId(0, 1))
    client.get("/health/stores")
    instance.set_broken()
    instance.world.clock.advance(seconds=60)
    store = client.get("/health/stores").json()["stores"][2]
    assert store["available"]
    assert store["last_error"] == {"message": "task 0_1 restores.", "at": 1_000}


def test_what_a_client_asks_too_much_is_no_error_of_the_store(client: httpx2.Client, instance: Instance) -> None:
    for task in instance.world.tasks.values():
        for version in range(10, 16):  # more than replicas keep
            task.write(version, SCORES.name)
    instance.world.log.newest_known = Version(15)
    for path, status in [
        ("keys/alice?at=7", 410),
        ("range?at=7", 410),
        ("keys/alice?at=99&wait=0s", 503),
        ("range?at_least=99&wait=0s", 503),
        ("range?cursor=x", 400),
    ]:
        assert client.get(f"/v1/stores/scores/{path}").status_code == status, path
    assert client.get("/health/stores").json()["stores"][2]["last_error"] is None


def test_metrics_are_in_the_accepted_format(client: httpx2.Client) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "process_resident_memory_bytes" in plain.text
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    assert client.get("/metrics", headers=accept).headers["content-type"].startswith("application/openmetrics-text")
