"""Instances as processes: they serve committed versions, and lose nothing however they end."""

import random
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from holdfast.clock import ManualClock
from holdfast.instance import instance as instance_module
from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Role, unchecked
from holdfast.instance.events import ProblemEvent, RestoreEvent
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceRefused, InstanceUnavailable, TaskNotHere
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.peer_tasks import PeerBytes
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import (
    LogSettings,
    MemorySettings,
    RetrySettings,
    SnapshotSettings,
    StateSettings,
)
from holdfast.stores.engines.open_views import OPEN_VIEWS
from holdfast.stores.ranges import Ranges
from holdfast.words import TaskId, Version
from tests.instance.app_log import TASK, AppLog, State, key_of
from tests.instance.processes import Process, until
from tests.instance.timed import Twin, contents_of, specs


@pytest.fixture
def app(tmp_path: Path) -> AppLog:
    return AppLog(str(tmp_path / "log"), partitions=3)


def config_of(app: AppLog, tmp_path: Path, **changed: Any) -> InstanceConfig:
    config = InstanceConfig(
        app="app",
        name="one",
        log_url=app.url,
        app_file=app.log.app.number,
        state_dir=str(tmp_path / "state"),
        tasks={str(task): Role.ACTIVE for task in app.log.app.tasks()},
        poll_seconds=0.05,
        log=LogSettings(fsync=False),
        memory=MemorySettings(limit="128MiB"),
        rest=RestSettings(port=0),
        retry=RetrySettings(first="20ms", longest="100ms"),
    )
    return msgspec.structs.replace(config, **changed)


FLUSH_OFTEN = StateSettings(flush_versions=2)
NO_SNAPSHOTS = SnapshotSettings(enabled=False)
MANY_SNAPSHOTS = unchecked(SnapshotSettings, bytes=1)


def slow(*case: Any) -> Any:
    """A case for `make crash`, which repeats others."""
    return pytest.param(*case, marks=pytest.mark.slow)


def state_of(client: StateClient, task: TaskId, version: Version, stores: tuple[str, ...]) -> State:
    found: State = {}
    for store in stores:
        scanned = client.scan(task, store, version)
        assert scanned.version == version
        found[store] = dict(zip(scanned.keys.to_pylist(), scanned.values.to_pylist(), strict=True))
    return found


def check(client: StateClient, app: AppLog) -> None:
    """Every task has the newest version, by scan, bulk get and single get."""
    keys = [key_of(number) for number in range(70)]
    for task in app.log.app.tasks():
        state = app.state(task=task)
        assert state_of(client, task, app.version, app.stores) == state
        for store in app.stores:
            values = client.get_many(task, store, app.version, pa.array(keys, pa.binary()))
            assert values.to_pylist() == [state[store].get(key) for key in keys]
        got = client.get_one(task, app.stores[0], keys[3], app.version)
        assert (got.version, got.value) == (app.version, state[app.stores[0]].get(keys[3]))


def test_it_serves_committed_versions_and_ends_on_sigterm(app: AppLog, tmp_path: Path) -> None:
    chance = app.grow(5, 1)
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        check(client, app)
        for _ in range(5):
            version = app.random_commit(chance)
            client.committed(version)
            check(client, app)
        until(lambda: client.status().ready, "ready")
        app.random_commit(chance)  # not notified: it polls the log
        until(lambda: all(task.version == app.version for task in client.status().tasks), "following")
        assert process.terminate() < 5
    checkpoint = (tmp_path / "state" / "0_1" / ".checkpoint").read_text()
    assert f'"counts": {app.version}' in checkpoint


