"""Tasks are hosted, promoted and dropped while an instance runs."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast import contacts, embedded, faults, metrics
from holdfast.contacts import Contact
from holdfast.embedded import EmbeddedProcesses
from holdfast.errors import Closed, Interrupted
from holdfast.group.generations import Address
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.group_instances import GroupInstances
from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.credentials import NO_CREDENTIALS
from holdfast.instance.events import EventPage, RestoreEvent
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceRefused, InstanceUnavailable, TaskNotHere
from holdfast.instance.read_views import ReadView
from holdfast.instance.state_dir import StateDirectoryInUse, TaskDirectory
from holdfast.launching import InstanceNotStarted
from holdfast.settings.sections import LogSettings
from holdfast.stores.engines.base import DamagedState
from holdfast.words import TaskId
from tests.apps import settings
from tests.freezing import freeze
from tests.instance.app_log import AppLog, key_of
from tests.instance.processes import until
from tests.instance.test_process import FLUSH_OFTEN, MANY_SNAPSHOTS, NO_SNAPSHOTS, config_of, state_of

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)


@pytest.fixture
def app(tmp_path: Path) -> AppLog:
    app = AppLog(str(tmp_path / "log"), partitions=3)
    app.grow(6, seed=1)
    return app


@contextmanager
def running(config: InstanceConfig) -> Iterator[Instance]:
    instance = Instance(config)
    instance.start()
    try:
        yield instance
    finally:
        instance.stop()


@pytest.fixture
def instance(app: AppLog, tmp_path: Path) -> Iterator[Instance]:
    """An instance without tasks."""
    with running(config_of(app, tmp_path, tasks={}, state=FLUSH_OFTEN, snapshots=NO_SNAPSHOTS)) as instance:
        yield instance


@pytest.fixture
def client(instance: Instance) -> Iterator[StateClient]:
    with StateClient(instance.address, 30.0) as client:
        yield client


def test_an_instance_can_be_stopped_without_a_start(app: AppLog, tmp_path: Path) -> None:
    instance = Instance(config_of(app, tmp_path, tasks={}))
    with pytest.raises(Closed, match="Start it first"):
        _ = instance.address
    instance.host(TASK)
    instance.stop()
    assert free(app, tmp_path, TASK)


def tasks_of(client: StateClient) -> dict[str, str]:
    return {task.task: task.role.value for task in client.status().tasks}


def free(app: AppLog, tmp_path: Path, task: TaskId) -> bool:
    """Whether another instance could use the task's directory."""
    try:
        TaskDirectory(tmp_path / "state", task, "another").close()
    except StateDirectoryInUse:
        return False
    return True


def test_an_instance_counts_the_keys_of_a_store(app: AppLog, instance: Instance, client: StateClient) -> None:
    instance.host(TASK)
    state = state_of(client, TASK, app.version, app.stores)
    keys = {b"\x01%05d" % n: b"v" for n in range(1_500)}
    for changes in (keys, dict.fromkeys(state["counts"])):
        client.committed(version := app.commit({TASK: {"counts": dict(changes)}}))
        state_of(client, TASK, version, app.stores)  # the replica is at this version
    assert client.approximate_count(TASK, "counts", app.version) == pytest.approx(1_500, rel=0.05)
    with pytest.raises(InstanceRefused, match="no store 'plays'"):
        client.approximate_count(TASK, "plays", app.version)


def test_large_values_are_read_in_several_messages(app: AppLog, instance: Instance, client: StateClient) -> None:
    values = {key_of(number): number.to_bytes(2) * 30_000 for number in range(1_600)}
    instance.host(TASK)
    client.committed(app.commit({TASK: {"counts": dict(values)}}))
    keys = [*values, key_of(5_000)]
    found = client.get_many(TASK, "counts", app.version, pa.array(keys, pa.binary()))
    assert found.to_pylist() == [*values.values(), None]


