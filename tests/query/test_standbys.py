"""Queries while an instance is dead, frozen or behind: another replica of its tasks answers."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.group_instances import GroupInstances
from holdfast.instance.client import StateClient
from holdfast.instance.instance import Instance
from holdfast.instance.messages import HeldVersion, InstanceUnavailable
from holdfast.log.appfile import AppSpec
from holdfast.pipeline.remote_state import RemoteState, StateLocations
from holdfast.query.columns import ColumnReader
from holdfast.query.freshness import ANY
from holdfast.query.peer_tasks import PeerBytes
from holdfast.query.service import RestService
from holdfast.query.task_reader import ANY_REPLICA, ReadNeeds
from holdfast.query.task_readers import TaskReaders
from holdfast.settings.sections import RetrySettings
from holdfast.words import Version
from tests.apps import settings
from tests.freezing import freeze, frozen, wake
from tests.instance.processes import Process, until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import NUMBERS
from tests.query.instances import Driver, config, know_each_other, process

STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=2, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))
KEYS = range(12)


@dataclass
class Replicas:
    """An instance without tasks that answers queries, and two processes with a replica of every task each."""

    driver: Driver
    active: Process
    rest: RestService
    client: httpx2.Client
    asked: Instance

    def values(self) -> list[int]:
        """Every value, each by a lookup of its own."""
        answers = [self.client.get(f"{self.rest.url}/v1/stores/numbers/keys/{n}") for n in KEYS]
        assert [answer.status_code for answer in answers] == [200] * len(KEYS), [answer.text for answer in answers]
        return [answer.json()["value"] for answer in answers]

    def range(self) -> list[int]:
        """Every value, by one query of all tasks."""
        answer = self.client.get(f"{self.rest.url}/v1/stores/numbers/range")
        assert answer.status_code == 200, answer.text
        return [entry["value"] for entry in answer.json()["entries"]]


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    with ExitStack() as stack:
        active = stack.enter_context(process(config(tmp_path, "game-0", GAME.tasks())))
        standby = stack.enter_context(process(config(tmp_path, "game-1", (), standbys=GAME.tasks())))
        addresses = tuple(each.addresses()["flight"] for each in (active, standby))
        for address in addresses:
            client = stack.enter_context(StateClient(address, 30.0))
            until(lambda client=client: client.status().ready, "every replica is restored")  # type: ignore[misc]
        asked = Instance(config(tmp_path, "game-2", ()))
        asked.start()
        stack.callback(asked.stop)
        asked.peers = {str(task): addresses for task in GAME.tasks()}
        rest = RestService(asked)
        rest.start()
        stack.callback(rest.stop)
        yield Replicas(driver, active, rest, stack.enter_context(httpx2.Client(timeout=20)), asked)


def test_a_killed_instance_fails_no_query(replicas: Replicas) -> None:
    assert replicas.values() == [*KEYS]
    replicas.active.kill()
    assert replicas.values() == replicas.range() == [*KEYS]


def test_a_frozen_instance_fails_no_query(replicas: Replicas) -> None:
    with frozen(replicas.active.pid):
        assert replicas.range() == replicas.values() == [*KEYS]


def test_an_instance_that_freezes_in_the_middle_of_a_scan_interrupts_it(tmp_path: Path) -> None:
    driver, task = Driver(str(tmp_path / "log"), GAME), GAME.tasks()[0]
    driver.commit_cells(STORE, {task: {b"%0200d" % n: b"" for n in range(100_000)}})  # more than is sent unasked
    with process(config(tmp_path, "game-0", GAME.tasks())) as active, active.listening() as client:
        until(lambda: client.status().ready, "the replica is restored")
        store = PeerBytes(client, task, "numbers", driver.version)
        blocks = store.columns(b"", None)
        assert len(next(blocks).keys)
        with frozen(active.pid):
            with pytest.raises(InstanceUnavailable, match="sent nothing of a scan"):
                for _ in blocks:
                    pass
            with pytest.raises(InstanceUnavailable, match="sent nothing of a scan"):
                next(store.columns(b"", None))  # which has not even begun


def test_an_instance_that_freezes_after_it_holds_a_version_is_waited_for_once(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once per task, and again per hold: the standby has the version too."""
    tasks = GAME.tasks()
    active, _ = replicas.asked.peers[str(tasks[0])]
    scan, release = StateClient.scan, StateClient.release
    scanned: list[str] = []
    waits: list[float] = []

    def noted_scan(client: StateClient, *given: Any, **named: Any) -> Any:
        scanned.append(client.address)
        return scan(client, *given, **named)

    def noted_release(client: StateClient, held: HeldVersion) -> None:
        waits.append(client._left())
        release(client, held)

    columns = ColumnReader(replicas.rest.reader)
    try:
        with columns.held(["numbers"], ANY, 60.0) as held:
            freeze(replicas.active.pid)
            monkeypatch.setattr(StateClient, "scan", noted_scan)
            monkeypatch.setattr(StateClient, "release", noted_release)
            assert sum(batch.num_rows for batch in columns.batches("numbers", held)) == len(KEYS)
        assert scanned.count(active) == 1 and len(scanned) > len(tasks)
        assert len(waits) == len(tasks) and max(waits) <= 0.1
    finally:
        wake(replicas.active.pid)


