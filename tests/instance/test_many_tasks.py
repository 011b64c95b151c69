"""Many tasks in one instance: what is read and written doesn't grow with tasks times versions."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.instance import instance as instance_module
from holdfast.instance import replica_check
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.settings.sections import LogSettings, MemorySettings, SnapshotSettings
from holdfast.words import Version
from tests.instance.app_log import new_url, spec
from tests.log import making
from tests.log.making import Watched

TASKS, VERSIONS = 64, 150


def grown(log: Log, versions: int, tasks: int = TASKS) -> None:
    """Adds versions that change one key of the store `s00` of the first tasks."""
    previous = log.newest()
    for _ in range(versions):
        version = Version(previous.version + 1 if previous else 1)
        sealed = making.sealed({b"\x01key": b"%d" % version}, "s00")
        segments = {
            str(task): (log.write_segment(task, version, sealed, inline_limit=4_096),)
            for task in log.app.tasks()[:tasks]
        }
        previous = making.next_commit(log, previous, segments)
        log.create_commit(previous)


def new_log(url: str, *, stores: int = 1) -> Log:
    specs = [spec(f"s{number:02d}", "rocksdb") for number in range(stores)]
    return Log.create_or_open(open_storage(url), making.app_spec(*specs, partitions=TASKS))


def config_of(log: Log, url: str, tmp_path: Path) -> InstanceConfig:
    return InstanceConfig(
        app="app",
        name="one",
        app_file=log.app.number,
        log_url=url,
        state_dir=str(tmp_path / "state"),
        tasks={str(task): Role.ACTIVE for task in log.app.tasks()},
        log=LogSettings(fsync=False),
        memory=MemorySettings(limit="512MiB"),
        snapshots=SnapshotSettings(enabled=False),
    )


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch, config: InstanceConfig) -> Iterator[tuple[Instance, Watched]]:
    """An instance at the newest version, and the requests that it makes to its log."""
    opened: list[Watched] = []

    def open_watched(url: str, *arguments: object, **options: object) -> Storage:
        opened.append(Watched(open_storage(url)))
        return opened[0]

    monkeypatch.setattr(instance_module, "open_storage", open_watched)
    instance = Instance(config)
    instance.start()
    try:
        assert instance.wait_ready(120)
        yield instance, opened[0]
    finally:
        instance.stop()


def commits_read(storage: Watched) -> Counter[str]:
    return Counter(name for call, name in storage.calls if call == "get" and name.startswith("commits/"))


def test_a_restore_reads_each_commit_once_per_instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = new_url()
    log = new_log(url)
    grown(log, VERSIONS)
    with running(monkeypatch, config_of(log, url, tmp_path)) as (instance, storage):
        reads = commits_read(storage)
        assert sum(reads.values()) <= 1.1 * VERSIONS, reads.most_common(3)
        for hosted in instance.hosted():
            with hosted.replica.read_view(Version(VERSIONS)) as view:
                assert view.get("s00", b"\x01key") == b"%d" % VERSIONS


def test_after_a_restart_the_first_look_at_snapshots_reads_no_tail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = new_url()
    log = new_log(url)
    grown(log, VERSIONS)
    config = msgspec.structs.replace(config_of(log, url, tmp_path), snapshots=SnapshotSettings())
    with running(monkeypatch, config) as (instance, _):
        applied = [hosted.replica.applied_bytes for hosted in instance.hosted()]
    with running(monkeypatch, config) as (instance, storage):
        assert [hosted.replica.applied_bytes for hosted in instance.hosted()] == applied
        for hosted in instance.hosted():
            assert not hosted.snapshotter.step(), "neither the size nor the age of the tail makes one due"
        most = 10 + replica_check.VERSIONS  # the newest, the first, looks for new ones; and the checks of all tasks
        assert sum(commits_read(storage).values()) <= most


@pytest.mark.parametrize("changed", [1, TASKS])
def test_a_version_is_read_once_however_many_tasks_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: int
) -> None:
    url = new_url()
    log = new_log(url)
    grown(log, 1)
    config = msgspec.structs.replace(config_of(log, url, tmp_path), poll_seconds=600)
    with running(monkeypatch, config) as (instance, storage):
        for version in map(Version, range(2, 12)):
            grown(log, 1, tasks=changed)
            before = len(storage.calls)
            instance.committed(version)
            for hosted in instance.hosted():
                assert hosted.replica.published.wait_for(version, 60)
            assert sum(call == "get" for call, _ in storage.calls[before:]) <= 2
            for number, hosted in enumerate(instance.hosted()):
                with hosted.replica.read_view(version) as view:
                    assert view.get("s00", b"\x01key") == (b"%d" % version if number < changed else b"1")
        for hosted in instance.hosted():
            hosted.replica.flush_overlay()
    with running(monkeypatch, config) as (instance, _):
        assert {hosted.replica.version for hosted in instance.hosted()} == {11}


def test_a_flush_writes_nothing_for_a_store_that_did_not_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = new_url()
    log = new_log(url, stores=20)
    grown(log, 1)
    with running(monkeypatch, config_of(log, url, tmp_path)) as (instance, _):
        before = set((tmp_path / "state").rglob("*.sst"))
        for hosted in instance.hosted():
            hosted.replica.flush_overlay()
        new = set((tmp_path / "state").rglob("*.sst")) - before
        assert 0 < len(new) <= 2 * TASKS, "one file for the store that changed, and one for the mark"