def test_a_hosted_task_is_restored_and_a_dropped_one_is_gone(
    app: AppLog, tmp_path: Path, instance: Instance, client: StateClient
) -> None:
    with pytest.raises(TaskNotHere, match="it hosts no task"):
        client.scan(TASK, "counts", app.version)
    for task in (TASK, OTHER):
        instance.host(task)
        assert state_of(client, task, app.version, app.stores) == app.state(task=task)
    until(lambda: client.status().ready, "ready")
    assert tasks_of(client) == {"0_0": "active", "0_1": "active"}
    assert not free(app, tmp_path, TASK)

    instance.drop(TASK)
    instance.drop(TASK)  # again, without effect
    assert tasks_of(client) == {"0_1": "active"}
    assert free(app, tmp_path, TASK)
    with pytest.raises(TaskNotHere, match="it hosts 0_1"):
        client.scan(TASK, "counts", app.version)
    client.committed(app.random_commit(random.Random(2)))
    assert state_of(client, OTHER, app.version, app.stores) == app.state(task=OTHER)

    instance.host(TASK)
    assert state_of(client, TASK, app.version, app.stores) == app.state(task=TASK)


def test_a_task_that_the_app_does_not_have_is_refused(instance: Instance, client: StateClient) -> None:
    with pytest.raises(InstanceRefused, match="no stores in task 0_9"):
        instance.host(TaskId(0, 9))
    assert tasks_of(client) == {}


def test_a_state_directory_in_use_is_refused_and_can_be_retried(
    tmp_path: Path, instance: Instance, client: StateClient
) -> None:
    with TaskDirectory(tmp_path / "state", TASK, "another"), pytest.raises(StateDirectoryInUse, match="another"):
        instance.host(TASK)
    instance.host(TASK)
    assert tasks_of(client) == {"0_0": "active"}


def test_memory_is_divided_among_the_hosted_tasks(instance: Instance) -> None:
    instance.host(TASK)
    alone = instance.replica(TASK).settings.overlay_bytes
    instance.host(OTHER)
    instance.host(TaskId(0, 2))
    assert instance.replica(TASK).settings.overlay_bytes == instance.replica(OTHER).settings.overlay_bytes == alone // 3
    instance.drop(OTHER)
    assert instance.replica(TASK).settings.overlay_bytes == alone // 2


def test_a_dropped_task_has_no_metrics(app: AppLog, instance: Instance, client: StateClient) -> None:
    instance.host(TASK)
    instance.host(OTHER)
    client.get_many(TASK, "counts", app.version, pa.array([key_of(1)], pa.binary()))
    shown = metrics.expose()[0].decode()
    assert 'holdfast_task_version{task="0_0"}' in shown
    assert 'holdfast_state_keys_read_total{task="0_0"}' in shown
    instance.drop(TASK)
    assert 'task="0_0"' not in metrics.expose()[0].decode()
    assert 'holdfast_task_version{task="0_1"}' in metrics.expose()[0].decode()


def test_only_the_active_role_saves_snapshots_and_a_role_can_change(app: AppLog, tmp_path: Path) -> None:
    with running(config_of(app, tmp_path, tasks={"0_0": Role.STANDBY}, snapshots=MANY_SNAPSHOTS)) as instance:
        assert instance.wait_ready(30)
        replica = instance.replica(TASK)
        instance._snapshots.step(0.0)
        assert app.log.snapshots.versions(TASK) == []
        instance.host(TASK, Role.ACTIVE)
        assert instance.replica(TASK) is replica, "a promotion keeps the replica"
        until(lambda: app.log.snapshots.versions(TASK) == [app.version], "a snapshot")
        instance.host(TASK, Role.STANDBY)
        instance.committed(app.random_commit(random.Random(3)))
        until(lambda: replica.version == app.version, "the next version")
        instance._snapshots.step(0.0)
        assert app.log.snapshots.versions(TASK) == [6]
        assert [hosted.role for hosted in instance.hosted()] == [Role.STANDBY]


