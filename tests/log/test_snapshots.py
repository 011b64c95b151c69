"""Snapshots: incremental, complete once they are visible, verified when they are loaded."""

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import DamagedObject, StorageUnavailable
from holdfast.log import names
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing, Storage
from holdfast.log.snapshots import Manifest
from holdfast.words import TaskId, Version
from tests.log import making
from tests.log.making import TASK, Watched, app_spec, crash_at, load


def folder_of(parent: Path, files: dict[str, bytes]) -> Path:
    folder = parent / f"checkpoint-{len(list(parent.iterdir()))}"
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(log: Log, folder: Path, version: int, task: TaskId = TASK) -> Manifest:
    return log.snapshots.write(task, folder, version=Version(version), commit=f"commit-{version}", stores={"counts": 0})


FILES = {"CURRENT": b"m1", "000001.sst": b"one" * 100, "sub/000002.sst": b"two" * 100, "EMPTY": b""}


def test_a_snapshot_loads_the_files_it_was_written_from(log: Log, tmp_path: Path) -> None:
    manifest = write(log, folder_of(tmp_path, FILES), 7)
    assert (manifest.version, manifest.commit, manifest.stores) == (7, "commit-7", {"counts": 0})
    assert manifest.bytes == manifest.added_bytes == 602
    assert log.snapshots.newest(TASK) == manifest
    loaded: list[int] = []
    load(log, manifest, tmp_path / "loaded", lambda count, origin: loaded.append(count))
    assert contents(tmp_path / "loaded") == FILES
    assert sum(loaded) == 602


def test_only_changed_files_are_uploaded(storage: Storage, tmp_path: Path) -> None:
    watched = Watched(storage)
    log = Log.create_or_open(watched, app_spec())
    write(log, folder_of(tmp_path, FILES), 1)
    watched.calls.clear()
    changed = {**FILES, "CURRENT": b"m2", "000003.sst": b"three" * 100}
    second = write(log, folder_of(tmp_path, changed), 2)
    assert [call for call, _ in watched.calls].count("create_file") == 2
    assert (second.bytes, second.added_bytes) == (1102, 502)
    load(log, second, tmp_path / "loaded")
    assert contents(tmp_path / "loaded") == changed


def test_only_files_of_the_newest_manifest_are_reused(storage: Storage, tmp_path: Path) -> None:
    watched = Watched(storage)
    log = Log.create_or_open(watched, app_spec())
    write(log, folder_of(tmp_path, FILES), 1)
    write(log, folder_of(tmp_path, {"other": b"other"}), 2)
    watched.calls.clear()
    write(log, folder_of(tmp_path, FILES), 3)
    assert [call for call, _ in watched.calls].count("create_file") == len(FILES)


def test_the_newest_snapshot_up_to_a_version_is_found(log: Log, tmp_path: Path) -> None:
    assert log.snapshots.newest(TASK) is None
    folder = folder_of(tmp_path, FILES)
    manifests = {version: write(log, folder, version) for version in (3, 10, 7)}
    write(log, folder, 99, TaskId(0, 1))
    assert log.snapshots.versions(TASK) == [3, 7, 10]
    found = [log.snapshots.newest(TASK, Version(at_most)) for at_most in (2, 3, 9, 10, 11)]
    assert [manifest and manifest.version for manifest in found] == [None, 3, 7, 10, 10]
    assert log.snapshots.newest(TASK) == manifests[10]


def test_a_snapshot_by_another_replica_is_used_as_it_is(log: Log, tmp_path: Path) -> None:
    theirs = write(log, folder_of(tmp_path, FILES), 1)
    assert write(log, folder_of(tmp_path, {"mine": b"same state, other bytes"}), 1) == theirs


@pytest.mark.parametrize("point", ["snapshot.before", "snapshot.middle"])
def test_a_crash_leaves_no_snapshot_and_the_next_one_is_complete(log: Log, tmp_path: Path, point: str) -> None:
    folder = folder_of(tmp_path, FILES)
    with crash_at(point):
        write(log, folder, 1)
    assert log.snapshots.newest(TASK) is None
    load(log, write(log, folder, 1), tmp_path / "loaded")
    assert contents(tmp_path / "loaded") == FILES


def test_a_file_that_a_cleaning_deletes_meanwhile_is_uploaded_again(storage: Storage, tmp_path: Path) -> None:
    taken: list[str] = []

    def cleaning(call: str, name: str) -> None:
        if call == "create" and name == names.manifest(TASK, Version(1)) and not taken:
            taken.extend(storage.list(names.snapshot_files(TASK))[:2])
            storage.delete(taken)

    log = Log.create_or_open(Watched(storage, before=cleaning), app_spec())
    manifest = write(log, folder_of(tmp_path, FILES), 1)
    assert len(taken) == 2
    load(log, manifest, tmp_path / "loaded")
    assert contents(tmp_path / "loaded") == FILES


def test_a_snapshot_that_cannot_be_completed_is_withdrawn(storage: Storage, tmp_path: Path) -> None:
    def vanish(call: str, name: str) -> None:
        if call == "create_file":
            storage.delete([name])

    log = Log.create_or_open(Watched(storage, after=vanish), app_spec())
    with pytest.raises(StorageUnavailable, match="withdrawn"):
        write(log, folder_of(tmp_path, FILES), 1)
    assert log.snapshots.newest(TASK) is None


def test_a_missing_snapshot_file_is_an_error_with_its_name(log: Log, tmp_path: Path) -> None:
    manifest = write(log, folder_of(tmp_path, FILES), 1)
    gone = names.snapshot_file(TASK, manifest.files[0].hash)
    log.storage.delete([gone])
    with pytest.raises(ObjectMissing, match=gone):
        load(log, manifest, tmp_path / "loaded")


def test_a_damaged_newest_manifest_costs_only_a_full_upload(log: Log, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, FILES)
    write(log, folder, 1)
    making.overwrite(log.storage, names.manifest(TASK, Version(1)), b"{}")
    assert log.snapshots.newest(TASK) is None
    load(log, write(log, folder, 2), tmp_path / "loaded")
    assert contents(tmp_path / "loaded") == FILES


def test_large_files_are_loaded_in_pieces(log: Log, tmp_path: Path) -> None:
    large = {"large": os.urandom(5 << 20)}
    manifest = write(log, folder_of(tmp_path, large), 1)
    loaded: list[int] = []
    load(log, manifest, tmp_path / "loaded", lambda count, origin: loaded.append(count) if count else None)
    assert contents(tmp_path / "loaded") == large
    assert loaded == [2 << 20, 2 << 20, 1 << 20]


def test_a_manifest_cannot_write_outside_of_its_folder(log: Log, tmp_path: Path) -> None:
    manifest = write(log, folder_of(tmp_path, {"a": b"1"}), 1)
    outside = msgspec.structs.replace(manifest.files[0], name="../outside")
    with pytest.raises(DamagedObject, match="outside"):
        load(log, msgspec.structs.replace(manifest, files=(outside,)), tmp_path / "loaded")
    assert not (tmp_path / "outside").exists()