def test_invalid_requests_are_refused(app: AppLog, tmp_path: Path) -> None:
    app.grow(9, 2)
    keys = pa.array([key_of(1)], pa.binary())
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        with pytest.raises(VersionNotAvailable, match="the log has no such version"):
            client.get_many(TaskId(0, 0), "counts", Version(10), keys)
        with pytest.raises(VersionNotAvailable, match="asked for version 1 and holds versions"):
            client.get_many(TaskId(0, 0), "counts", Version(1), keys)
        with pytest.raises(TaskNotHere, match=r"doesn't host task 0_7; it hosts 0_0, 0_1, 0_2"):
            client.get_many(TaskId(0, 7), "counts", Version(9), keys)
        with pytest.raises(InstanceRefused, match="no store 'nope'. It has counts, other"):
            client.scan(TaskId(0, 0), "nope")
        with pytest.raises(InstanceRefused, match="no action"):
            client._act("dance")
        with (
            StateClient(client.address, 30.0, "another-log") as stranger,
            pytest.raises(InstanceUnavailable, match="another-log was asked for"),
        ):
            stranger.get_many(TaskId(0, 0), "counts", Version(9), keys)
        empty = client.get_many(TaskId(0, 0), "counts", Version(9), pa.array([], pa.binary()))
        assert len(empty) == 0
        process.kill()
        with pytest.raises(InstanceUnavailable, match="can't be reached"):
            client.status()


def test_one_range_and_many_ranges_are_scanned(app: AppLog, tmp_path: Path) -> None:
    task = TaskId(0, 0)
    app.commit({task: {"counts": {key_of(number): b"%d" % number for number in range(20_000)}}})
    app.commit({task: {"counts": {key_of(number): None for number in range(0, 20_000, 2)}}})
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        odd = [key_of(number) for number in range(1, 20_000, 2)]
        assert client.scan(task, "counts", Version(2)).keys.to_pylist() == odd
        assert client.scan(task, "counts", start=key_of(10), limit=3).keys.to_pylist() == odd[5:8]
        back = client.scan(task, "counts", stop=key_of(11), reverse=True, limit=2)
        assert (back.version, back.keys.to_pylist(), back.values.to_pylist()) == (2, [odd[4], odd[3]], [b"9", b"7"])

        ranges = Ranges.of((key_of(number), key_of(number + 4)) for number in range(0, 20_000, 10))
        found = client.scan_many(task, "counts", Version(2), ranges)
        assert found.schema.names == ["range", "key", "value"]
        assert found["range"].to_pylist() == [number for number in range(2_000) for _ in range(2)]
        within = [number for number in range(20_000) if number % 10 in (1, 3)]
        assert found["key"].to_pylist() == [key_of(number) for number in within]
        assert found["value"].to_pylist() == [b"%d" % number for number in within]
        before = client.scan_many(task, "counts", Version(1), ranges)
        assert before.num_rows == 8_000
        all_ = client.scan_many(task, "counts", Version(1), Ranges.of([(b"", None)]))
        assert (all_.num_rows, set(all_["range"].to_pylist())) == (20_000, {0})
        none = client.scan_many(task, "counts", Version(2), Ranges.of([]))
        assert (none.num_rows, none.schema.names) == (0, ["range", "key", "value"])
        with pytest.raises(VersionNotAvailable, match="the log has no such version"):
            client.scan_many(task, "counts", Version(3), ranges)
        with pytest.raises(InstanceRefused, match="no store 'nope'"):
            client.scan_many(task, "nope", Version(2), ranges)