@pytest.mark.parametrize("point", ["apply.middle", "snapshot.middle"])
def test_a_task_can_be_dropped_during_a_restore_or_a_snapshot(point: str, app: AppLog, tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()
    config = config_of(app, tmp_path, tasks={}, state=FLUSH_OFTEN, snapshots=MANY_SNAPSHOTS)

    def hold() -> None:
        reached.set()
        assert go_on.wait(30)

    with running(config) as instance:
        with faults.active({point: hold}):
            instance.host(TASK)
            assert reached.wait(30)
            dropping = threading.Thread(target=instance.drop, args=(TASK,))
            dropping.start()
            until(lambda: instance.hosted() == [], "no longer served")
            go_on.set()
            dropping.join(30)
            assert not dropping.is_alive()
        assert free(app, tmp_path, TASK)
        instance.host(TASK)
        assert instance.wait_ready(30)
        with instance.replica(TASK).read_view(app.version) as view:
            assert {store: dict(view.scan(store, b"", None)) for store in app.stores} == app.state(task=TASK)


def test_reads_of_a_dropped_task_are_an_error(app: AppLog, instance: Instance, client: StateClient) -> None:
    app.commit({TASK: {"counts": {key_of(number): b"x" for number in range(5_000)}}})
    instance.host(TASK)
    client.scan(TASK, "counts", app.version)
    view = instance.replica(TASK).read_view()
    entries = view.scan("counts", b"", None)
    next(entries)
    instance.replica(TASK).flush_overlay()
    instance.drop(TASK)
    with pytest.raises(Closed, match="Ask again"):
        view.pinned.get("counts", key_of(7))
    with pytest.raises(Closed, match="Ask again"):
        list(view.pinned.scan("counts", b"", None, reverse=False))
    view.close()


def test_reads_are_correct_while_a_task_is_hosted_and_dropped(
    app: AppLog, instance: Instance, client: StateClient
) -> None:
    wrong: list[object] = []
    finished = threading.Event()

    def read() -> None:
        with StateClient(instance.address, 30.0) as mine:
            while not finished.is_set():
                version = app.version
                try:
                    scanned = mine.scan(TASK, "counts", version)
                except (TaskNotHere, InstanceUnavailable):
                    continue
                except Exception as error:  # noqa: BLE001  this test is about other errors
                    if "holds versions" not in str(error):
                        wrong.append(error)
                    continue
                found = dict(zip(scanned.keys.to_pylist(), scanned.values.to_pylist(), strict=True))
                if found != app.state(version, task=TASK)["counts"]:
                    wrong.append(version)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    chance = random.Random(5)
    for _ in range(12):
        instance.host(TASK)
        for _ in range(chance.randrange(3)):
            client.committed(app.random_commit(chance))
        instance.drop(TASK)
    instance.host(TASK)
    finished.set()
    for reader in readers:
        reader.join(60)
    assert wrong == []
    assert state_of(client, TASK, app.version, app.stores) == app.state(task=TASK)


def test_a_scan_that_finds_damage_rebuilds_its_own_task_only(
    app: AppLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "0_1"  # looks like the folder of the other task
    found = [DamagedState(home / "state" / "0_0" / "data", "a test")]
    intact = ReadView.columns

    def columns(view: ReadView, *place: Any) -> Any:
        if found:
            raise found.pop()
        return intact(view, *place)

    with running(config_of(app, home, tasks={"0_0": Role.ACTIVE, "0_1": Role.ACTIVE})) as instance:
        assert instance.wait_ready(30)
        monkeypatch.setattr(ReadView, "columns", columns)
        with StateClient(instance.address, 30.0) as client:
            with pytest.raises(InstanceUnavailable, match="It is being rebuilt"):
                client.scan(TASK, "counts", app.version)
            assert state_of(client, TASK, app.version, app.stores) == app.state(task=TASK)
        assert [instance.replica(task).openings for task in (TASK, OTHER)] == [2, 1]


def test_a_promoted_standby_keeps_its_state_over_a_restart(app: AppLog, tmp_path: Path) -> None:
    for role, restored in ((Role.STANDBY, True), (Role.ACTIVE, False), (Role.ACTIVE, False)):
        with running(config_of(app, tmp_path, tasks={"0_0": role}, snapshots=NO_SNAPSHOTS)) as instance:
            assert instance.wait_ready(30)
            events = [each.event for each in instance.events.since(0).events]
            assert any(isinstance(event, RestoreEvent) for event in events) is restored
            instance.host(TASK, Role.ACTIVE)


def test_tasks_that_are_added_are_hosted_by_running_instances(app: AppLog, tmp_path: Path) -> None:
    chosen = settings(tmp_path, instances=2, log=LogSettings(url=app.url, fsync=False), partitions=3)
    failures: list[BaseException] = []
    instances = GroupInstances("app", chosen, app_file=1, on_event=lambda event: None, on_failure=failures.append)
    zero, one, two = app.log.app.tasks()
    try:
        instances.assign([zero, one])
        instances.wait_until_ready(app.point)
        before = instances.replicas()
        assert before["0_0"] != before["0_1"]
        processes = {address: pid_of(address) for (address,) in before.values()}

        instances.assign([zero, one, two], everywhere=[two])
        instances.wait_until_ready(app.point)
        after = instances.replicas()
        assert (after["0_0"], after["0_1"]) == (before["0_0"], before["0_1"])
        assert {*after["0_2"]} == {*before["0_0"], *before["0_1"]}
        assert {address: pid_of(address) for address in processes} == processes, "no process was restarted"
        instances.wait_until_visible(app.version)
        for task in (zero, one, two):
            for address in after[str(task)]:
                with StateClient(address, 30.0) as client:
                    assert state_of(client, task, app.version, app.stores) == app.state(task=task)
    finally:
        instances.stop(30.0)
    assert failures == []


def test_a_first_start_is_a_rebalance_that_ends_before_the_app_runs(app: AppLog, tmp_path: Path) -> None:
    chosen = settings(tmp_path, instances=2, log=LogSettings(url=app.url, fsync=False), partitions=3)
    events: list[RebalanceEvent] = []
    instances = GroupInstances(
        "app",
        chosen,
        app_file=1,
        on_event=lambda event: None,
        on_failure=lambda error: None,
        on_rebalance=events.append,
    )
    try:
        instances.assign(app.log.app.tasks())
        instances.wait_until_ready(app.point)
        # Each instance counts as it joins, so there may have been a generation with one of them.
        started = [event.generation for event in events if event.phase is RebalancePhase.STARTED]
        assert [event.generation for event in events if event.phase is RebalancePhase.COMPLETED] == started
        assert {move.source for move in events[0].moves} == {None}
    finally:
        instances.stop(30.0)


def test_instances_that_hang_are_killed_at_the_end_of_the_time(app: AppLog, tmp_path: Path) -> None:
    """All of them have one deadline: two that hang take no longer than one."""
    chosen = settings(tmp_path, instances=2, log=LogSettings(url=app.url, fsync=False), partitions=3)
    failures: list[BaseException] = []
    instances = GroupInstances("app", chosen, app_file=1, on_event=lambda event: None, on_failure=failures.append)
    instances.assign(app.log.app.tasks())
    instances.wait_until_ready(app.point)
    processes = [pid_of(address) for address in {address for (address,) in instances.replicas().values()}]
    for pid in processes:
        freeze(pid)
    begun = time.monotonic()
    instances.stop(4.0)
    assert 4.0 <= time.monotonic() - begun < 7.5
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert failures == []


def test_the_first_launch_is_repeated_with_growing_waits_until_the_app_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill of the app, its old instance may keep folder and port for a moment."""
    waits: list[float] = []

    def launch(config: InstanceConfig, stopped: Callable[[], bool]) -> None:
        raise InstanceNotStarted("the port is in use.")

    monkeypatch.setattr(embedded, "launch", launch)
    monkeypatch.setattr(embedded, "SYSTEM_CLOCK", SimpleNamespace(sleep=waits.append, monotonic=float))
    processes = EmbeddedProcesses(
        "app",
        settings(tmp_path),
        app_file=1,
        on_start=lambda id: None,
        on_end=lambda id: None,
        on_failure=lambda failure: None,
        stopped=lambda: len(waits) == 5,
    )
    with pytest.raises(Interrupted):
        processes.start(1)
    processes.stop(30.0)
    assert len(waits) == 5
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (0.2, 0.4, 0.8, 1.0, 1.0), strict=True))


def test_events_are_asked_for_less_often_the_longer_an_instance_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    answers = iter([None, None, EventPage((), 1, 0, "life"), None])

    def events(*asked: object, **how: object) -> EventPage:
        if (page := next(answers)) is None:
            raise InstanceUnavailable("it is being restarted.")
        return page

    contact = Contact.__new__(Contact)

    def wait(seconds: float, until: object) -> None:
        waits.append(seconds)
        contact._closed = len(waits) == 3

    monkeypatch.setattr(contacts, "StateClient", lambda *_, **__: nullcontext(SimpleNamespace(events=events)))
    contact.address, contact._since, contact._closed = Address(incarnation=1, flight="grpc://127.0.0.1:1"), 0, False
    contact.id, contact._credentials, contact._lost, contact._patience = "one", NO_CREDENTIALS, False, 5.0
    contact._wait = wait  # type: ignore[assignment, method-assign]
    contact._read_events()
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (0.2, 0.4, 0.2), strict=True))


def pid_of(address: str) -> int:
    with StateClient(address, 30.0) as client:
        return client.status().pid
