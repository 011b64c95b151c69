"""Stores that aren't durable: replicas follow and serve them, but snapshots don't have them and restores skip them."""

import random
from datetime import timedelta

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance.replica import ReplicaSettings
from holdfast.instance.snapshotter import Snapshotter
from holdfast.log import names
from holdfast.log.cleaning import Cleaner
from holdfast.log.segments import STATE
from holdfast.metrics import REGISTRY
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version
from tests.instance.app_log import TASK, AppLog, Place, abandon, key_of, new_url, shown
from tests.log.making import changes

SMALL = ReplicaSettings(overlay_bytes=6_000, batch_bytes=8_000, flush_versions=5)
DIRECT = ReplicaSettings(overlay_bytes=1, batch_bytes=1)


def spec(name: str, engine: str, *, durable: bool) -> StoreSpec:
    return StoreSpec(name=name, key=Schema.of(k="binary"), codec="rows/1", engine=engine, durable=durable)


@pytest.fixture(params=["rocksdb", "memory"])
def app(request: pytest.FixtureRequest) -> AppLog:
    specs = (spec("counts", "rocksdb", durable=True), spec("recent", request.param, durable=False))
    return AppLog(new_url(), specs=specs, inline_limit=0)


def put(app: AppLog, number: int) -> Version:
    return app.commit({TASK: {store: {key_of(number): b"%d" % number} for store in ("counts", "recent")}})


def emptied(store: str = "recent") -> float:
    return REGISTRY.get_sample_value("holdfast_volatile_stores_emptied_total", {"store": store}) or 0.0


def test_replicas_follow_it(app: AppLog, place: Place) -> None:
    chance = random.Random(1)
    before = emptied()
    replica = place.replica(app, SMALL)
    for _ in range(30):
        version = app.random_commit(chance)
        replica.catch_up(version)
        if replica.flush_due():
            replica.flush_overlay()
        assert shown(replica, version) == app.state(version)
    assert emptied() == before, "a new app's store was not emptied"


@pytest.mark.parametrize("app", ["rocksdb"], indirect=True)
def test_a_restart_continues_with_the_state_on_disk(app: AppLog, place: Place) -> None:
    chance = random.Random(2)
    for step in range(8):
        replica = place.replica(app, SMALL)
        for _ in range(chance.randrange(1, 6)):
            app.random_commit(chance)
        replica.catch_up(app.version)
        assert shown(replica) == app.state()
        if step == 0:
            replica.flush_overlay()  # with nothing on disk a replica would be a new one
        replica.close() if step % 2 else abandon(replica)


@pytest.mark.parametrize("app", ["memory"], indirect=True)
@pytest.mark.parametrize("end", ["close", "abandon"])
def test_only_a_store_in_memory_is_lost_with_the_process(app: AppLog, place: Place, end: str) -> None:
    replica = place.replica(app, SMALL)
    replica.catch_up(put(app, 1))
    replica.flush_overlay()
    replica.close() if end == "close" else abandon(replica)
    replica = place.replica(app, SMALL)
    assert replica.version == 1
    replica.catch_up(app.commit({TASK: {"recent": {key_of(2): b"2"}}}))
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {key_of(2): b"2"}}


def test_a_new_replica_starts_with_an_empty_store(app: AppLog, place: Place) -> None:
    app.grow(6, 3)
    before = emptied()
    replica = place.beside("new").caught_up(app, SMALL)
    assert emptied() == before + 1
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {}}
    version = app.commit({TASK: {"counts": {key_of(1): b"1"}, "recent": {key_of(2): b"2"}}})
    replica.catch_up(version)
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {key_of(2): b"2"}}


def test_it_is_not_in_snapshots(app: AppLog, place: Place) -> None:
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
    other = place.beside("new").caught_up(app, SMALL)
    assert shown(other) == {"counts": app.state()["counts"], "recent": {}}
    other.flush_overlay()
    other.close()
    again = place.beside("new").caught_up(app, SMALL)  # also after a restart
    assert shown(again) == {"counts": app.state()["counts"], "recent": {}}