def test_many_ranges_are_split_into_calls(app: AppLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TaskId(0, 0)
    monkeypatch.setattr("holdfast.instance.client._RANGES_PER_CALL", 7)
    app.commit({task: {"counts": {key_of(number): b"%d" % number for number in range(50)}}})
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        ranges = Ranges.of((key_of(number), key_of(number + 1)) for number in range(50))
        found = client.scan_many(task, "counts", Version(1), ranges)
        assert found["range"].to_pylist() == list(range(50))
        assert found["value"].to_pylist() == [b"%d" % number for number in range(50)]


def test_it_ends_on_request(app: AppLog, tmp_path: Path) -> None:
    with Process(config_of(app, tmp_path)) as process:
        process.listening().stop()
        assert process.wait()[0] == 0


@pytest.mark.usefixtures("without_forks")
def test_an_instance_may_open_as_many_files_as_the_system_allows(app: AppLog, tmp_path: Path) -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (usual // 2, most))
    try:
        process = Process(config_of(app, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
    with process, process.listening():
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (most, most)


@pytest.mark.parametrize(
    ("point", "nth"), [("apply.middle", 5), ("apply.after", 2), slow("apply.before", 2), slow("apply.middle", 1)]
)
def test_a_kill_while_applying_loses_nothing(app: AppLog, tmp_path: Path, point: str, nth: int) -> None:
    chance = random.Random(nth)
    for _ in range(6):
        app.random_commit(chance, rows=2_500, keys=3_000)
    small = config_of(
        app, tmp_path, memory=unchecked(MemorySettings, limit=1 << 20), state=FLUSH_OFTEN, snapshots=NO_SNAPSHOTS
    )
    with Process(small, HOLDFAST_FAULT=f"{point}=kill@{nth}") as process:
        while process.running and app.version < 60:
            app.random_commit(chance, rows=2_500, keys=3_000)
        assert process.wait()[0] == -signal.SIGKILL
    app.random_commit(chance)
    with Process(small) as process, process.listening() as client:
        check(client, app)
        assert no_wipe(client)


@pytest.mark.parametrize("point", ["snapshot.middle", slow("snapshot.before"), slow("snapshot.after")])
def test_a_kill_during_a_snapshot_loses_nothing(app: AppLog, tmp_path: Path, point: str) -> None:
    chance = app.grow(6, 4)
    eager = config_of(app, tmp_path, snapshots=MANY_SNAPSHOTS)
    with Process(eager, HOLDFAST_FAULT=f"{point}=kill@1") as process:
        assert process.wait()[0] == -signal.SIGKILL
    app.random_commit(chance)
    with Process(eager) as process, process.listening() as client:
        check(client, app)
        assert no_wipe(client)
        tasks = app.log.app.tasks()
        until(lambda: all(app.log.snapshots.newest(task) for task in tasks), "snapshots of all tasks")
    with Process(config_of(app, tmp_path, state_dir=str(tmp_path / "fresh"))) as process:
        check(process.listening(), app)


@pytest.mark.parametrize("point", ["drop.before", slow("drop.after")])
def test_a_kill_while_slices_are_dropped_loses_nothing(tmp_path: Path, point: str) -> None:
    chance = random.Random(9)
    app = AppLog(str(tmp_path / "log"), specs=specs("rocksdb"))
    twin = Twin(app)
    for _ in range(4):
        twin.step(chance)
    small = config_of(app, tmp_path, state=FLUSH_OFTEN, snapshots=NO_SNAPSHOTS)
    with Process(small, HOLDFAST_FAULT=f"{point}=kill@3") as process:
        while process.running and app.version < 200:
            twin.step(chance)
        assert process.wait()[0] == -signal.SIGKILL
    version = twin.step(chance)
    with Process(small) as process, process.listening() as client:
        now = client.scan(TASK, "windows", version, limit=0).now
        stores = {name: PeerBytes(client, TASK, name, version) for name in app.stores}
        assert contents_of(stores, now) == twin.expected(version)
        assert no_wipe(client)


def test_a_kill_at_any_time_loses_nothing(app: AppLog, tmp_path: Path) -> None:
    """Kills while versions arrive and flushes and snapshots run."""
    chance = random.Random(5)
    busy = config_of(
        app, tmp_path, memory=unchecked(MemorySettings, limit=2 << 20), state=FLUSH_OFTEN, snapshots=MANY_SNAPSHOTS
    )
    for _ in range(3):
        with Process(busy) as process, process.listening() as client:
            for _ in range(chance.randrange(1, 6)):
                client.committed(app.random_commit(chance, rows=2_000, keys=3_000))
            client.get_many(TaskId(0, 0), "counts", app.version, pa.array([key_of(1)], pa.binary()))
            assert no_wipe(client)
            process.kill()
    with Process(busy) as process, process.listening() as client:
        check(client, app)


def test_a_restore_is_reported(app: AppLog, tmp_path: Path) -> None:
    chance = app.grow(30, 6)
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        for task in app.log.app.tasks():
            for store in app.stores:
                events = restores(client, str(task), store)
                assert [event.phase for event in events][:1] + [event.phase for event in events][-1:] == [
                    "start",
                    "end",
                ]
                assert {event.start_version for event in events} == {0}
                assert (events[0].end_version, events[-1].end_version) == (30, 30)
                batches = [event for event in events if event.phase == "batch"]
                assert batches
                assert sum(event.count for event in batches) == events[-1].total > 0
        process.terminate()
    for _ in range(3):
        app.random_commit(chance)
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        again = restores(client, "0_0", "counts")
        assert (again[0].phase, again[0].start_version, again[0].end_version) == ("start", 30, 33)
        assert (again[-1].phase, again[-1].end_version) == ("end", 33)


def test_a_failed_restore_is_suspended_and_retried(app: AppLog, tmp_path: Path) -> None:
    app.inline_limit = 0
    app.grow(6, 7)
    segments = tmp_path / "log" / "segments" / "0_1"
    broken = sorted(segments.iterdir())[-1]
    data = broken.read_bytes()
    broken.write_bytes(data[:-1] + bytes([data[-1] ^ 255]))
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        until(lambda: "suspended" in [e.phase for e in restores(client, "0_1", "counts")], "suspended")
        until(lambda: client.status().tasks[0].phase == "running", "the other tasks")
        until(lambda: client.status().tasks[1].phase == "suspended", "the broken task suspended")
        status = client.status()
        assert not status.ready
        assert "damaged" in (status.tasks[1].error or "")
        # A state directory in memory is another problem.
        until(lambda: len([p for p in problems(client) if p.error != "TemporaryFileSystem"]) == 1, "one problem")
        broken.write_bytes(data)
        until(lambda: client.status().ready, "ready")
        assert client.status().tasks[1].error is None
        check(client, app)


def test_damaged_files_are_restored_while_clients_read(app: AppLog, tmp_path: Path) -> None:
    app.grow(4, 8)
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        process.terminate()
    for file in (tmp_path / "state").rglob("*.sst"):
        file.write_bytes(b"garbage")
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        until(lambda: answered(client, app), "a right answer from every task")
        assert {event.severity for event in problems(client)} == {"warning"}


def test_the_driver_sets_the_state(app: AppLog, tmp_path: Path) -> None:
    with Process(config_of(app, tmp_path)) as process, process.listening() as client:
        client.app_state("running")
        status = client.status()
        assert (status.app_state, status.name, status.log) == ("running", "one", app.log.id)


def answered(client: StateClient, app: AppLog) -> bool:
    """Whether every task can be read and is correct."""
    try:
        check(client, app)
    except (InstanceUnavailable, VersionNotAvailable):
        return False
    return True


def restores(client: StateClient, task: str, store: str) -> list[RestoreEvent]:
    found = [numbered.event for numbered in client.events(0).events]
    return [e for e in found if isinstance(e, RestoreEvent) and (e.task, e.store) == (task, store)]


def problems(client: StateClient) -> list[ProblemEvent]:
    return [numbered.event for numbered in client.events(0).events if isinstance(numbered.event, ProblemEvent)]


def no_wipe(client: StateClient) -> bool:
    return [problem for problem in problems(client) if "emptied" in problem.message] == []


def test_an_instance_that_cannot_read_the_log_is_not_ready(app: AppLog, tmp_path: Path) -> None:
    app.random_commit(random.Random(1))
    commit = tmp_path / "log" / "commits" / f"{1:020d}.json"
    whole = commit.read_bytes()
    commit.write_bytes(whole[:-20])
    with Process(config_of(app, tmp_path)) as process:
        client = process.listening()
        until(lambda: bool(problems(client)), "the damaged commit to be reported")
        assert not client.status().ready
        commit.write_bytes(whole)
        until(lambda: client.status().ready, "the instance to be ready")
        assert min(task.readable_to or 0 for task in client.status().tasks) == 1


def test_a_scan_left_open_is_logged_with_its_place(
    app: AppLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(OPEN_VIEWS, "_clock", clock.monotonic)
    monkeypatch.setattr(instance_module, "_REBALANCE_LOOK", 0.01)
    app.commit({TASK: {"counts": {key_of(number): b"%d" % number for number in range(5_000)}}})
    instance = Instance(config_of(app, tmp_path))
    instance.start()
    try:
        assert instance.wait_ready(60)
        replica = instance.replica(TASK)
        replica.flush_overlay()
        with replica.read_view() as view:
            scan = view.scan("counts", b"", None)
            next(scan)
            clock.advance(61)
            until(lambda: "a scan of counts has kept old state for 61 s" in caplog.text, "named")
            scan.close()
    finally:
        instance.stop()
    named = [record.getMessage() for record in caplog.records if "a scan of" in record.getMessage()]
    assert len(named) == 1, "logged once"
    assert f"{__file__}:" in named[0]
    assert " in test_a_scan_left_open" in named[0]
