"""Health and metrics over a real server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx2
import pytest
from starlette.applications import Starlette

from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError, StorageUnavailable
from holdfast.observe.endpoints import endpoints
from holdfast.observe.health import LastErrors
from holdfast.query.server import serve
from holdfast.words import Millis, TaskId, Version


@dataclass(frozen=True)
class ProbeResult:
    task: TaskId
    version: Version | None
    error: HoldfastError | None = None


class Instance:
    """What an instance reports about itself, set by a test."""

    def __init__(self) -> None:
        self.clock = ManualClock(Millis(1_000))
        self.errors = LastErrors(self.clock)
        self.missing: list[str] = []
        self.broken: set[TaskId] = set()
        self.reads = 0

    def read(self, store: str) -> Sequence[ProbeResult]:
        self.reads += 1
        return [self._read(store, TaskId(0, partition)) for partition in range(2)]

    def _read(self, store: str, task: TaskId) -> ProbeResult:
        if task in self.broken:
            error = StorageUnavailable(f"task {task} restores.")
            self.errors.record(store, error)
            return ProbeResult(task, None, error)
        return ProbeResult(task, Version(7 + task.partition))


@pytest.fixture
def instance() -> Instance:
    return Instance()


@pytest.fixture
def client(instance: Instance) -> Iterator[httpx2.Client]:
    routes = endpoints(
        stores=["scores", "levels"],
        read=instance.read,
        errors=instance.errors,
        not_ready=lambda: instance.missing,
        version=lambda: Version(7),
    )
    with serve(Starlette(routes=routes), port=0) as rest, httpx2.Client(base_url=rest.url) as client:
        yield client


def test_an_instance_is_live_although_it_is_not_ready(client: httpx2.Client, instance: Instance) -> None:
    instance.missing = ["Task 0_1 restores."]
    response = client.get("/health/live")
    assert (response.status_code, response.json()) == (200, {"status": "live", "version": 7})


def test_ready_reports_what_is_missing(client: httpx2.Client, instance: Instance) -> None:
    assert client.get("/health/ready").json() == {"status": "ready", "version": 7}
    instance.missing = ["Task 0_1 restores: version 3 of 9."]
    response = client.get("/health/ready")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    body = response.json()
    assert (body["error"], body["message"]) == ("not_ready", "Task 0_1 restores: version 3 of 9.")
    assert body["what_to_do"]


def test_stores_health_reads_each_store(client: httpx2.Client, instance: Instance) -> None:
    response = client.get("/health/stores")
    assert response.status_code == 200
    assert instance.reads == 2
    assert response.json()["stores"][0] == {
        "store": "scores",
        "available": True,
        "partitions": {"all": 2, "available": 2},
        "version": 7,
        "unavailable": {},
        "last_error": None,
    }


def test_a_store_with_an_unreadable_partition_is_unavailable(client: httpx2.Client, instance: Instance) -> None:
    instance.broken = {TaskId(0, 0)}
    response = client.get("/health/stores")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    body = response.json()
    assert (body["error"], body["message"]) == ("stores_unavailable", "scores, levels can't be read in full.")
    assert body["stores"][0] == {
        "store": "scores",
        "available": False,
        "partitions": {"all": 2, "available": 1},
        "version": 8,
        "unavailable": {"0_0": "task 0_0 restores."},
        "last_error": {"message": "task 0_0 restores.", "at": 1_000},
    }


def test_the_last_error_is_shown_after_the_store_has_recovered(client: httpx2.Client, instance: Instance) -> None:
    instance.broken = {TaskId(0, 1)}
    client.get("/health/stores")
    instance.broken = set()
    instance.clock.advance(seconds=60)
    store = client.get("/health/stores").json()["stores"][0]
    assert store["available"]
    assert store["last_error"] == {"message": "task 0_1 restores.", "at": 1_000}


def test_metrics_are_in_the_accepted_format(client: httpx2.Client) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "process_resident_memory_bytes" in plain.text
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    assert client.get("/metrics", headers=accept).headers["content-type"].startswith("application/openmetrics-text")