@pytest.mark.parametrize("damage", ["gone", "garbage"])
@pytest.mark.parametrize("settings", [SMALL, DIRECT], ids=["overlay", "direct"])
def test_a_replica_whose_segments_are_gone_starts_empty(
    app: AppLog, place: Place, settings: ReplicaSettings, damage: str
) -> None:
    """It was away while segments were cleaned: it must not show values and keys that were changed and deleted since."""
    replica = place.replica(app, settings)
    put(app, 1)
    replica.catch_up(put(app, 2))
    replica.flush_overlay()
    replica.close()
    app.commit({TASK: {"counts": {key_of(1): None}, "recent": {key_of(1): None, key_of(2): b"new"}}})
    missing = app.log.storage.list(names.volatile_segments(TASK))[-1:]
    app.log.storage.delete(missing)
    if damage == "garbage":
        app.log.storage.create(missing[0], b"garbage")
    put(app, 3)
    before = emptied()
    replica = place.replica(app, settings)
    replica.catch_up(app.version)
    assert emptied() == before + 1
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {}}
    replica.catch_up(put(app, 4))
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {key_of(4): b"4"}}
    replica.flush_overlay()
    replica.close()
    assert emptied() == before + 1
    if app.specs[1].engine == "rocksdb":
        assert shown(place.replica(app, settings))["recent"] == {key_of(4): b"4"}


@pytest.mark.parametrize("app", ["rocksdb"], indirect=True)
def test_damage_in_a_volatile_store_does_not_affect_durable_ones(app: AppLog, place: Place) -> None:
    replica = place.replica(app, SMALL)
    replica.catch_up(put(app, 1))
    replica.close()
    (place.folder / str(TASK) / "volatile" / "rocksdb" / "CURRENT").write_bytes(b"garbage")
    replica = place.replica(app, SMALL)
    assert replica.version == 1
    assert shown(replica) == {"counts": app.state()["counts"], "recent": {}}


def test_a_task_without_durable_stores_has_snapshots_too(place: Place) -> None:
    app = AppLog(new_url(), specs=(spec("recent", "rocksdb", durable=False),))
    replica = place.replica(app, SMALL)
    for number in range(5):
        app.commit({TASK: {"recent": {key_of(number): b"x"}}})
    replica.catch_up(app.version)
    assert Snapshotter(replica, app.log, SnapshotSettings()).save() == 5
    app.log.storage.delete([names.commit(Version(version)) for version in range(1, 4)])
    other = place.beside("b").caught_up(app, SMALL)
    assert (other.version, shown(other)) == (5, {"recent": {}})
    other.catch_up(app.commit({TASK: {"recent": {key_of(9): b"y"}}}))
    assert shown(other) == {"recent": {key_of(9): b"y"}}


def test_cleaning_keeps_what_the_first_version_of_a_new_store_has_written() -> None:
    """The app file of the newest commit decides, and doesn't have the store yet."""
    before = AppLog(new_url(), specs=(spec("counts", "rocksdb", durable=True),))
    before.commit({TASK: {"counts": {key_of(1): b"1"}}})
    app = before.changed(spec("counts", "rocksdb", durable=True), spec("recent", "rocksdb", durable=False))
    log = app.reopened()
    cleaner = Cleaner(log, retention=timedelta(days=1), sinks=lambda: (), clock=SYSTEM_CLOCK, check_leads=lambda: None)
    version = Version(app.version + 1)
    parts = [(STATE, "recent", changes({key_of(1): b"first"}))]
    written = log.write_parts(TASK, version, parts, volatile={"recent"}, inline_limit=4096)
    log.write_together(version, {str(TASK): written}, inline_bytes=0)
    (stored,) = log.storage.list(names.VOLATILE)
    cleaner.clean()
    assert [*log.storage.list(names.VOLATILE)] == [stored]
