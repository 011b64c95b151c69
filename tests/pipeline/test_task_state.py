"""A task's state at v-1: empty before the first version, later read from a replica."""

import time
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from holdfast.instance.messages import InstanceUnavailable
from holdfast.instance.unanswering import Unanswering
from holdfast.pipeline import remote_state
from holdfast.pipeline.remote_state import StateLocations, state_before
from holdfast.pipeline.task_state import NO_ENTRIES
from holdfast.settings.sections import RetrySettings
from holdfast.stores.ranges import Ranges
from holdfast.words import TaskId, Version

TASK = TaskId(0, 1)
KEYS = pa.array([b"a", b"b"], pa.binary())


class Client:
    """An instance that is unreachable, or answers every read with its keys."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.reads: list[tuple[Any, ...]] = []
        self.given: list[float] = []
        self.ends: list[float] = []

    def within(self, seconds: float) -> "Client":
        self.given.append(seconds)
        self.ends.append(time.monotonic() + seconds)
        return self

    def get_many(self, *read: Any) -> pa.Array:
        self.reads.append(read)
        if self.address == "unreachable":
            raise InstanceUnavailable("no answer")
        return read[-1]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> dict[str, Client]:
    found = {address: Client(address) for address in ("unreachable", "reachable")}
    monkeypatch.setattr(remote_state, "_client", lambda address, log, credentials: found[address])
    monkeypatch.setattr(remote_state, "_unanswering", Unanswering())  # what other tests did not reach
    return found


def locations(*addresses: str) -> StateLocations:
    return StateLocations(
        log_url="memory://log",
        log_id="l0g",
        app_file=1,
        log_options={},
        fsync=False,
        replicas={str(TASK): addresses},
        deadline=timedelta(seconds=0.3),
        retry=RetrySettings(),
    )


def test_before_the_first_version_the_state_is_empty(clients: dict[str, Client]) -> None:
    state = state_before(locations("reachable"), TASK, Version(1))
    assert state.store("counts").get(KEYS).to_pylist() == [None, None]
    assert state.store("counts").scan(b"", None, limit=5) == NO_ENTRIES
    assert state.scan_many("counts", Ranges.of([(b"", None)])) == NO_ENTRIES
    assert state.approximate_count("counts") == 0
    assert not clients["reachable"].reads


def test_the_next_replica_is_read_if_one_is_unreachable(clients: dict[str, Client]) -> None:
    state = state_before(locations("unreachable", "reachable"), TASK, Version(8))
    assert state.store("counts").get(KEYS) == KEYS
    assert len(clients["unreachable"].reads) == 1
    assert clients["reachable"].reads == [(TASK, "counts", Version(7), KEYS)]


def test_reads_fail_at_the_deadline(clients: dict[str, Client]) -> None:
    with pytest.raises(InstanceUnavailable):
        state_before(locations("unreachable"), TASK, Version(8)).get("counts", KEYS)
    assert len(clients["unreachable"].reads) > 1


def test_all_attempts_of_a_read_end_by_its_deadline(clients: dict[str, Client]) -> None:
    with pytest.raises(InstanceUnavailable):
        state_before(locations("unreachable"), TASK, Version(8)).get("counts", KEYS)
    ends = clients["unreachable"].ends
    assert len(ends) > 1
    assert max(ends) - min(ends) < 0.01, "every attempt may only take what is left"


def test_a_replica_that_hangs_leaves_time_for_the_next_one(clients: dict[str, Client]) -> None:
    assert state_before(locations("unreachable", "reachable"), TASK, Version(8)).get("counts", KEYS) == KEYS
    assert 0 < clients["unreachable"].given[0] <= 0.15, "the first one may only use half of 0.3 s"
    assert len(clients["reachable"].given) == 1


def test_tasks_that_read_one_other_task_begin_with_different_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {address: Client(address) for address in ("first", "second")}
    monkeypatch.setattr(remote_state, "_client", lambda address, log, credentials: found[address])
    for partition in range(4):
        reader = state_before(locations("first", "second"), TaskId(3, partition), Version(8))
        reader.of_task(TASK).get("rows", KEYS)
    assert [len(client.reads) for client in found.values()] == [2, 2]
    assert found["second"].reads[0][:3] == (TASK, "rows", 7)
