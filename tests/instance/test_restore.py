"""Restores: what is on local disk is not fetched again, and whatever interrupts a load, the next one continues it."""

import os
import random
import subprocess
import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from holdfast.clock import ManualClock
from holdfast.errors import Closed, StorageUnavailable
from holdfast.group.members import Hosted
from holdfast.instance.config import Role
from holdfast.instance.events import RestoreEvent
from holdfast.instance.group_host import InstanceHost
from holdfast.instance.instance import Instance
from holdfast.instance.log_reader import LogReader
from holdfast.instance.replica import Replica
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.state_dir import TaskDirectory
from holdfast.log import names
from holdfast.log.bandwidth import Bandwidth
from holdfast.log.log import Log
from holdfast.log.snapshot_files import FileFetcher
from holdfast.log.snapshots import Manifest
from holdfast.log.storage import open_storage
from holdfast.settings.sections import RestoreSettings, SnapshotSettings, StateSettings
from holdfast.stores.engines.base import DiskFull
from holdfast.words import TaskId, Version
from tests.instance.app_log import TASK, AppLog, Place, key_of, shown
from tests.instance.processes import Process, until
from tests.instance.test_hosting import running
from tests.instance.test_process import NO_SNAPSHOTS, check, config_of, restores
from tests.log.making import Watched


def save(replica: Replica, app: AppLog) -> Manifest:
    Snapshotter(replica, app.log, SnapshotSettings()).save()
    manifest = app.log.snapshots.newest(TASK)
    assert manifest is not None
    return manifest


def large_commit(app: AppLog, first: int, number: int = 2_000) -> Version:
    """Values that can't be compressed: RocksDB's files have about 1 KiB per key."""
    return app.commit({TASK: {"counts": {key_of(first + n): os.urandom(1_000) for n in range(number)}}})


class Watching:
    """A log whose storage records its calls, and the replicas that read it."""

    def __init__(self, app: AppLog, place: Place) -> None:
        self.storage = Watched(open_storage(app.url, fsync=False))
        self._log = Log.open(self.storage, app.log.app.number)
        self._place = place

    def replica(self) -> Replica:
        self.storage.calls.clear()
        return self._place.replica_of(self._log)

    def fetched(self, manifest: Manifest) -> set[str]:
        """The names of the snapshot's files of which bytes were fetched."""
        by_object = {names.snapshot_file(TASK, file.hash): file.name for file in manifest.files}
        return {by_object[name] for call, name in self.storage.calls if call == "get_range" and name in by_object}


def tables(files: set[str]) -> set[str]:
    return {name for name in files if name.endswith(".sst")}


def test_a_replica_that_was_away_fetches_only_what_it_lacks(rocks: AppLog, place: Place) -> None:
    active = place.beside("active").replica(rocks)
    active.catch_up(large_commit(rocks, 0))
    first = save(active, rocks)
    watching = Watching(rocks, place)
    away = watching.replica()
    away.catch_up(rocks.version)
    assert tables(watching.fetched(first))
    away.close()
    active.catch_up(large_commit(rocks, 10_000))
    second = save(active, rocks)
    assert tables({file.name for file in first.files}) < tables({file.name for file in second.files})
    rocks.grow(2, seed=1)
    rocks.log.storage.delete([names.commit(Version(version)) for version in (1, 2)])
    returned = watching.replica()
    returned.catch_up(rocks.version)
    assert tables(watching.fetched(second)) == tables({file.name for file in second.files}) - tables(
        {file.name for file in first.files}
    )
    assert shown(returned) == rocks.state()
    assert sorted(path.name for path in returned._home.path.iterdir()) == [".lock", "data"]