def test_an_address_that_cannot_be_called_fails_no_query(replicas: Replicas) -> None:
    asked = replicas.asked
    asked.peers = {task: ("grpc+tls://127.0.0.1:1", "grpc://%:1", *places) for task, places in asked.peers.items()}
    assert replicas.values() == replicas.range() == [*KEYS]


def test_tasks_ask_a_frozen_instance_once(replicas: Replicas) -> None:
    """The first read waits half of its time for it, the next ones don't."""
    locations = StateLocations(
        log_url="",
        log_id=replicas.driver.log.id,
        app_file=1,
        log_options={},
        fsync=False,
        replicas=replicas.asked.peers,
        deadline=timedelta(seconds=20),
        retry=RetrySettings(),
    )
    state = RemoteState(locations, GAME.tasks()[0], Version(1))
    freeze(replicas.active.pid)
    try:
        entries = [state.scan("numbers", b"", None, limit=100).num_rows for _ in range(2)]
        again = replace(
            locations, deadline=timedelta(seconds=3600)
        )  # half of it would be longer than this test may take
        entries.append(RemoteState(again, GAME.tasks()[0], Version(1)).scan("numbers", b"", None, limit=100).num_rows)
    finally:
        wake(replicas.active.pid)
    assert len({*entries}) == 1 and entries[0] > 0


@contextmanager
def running(*instances: Instance) -> Iterator[None]:
    with ExitStack() as stack:
        for instance in instances:
            instance.start()
            stack.callback(instance.stop)
            assert instance.wait_ready(30)
        know_each_other(instances)
        yield


def test_a_standby_that_is_behind_catches_up_before_it_answers(tmp_path: Path) -> None:
    """A reader that has seen a version never sees an older one, whichever replica answers."""
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): 1 for n in KEYS})
    active = Instance(config(tmp_path, "game-0", GAME.tasks()))
    late = msgspec.structs.replace(config(tmp_path, "game-1", (), standbys=GAME.tasks()), poll_seconds=3600.0)
    behind, asked = Instance(late), Instance(config(tmp_path, "game-2", ()))
    with running(active, behind, asked):
        driver.commit(STORE, {(n,): 2 for n in KEYS})
        active.committed(driver.version)
        rest = RestService(asked)
        rest.start()
        url = f"{rest.url}/v1/stores/numbers/keys/7"
        until(lambda: httpx2.get(url).json()["version"] == 2, "the active replica is at version 2")
        assert {hosted.replica.version for hosted in behind.hosted()} == {1}
        active.stop()
        assert httpx2.get(url).json()["version"] == 2
        rest.stop()


def test_a_replica_here_that_is_behind_catches_up_if_no_other_answers(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): 1 for n in KEYS})
    active = Instance(config(tmp_path, "game-0", GAME.tasks()))
    late = msgspec.structs.replace(config(tmp_path, "game-1", (), standbys=GAME.tasks()), poll_seconds=3600.0)
    behind = Instance(late)
    task = GAME.tasks()[0]
    with running(active, behind):
        active.committed(driver.commit(STORE, {(n,): 2 for n in KEYS}))
        until(lambda: active.replica(task).published.version == 2, "the active replica is at version 2")
        readers = TaskReaders(behind)

        def version(needs: ReadNeeds = ANY_REPLICA) -> tuple[int, int]:
            reader = readers(task, needs)
            assert reader is not None
            with reader.at(STORE.name) as found:
                return reader.get(STORE.name, b"").version, found.version

        assert version(ReadNeeds(at_least=Version(2))) == (2, 2), "the active one has answered"
        assert behind.replica(task).version == 1
        active.stop()
        with ThreadPoolExecutor(1) as clients:
            answer = clients.submit(version)
            behind.committed(driver.version)
            assert answer.result() == (2, 2)
        readers.close()


def test_an_instance_reads_its_own_standby(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    active = Instance(config(tmp_path, "game-0", GAME.tasks()))
    own = Instance(config(tmp_path, "game-1", (), standbys=GAME.tasks()))
    with running(active, own):
        active.stop()
        rest = RestService(own)
        rest.start()
        assert httpx2.get(f"{rest.url}/v1/stores/numbers/keys/7").json()["value"] == 7
        rest.stop()


def test_each_instance_of_an_app_with_standbys_answers_for_a_killed_one(tmp_path: Path) -> None:
    chosen = settings(tmp_path, partitions=2, instances=2, standbys=1)
    driver = Driver(chosen.log_url("game"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    failures: list[BaseException] = []
    instances = GroupInstances("game", chosen, app_file=1, on_event=lambda event: None, on_failure=failures.append)
    try:
        instances.assign(GAME.tasks())
        instances.wait_until_ready(driver.point)
        replicas = instances.replicas()
        first, second = replicas["0_0"]
        assert replicas["0_1"] == (second, first), "each is active for one task, and a standby of the other"
        with StateClient(first, 30.0) as client:
            pid = client.status().pid
        freeze(pid)
        driver.commit(STORE, {(0,): 0})
        instances.wait_until_visible(driver.version)  # although one hangs
        os.kill(pid, signal.SIGKILL)
        address = instances.rest_addresses[1]
        answers = [httpx2.get(f"{address}/v1/stores/numbers/keys/{n}") for n in KEYS]
        assert [answer.json().get("value") for answer in answers] == [*KEYS]
    finally:
        instances.stop(30.0)
    assert failures == []
