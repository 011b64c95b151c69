"""Stores that aren't durable: served and followed like any other, in no snapshot, and never brought back."""

import random
from pathlib import Path

import pytest

from holdfast.instance.replica import ReplicaSettings
from holdfast.instance.snapshotter import Snapshotter
from holdfast.log import names
from holdfast.metrics import REGISTRY
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version
from tests.instance.app_log import TASK, AppLog, Place, abandon, key_of, new_url, shown

SMALL = ReplicaSettings(overlay_bytes=6_000, batch_bytes=8_000, flush_versions=5)


def spec(name: str, engine: str, *, durable: bool) -> StoreSpec:
    return StoreSpec(name=name, key=Schema.of(k="binary"), codec="rows/1", engine=engine, durable=durable)


@pytest.fixture(params=["rocksdb", "memory"])
def app(request: pytest.FixtureRequest) -> AppLog:
    specs = (spec("counts", "rocksdb", durable=True), spec("recent", request.param, durable=False))
    return AppLog(new_url(), specs=specs, inline_limit=0)


def skipped(store: str = "recent") -> float:
    return REGISTRY.get_sample_value("holdfast_volatile_segments_skipped_total", {"store": store}) or 0.0


def emptied(store: str = "recent") -> float:
    return REGISTRY.get_sample_value("holdfast_volatile_stores_emptied_total", {"store": store}) or 0.0


def test_it_is_followed_like_any_other(app: AppLog, place: Place) -> None:
    chance = random.Random(1)
    before = emptied()
    replica = place.replica(app, SMALL)
    for _ in range(30):
        version = app.random_commit(chance)
        replica.catch_up(version)
        if replica.flush_due():
            replica.flush_overlay()
        assert shown(replica, version) == app.state(version)
    assert emptied() == before, "a new app's store is no lost one"
    replica.close()


@pytest.mark.parametrize("app", ["rocksdb"], indirect=True)
def test_a_restart_goes_on_with_what_is_on_disk(app: AppLog, place: Place) -> None:
    chance = random.Random(2)
    for step in range(8):
        replica = place.replica(app, SMALL)
        for _ in range(chance.randrange(1, 6)):
            app.random_commit(chance)
        replica.catch_up(app.version)
        assert shown(replica) == app.state()
        replica.close() if step % 2 else abandon(replica)


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_what_was_in_memory_alone_is_lost_with_the_process_and_nothing_else(place: Place, end: str) -> None:
    specs = (spec("counts", "rocksdb", durable=True), spec("recent", "memory", durable=False))
    app = AppLog(new_url(), specs=specs)
    replica = place.replica(app, SMALL)
    app.commit({TASK: {"counts": {key_of(1): b"1"}, "recent": {key_of(1): b"1"}}})
    replica.catch_up(app.version)
    replica.flush_overlay()
    replica.close() if end == "close" else abandon(replica)
    replica = place.replica(app, SMALL)
    assert replica.version == 1
    replica.catch_up(app.commit({TASK: {"recent": {key_of(2): b"2"}}}))
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {key_of(2): b"2"}}
    replica.close()


def test_a_new_replica_begins_with_an_empty_one(app: AppLog, place: Place, tmp_path: Path) -> None:
    chance = random.Random(3)
    for _ in range(6):
        app.random_commit(chance)
    before = emptied()
    replica = Place(tmp_path / "new").replica(app, SMALL)
    replica.catch_up(app.version)
    assert emptied() == before + 1
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {}}
    version = app.commit({TASK: {"counts": {key_of(1): b"1"}, "recent": {key_of(2): b"2"}}})
    replica.catch_up(version)
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {key_of(2): b"2"}}
    replica.close()


def test_no_snapshot_has_it(app: AppLog, place: Place, tmp_path: Path) -> None:
    chance = random.Random(4)
    replica = place.replica(app, SMALL)
    for _ in range(6):
        app.random_commit(chance)
    app.commit({TASK: {"counts": {key_of(7): b"here"}, "recent": {key_of(7): b"not in a snapshot"}}})
    replica.catch_up(app.version)
    saved = Snapshotter(replica, app.log, SnapshotSettings()).save()
    manifest = app.log.snapshots.manifest(TASK, saved)
    assert manifest is not None
    assert {file.name.split("/")[0] for file in manifest.files} == {"rocksdb"}
    replica.close()
    other = Place(tmp_path / "new").replica(app, SMALL)
    other.catch_up(app.version)
    assert shown(other) == {"counts": app.state()["counts"], "recent": {}}
    other.flush_overlay()
    other.close()
    again = Place(tmp_path / "new").replica(app, SMALL)  # and it stays so after a restart
    again.catch_up(app.version)
    assert shown(again) == {"counts": app.state()["counts"], "recent": {}}
    again.close()


def test_a_segment_that_is_gone_is_skipped_and_counted(app: AppLog, place: Place) -> None:
    replica = place.replica(app, SMALL)
    app.commit({TASK: {"counts": {key_of(1): b"1"}, "recent": {key_of(1): b"1"}}})
    replica.catch_up(app.version)
    app.commit({TASK: {"counts": {key_of(2): b"2"}, "recent": {key_of(2): b"2"}}})
    app.log.storage.delete(app.log.storage.list(names.volatile_segments(TASK))[-1:])
    app.commit({TASK: {"counts": {key_of(3): b"3"}, "recent": {key_of(3): b"3"}}})
    before = skipped()
    replica.catch_up(app.version)
    assert skipped() == before + 1
    assert shown(replica)["counts"] == app.state()["counts"]
    assert sorted(shown(replica)["recent"]) == [key_of(1), key_of(3)]
    replica.close()


def test_damage_there_costs_nothing_that_is_durable(place: Place) -> None:
    specs = (spec("counts", "rocksdb", durable=True), spec("recent", "rocksdb", durable=False))
    app = AppLog(new_url(), specs=specs)
    replica = place.replica(app, SMALL)
    app.commit({TASK: {"counts": {key_of(1): b"1"}, "recent": {key_of(1): b"1"}}})
    replica.catch_up(app.version)
    replica.close()
    (place.folder / str(TASK) / "volatile" / "rocksdb" / "CURRENT").write_bytes(b"not what was written")
    replica = place.replica(app, SMALL)
    assert replica.version == 1
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {}}
    replica.close()


def test_a_task_without_durable_stores_still_has_snapshots_to_go_on_from(tmp_path: Path) -> None:
    app = AppLog(new_url(), specs=(spec("recent", "rocksdb", durable=False),))
    replica = Place(tmp_path / "a").replica(app, SMALL)
    for number in range(5):
        app.commit({TASK: {"recent": {key_of(number): b"x"}}})
    replica.catch_up(app.version)
    assert Snapshotter(replica, app.log, SnapshotSettings()).save() == 5
    app.log.storage.delete([names.commit(Version(version)) for version in range(1, 5)])
    other = Place(tmp_path / "b").replica(app, SMALL)
    other.catch_up(app.version)
    assert (other.version, shown(other)) == (5, {"recent": {}})
    other.catch_up(app.commit({TASK: {"recent": {key_of(9): b"y"}}}))
    assert shown(other) == {"recent": {key_of(9): b"y"}}
    other.close()
    replica.close()