def test_a_damaged_file_is_fetched_and_the_others_are_kept(rocks: AppLog, place: Place) -> None:
    active = place.beside("active").replica(rocks)
    for number in range(3):
        active.catch_up(large_commit(rocks, number * 10_000))
        active.flush_overlay()
    manifest = save(active, rocks)
    watching = Watching(rocks, place)
    replica = watching.replica()
    replica.catch_up(rocks.version)
    replica.close()
    damaged = sorted(tables({file.name for file in manifest.files}))[0]
    path = place.folder / str(TASK) / "data" / damaged
    garbage = b"garbage" * (path.stat().st_size // 7) + b"!" * (path.stat().st_size % 7)
    path.write_bytes(garbage)
    (place.folder / str(TASK) / "data" / "rocksdb" / "CURRENT").write_bytes(b"nonsense")
    again = watching.replica()
    again.catch_up(rocks.version)
    assert tables(watching.fetched(manifest)) == {damaged}
    assert shown(again) == rocks.state()


def test_a_snapshot_that_is_cleaned_during_its_load_is_replaced_by_a_newer_one(rocks: AppLog, place: Place) -> None:
    active = place.beside("active").replica(rocks)
    active.catch_up(large_commit(rocks, 0))
    first = save(active, rocks)
    rocks.grow(2, seed=2)
    watching = Watching(rocks, place)
    replica = watching.replica()

    def cleaning(call: str, name: str) -> None:
        """After the first file was fetched the active saves another snapshot, and cleaning removes the first one."""
        if call == "get_range" and len(watching.fetched(first)) > 1 and rocks.log.snapshots.versions(TASK) == [1]:
            active.catch_up(rocks.version)
            second = {file.hash for file in save(active, rocks).files}
            gone = [names.snapshot_file(TASK, file.hash) for file in first.files if file.hash not in second]
            rocks.log.storage.delete([names.manifest(TASK, Version(1)), *gone, names.commit(Version(1))])

    watching.storage.before = cleaning
    replica.catch_up(rocks.version)
    assert rocks.log.snapshots.versions(TASK) == [3]
    assert [numbered.event.error for numbered in place.events.since(0).events] == ["ObjectMissing"]  # type: ignore[union-attr]
    assert shown(replica) == rocks.state()


def test_a_storage_failure_during_a_load_keeps_readers_and_files(rocks: AppLog, place: Place) -> None:
    active = place.beside("active").replica(rocks)
    active.catch_up(large_commit(rocks, 0))
    save(active, rocks)
    watching = Watching(rocks, place)
    replica = watching.replica()
    replica.catch_up(rocks.version)
    before = rocks.state()
    for number in range(2):
        active.catch_up(large_commit(rocks, 10_000 * (number + 1)))
        active.flush_overlay()
    second = save(active, rocks)
    rocks.grow(2, seed=3)
    rocks.log.storage.delete([names.commit(Version(version)) for version in (1, 2)])
    replica._log_reader = replica._source._source = LogReader(watching._log)  # without cached commits
    fetched = 0

    def fail_after_one(call: str, name: str) -> None:
        nonlocal fetched
        fetched += call == "get_range"
        if fetched > 1:
            raise StorageUnavailable("the storage is away")

    watching.storage.before = fail_after_one
    with pytest.raises(StorageUnavailable):
        replica.catch_up(rocks.version)
    assert shown(replica, Version(1)) == before, "its readers keep their version"
    watching.storage.before = lambda call, name: None
    watching.storage.calls.clear()
    replica.catch_up(rocks.version)
    new = {file.name for file in second.files}
    assert len(watching.fetched(second)) < len(new)
    assert shown(replica) == rocks.state()


@pytest.mark.parametrize("small_disk", ["8m"], indirect=True)
def test_a_full_disk_ends_a_load_and_the_next_one_continues(rocks: AppLog, place: Place, small_disk: Path) -> None:
    active = place.replica(rocks)
    for number in range(12):
        active.catch_up(large_commit(rocks, number * 10_000, 1_000))
        active.flush_overlay()
    manifest = save(active, rocks)
    assert manifest.bytes > 8 << 20
    watching = Watching(rocks, Place(small_disk / "state", opened=place.opened))
    replica = watching.replica()
    with pytest.raises(DiskFull, match="Free space"):
        replica.catch_up(rocks.version)
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    watching.storage.calls.clear()
    replica.catch_up(rocks.version)
    assert 0 < len(watching.fetched(manifest)) < len(manifest.files)
    assert shown(replica) == rocks.state()
    replica.close()


def test_a_stop_during_a_load_is_continued_after_the_restart(tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"))
    large_commit(app, 0)
    config = config_of(app, tmp_path, snapshots=NO_SNAPSHOTS)
    with running(config) as instance:
        assert instance.wait_ready(60)
        save(instance.replica(TASK), app)
    other = msgspec.structs.replace(config, state_dir=str(tmp_path / "other"))
    slow = msgspec.structs.replace(other, restore=RestoreSettings(bandwidth="256KiB"))
    with running(slow) as instance:
        until(lambda: any(event.bytes_done > 1 << 20 for event in loads(instance)), "a part of the snapshot")
        loading = instance.replica(TASK)._home.loading
    assert list(loading.rglob("*.part"))
    with running(other) as instance:
        assert instance.wait_ready(60)
        kept = max(event.bytes_kept for event in loads(instance))
        last = loads(instance)[-1]
        assert 1 << 20 <= kept < last.bytes_done == last.bytes_total
        assert shown(instance.replica(TASK)) == app.state()
        assert not loading.exists()


def test_a_heartbeat_says_that_a_snapshot_is_being_loaded(tmp_path: Path) -> None:
    """Its task has a size, and must not be taken for one that could as well be restored elsewhere."""
    app = AppLog(str(tmp_path / "log"))
    large_commit(app, 0)
    config = config_of(app, tmp_path, snapshots=NO_SNAPSHOTS)
    with running(config) as instance:
        assert instance.wait_ready(60)
        size = save(instance.replica(TASK), app).bytes
    other = msgspec.structs.replace(config, state_dir=str(tmp_path / "other"))
    with running(msgspec.structs.replace(other, restore=RestoreSettings(bandwidth="256KiB"))) as instance:
        until(lambda: said(instance).loading > 0, "a part of the snapshot")
        found = said(instance)
        assert (found.version, found.running, found.loading) == (0, False, size)
        assert found.bytes < size
    with running(other) as instance:
        assert instance.wait_ready(60)
        found = said(instance)
        assert (found.version, found.running, found.loading) == (app.version, True, 0)


def test_a_heartbeat_names_state_that_is_still_to_be_opened(tmp_path: Path) -> None:
    """A member that returns with many tasks opens a few at a time. Nothing has to be restored for the others."""
    app = AppLog(str(tmp_path / "log"))
    app.grow(3, seed=1)
    config = config_of(app, tmp_path, snapshots=NO_SNAPSHOTS)
    with running(config) as instance:
        assert instance.wait_ready(60)
    returned = Instance(msgspec.structs.replace(config, tasks={}))
    host = InstanceHost(returned, returned.log.storage)
    try:
        found = host.replicas(0.0)[str(TASK)]
        assert (found.version, found.running) == (app.version, False)
        host.host(TASK, active=True)  # nobody opens it, since the instance hasn't started
        assert host.replicas(1.0)[str(TASK)] == msgspec.structs.replace(found, load=None)
        replica = returned.replica(TASK)
        replica.open()
        assert host.replicas(2.0)[str(TASK)].version == replica.version
    finally:
        returned.stop()


def said(instance: Instance) -> Hosted:
    return InstanceHost(instance, instance.log.storage).replicas(0.0)[str(TASK)]


def loads(instance: Instance) -> list[RestoreEvent]:
    """The events of snapshots that were loaded, for one store."""
    events = [each.event for each in instance.events.since(0, limit=10_000).events]
    return [each for each in events if isinstance(each, RestoreEvent) and each.bytes_total and each.store == "counts"]


def test_segments_of_a_restore_count_for_the_bandwidth(rocks: AppLog, place: Place) -> None:
    for number in range(3):
        large_commit(rocks, number * 10_000)
    log = rocks.reopened()
    size = sum(commit.state_bytes(TASK) for version in range(1, 4) if (commit := log.commit(Version(version))))
    clock = ManualClock()
    source = LogReader(log, FileFetcher(1, Bandwidth(size // 100, clock)))
    home = TaskDirectory(place.folder, TASK, "test")
    replica = Replica(home, source, log.app.stores_of(TASK), place.resources, place.events)
    place.opened.append(replica)
    replica.open()
    report = RestoreReporter(place.events, TASK, replica.stores)
    report.started(Version(0), rocks.version)
    replica.catch_up(rocks.version, report)
    assert clock.monotonic() == pytest.approx(100, rel=0.02)
    report.ended(rocks.version)
    replica.catch_up(large_commit(rocks, 90_000), report)
    assert clock.monotonic() == pytest.approx(100, rel=0.02), "a replica that is up to date isn't slowed down"


@pytest.mark.parametrize("tasks", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_many_tasks_with_small_files_are_restored(tasks: int, tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"), partitions=tasks, stores=("counts",))
    app.grow(3, seed=7)
    config = config_of(app, tmp_path, snapshots=NO_SNAPSHOTS)
    with running(config) as instance:
        assert instance.wait_ready(300)
        for hosted in instance.hosted():
            hosted.snapshotter.save()
    fresh = msgspec.structs.replace(config, state_dir=str(tmp_path / "other"))
    with running(fresh) as instance:
        assert instance.wait_ready(300)
        done = Counter(event.task for event in loads(instance) if event.bytes_done == event.bytes_total)
        assert len(done) == tasks
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("fetch")]
        assert 0 < len(threads) <= 16
        for task in app.log.app.tasks():
            assert shown(instance.replica(task), app.version) == app.state(task=task)


def test_a_new_active_continues_the_snapshots_of_the_former_one(tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"))
    limits = SnapshotSettings(bytes="1MiB", ratio=1_000.0)
    large_commit(app, 0, 3_000)
    first = config_of(app, tmp_path, snapshots=limits)
    second = msgspec.structs.replace(
        first, name="two", state_dir=str(tmp_path / "two"), tasks={str(TASK): Role.STANDBY}
    )
    with running(first) as former:
        assert former.wait_ready(60)
        until(lambda: app.log.snapshots.versions(TASK) == [1], "the first snapshot")
        with running(second) as standby:
            assert standby.wait_ready(60)
            former.host(TASK, Role.STANDBY)
            standby.host(TASK, Role.ACTIVE)
            version = large_commit(app, 10_000)
            for instance in (former, standby):
                instance.committed(version)
            until(lambda: app.log.snapshots.versions(TASK) == [1, 2], "the snapshot of the new active")
            manifest = app.log.snapshots.newest(TASK)
            assert manifest is not None
            assert manifest.added_bytes < manifest.bytes - (2 << 20), "the files of the first snapshot are reused"
            standby.host(TASK, Role.STANDBY)
            former.host(TASK, Role.ACTIVE)
            assert former.wait_ready(60)
            until(lambda: former.replica(TASK).version == version, "the newest version")
            former._snapshots.step(0.0)
            assert app.log.snapshots.versions(TASK) == [1, 2], "it knows of the snapshot that the other has saved"


def test_a_kill_costs_only_the_versions_since_the_last_flush(tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"), partitions=2)
    chance = random.Random(3)
    config = config_of(app, tmp_path, state=StateSettings(flush_versions=8), snapshots=NO_SNAPSHOTS)
    with Process(config) as process, process.listening() as client:
        for _ in range(30):
            client.committed(app.random_commit(chance))
            until(lambda: all(task.version == app.version for task in client.status().tasks), "the newest version")
        until(lambda: all(flushed(config.state_dir, task) > 20 for task in app.log.app.tasks()), "a flush")
        process.kill()
    with Process(config) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        for task in app.log.app.tasks():
            events = restores(client, str(task), "counts")
            assert all(event.start_version > 20 for event in events)
            assert not any(event.bytes_total for event in events), "no snapshot is loaded"
        check(client, app)


def flushed(state_dir: str, task: TaskId) -> int:
    checkpoint = Path(state_dir, str(task), ".checkpoint")
    return int(msgspec.json.decode(checkpoint.read_bytes())["stores"]["counts"]) if checkpoint.exists() else 0


def test_a_load_that_is_stopped_raises_closed(rocks: AppLog, place: Place) -> None:
    active = place.beside("active").replica(rocks)
    active.catch_up(large_commit(rocks, 0))
    save(active, rocks)
    watching = Watching(rocks, place)
    replica = watching.replica()
    watching.storage.before = lambda call, name: replica.stop_moving() if call == "get_range" else None
    with pytest.raises(Closed):
        replica.catch_up(rocks.version)
    assert sum(call == "get_range" for call, _ in watching.storage.calls) == 1


def test_a_load_that_a_reader_waits_for_is_reported(rocks: AppLog, place: Place) -> None:
    active = place.beside("active").replica(rocks)
    active.catch_up(large_commit(rocks, 0))
    manifest = save(active, rocks)
    replica = place.replica(rocks)
    replica.report = RestoreReporter(place.events, TASK, replica.stores)
    replica.read_view(rocks.version, wait=30).close()
    events = [each.event for each in place.events.since(0, limit=10_000).events]
    own = [each for each in events if isinstance(each, RestoreEvent) and each.store == "counts"]
    assert own[0].phase == "start"
    assert max(each.bytes_done for each in own) == manifest.bytes
    assert own[-1].total == 2_000
