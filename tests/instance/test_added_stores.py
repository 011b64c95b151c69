"""Stores that are added when the first versions are gone, are removed, and come back."""

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance.snapshotter import Snapshotter
from holdfast.log.changing import ChangeRules
from holdfast.log.cleaning import Cleaner
from holdfast.log.log import Log
from holdfast.settings.sections import SnapshotSettings
from holdfast.words import TaskId, Version
from tests.instance.app_log import TASK, AppLog, Place, abandon, new_url, shown, spec
from tests.log.making import alone

NEW_TASK = TaskId(1, 0)


@pytest.fixture(params=["rocksdb", "memory"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def saved(app: AppLog, place: Place, task: TaskId = TASK) -> Version:
    """Saves a snapshot of a task at the newest version."""
    replica = place.replica(app, task=task)
    try:
        replica.catch_up(app.version)
        return Snapshotter(replica, app.log, SnapshotSettings()).save()
    finally:
        replica.close()


def cleaned(app: AppLog, place: Place) -> None:
    """Deletes the first versions: two snapshots cover them."""
    for _ in range(2):
        app.grow(5, seed=app.version)
        saved(app, place)
    app.grow(3, seed=app.version)
    Cleaner(app.log, retention=timedelta(0), sinks=lambda: (), clock=SYSTEM_CLOCK, check_leads=alone).clean()
    assert app.log.commit(Version(1)) is None


def test_a_task_that_is_added_late_begins_after_the_newest_version(tmp_path: Path, engine: str) -> None:
    app = AppLog(new_url(), engine=engine, stores=("counts",))
    place = Place(tmp_path / "state")
    cleaned(app, place)
    added = app.version
    app = app.changed(spec("counts", engine), spec("late", engine), apart=("late",))
    late = app.log.app.store("late")
    assert late is not None
    assert late.after == added
    replica = place.replica(app, task=NEW_TASK)
    replica.catch_up(app.version)
    assert shown(replica, added) == {"late": {}}, "it can be read before its first version"
    app.grow(9, seed=7)
    replica.catch_up(app.version)
    assert shown(replica) == app.state(task=NEW_TASK)
    abandon(replica)

    again = place.replica(app, task=NEW_TASK)
    again.catch_up(app.version)
    assert shown(again) == app.state(task=NEW_TASK)
    fresh = place.beside("fresh").replica(app, task=NEW_TASK)
    fresh.catch_up(app.version)
    assert shown(fresh) == app.state(task=NEW_TASK)
    place.close()


def test_a_task_gains_a_store(tmp_path: Path, engine: str) -> None:
    app = AppLog(new_url(), engine=engine, stores=("counts",))
    place = Place(tmp_path / "state")
    cleaned(app, place)
    app = app.changed(spec("counts", engine), spec("late", engine))
    replica = place.replica(app)
    replica.catch_up(app.version)
    assert shown(replica) == app.state()
    assert app.state()["late"] == {}
    app.grow(9, seed=7)
    replica.catch_up(app.version)
    assert shown(replica) == app.state()
    assert app.state()["late"]
    abandon(replica)
    assert shown(place.caught_up(app)) == app.state()
    fresh = place.beside("fresh").caught_up(app)
    assert shown(fresh) == app.state(), "a snapshot from before the store was added is used"
    place.close()


def test_a_snapshot_is_used_for_the_stores_that_it_has(tmp_path: Path, engine: str) -> None:
    """A replica of earlier code goes on for a while and saves a snapshot, which has nothing of the new store."""
    app = AppLog(new_url(), engine=engine, stores=("counts",))
    place = Place(tmp_path / "state")
    cleaned(app, place)
    old = Log.open(app.log.storage)
    app = app.changed(spec("counts", engine), spec("late", engine))
    app.commit({TASK: {"counts": {b"\x01a": b"1"}}})
    earlier = place.beside("earlier").replica(app, log=old)
    earlier.catch_up(app.version)
    with_old_code = Snapshotter(earlier, app.log, SnapshotSettings()).save()
    app.grow(4, seed=3)
    fresh = place.beside("fresh").caught_up(app)
    assert shown(fresh) == app.state()
    with_new_code = saved(app, place.beside("new"))
    found = {version: app.log.snapshots.manifest(TASK, version) for version in (with_old_code, with_new_code)}
    assert [sorted(each.stores) for each in found.values() if each] == [["counts"], ["counts", "late"]]
    place.close()


@pytest.mark.parametrize("choice", ["continue", "start_over"])
def test_a_store_that_comes_back(tmp_path: Path, engine: str, choice: str) -> None:
    """It is kept while the code doesn't have it, also by snapshots; then it goes on, or it is empty."""
    both = (spec("counts", engine), spec("late", engine))
    app = AppLog(new_url(), specs=both)
    place = Place(tmp_path / "state")
    app.grow(5, seed=1)
    kept = app.state()["late"]
    app = app.changed(spec("counts", engine))
    cleaned(app, place.beside("without"))
    assert app.state()["late"] == kept
    replica = place.beside("without").caught_up(app)
    assert set(replica.due(app.version)) == {"counts"}, "nothing is due in a removed store: no task would do it"
    replica.close()
    app = app.changed(*both, rules=ChangeRules(returned={"late": choice}))
    expected = kept if choice == "continue" else {}
    if choice == "start_over":
        app.history[TASK, app.version]["late"] = {}
    for folder in ("without", "fresh"):
        replica = place.beside(folder).caught_up(app)
        assert shown(replica)["late"] == expected
        replica.close()
    app.grow(9, seed=2)
    for folder in ("without", "fresh", "fresher"):
        replica = place.beside(folder).caught_up(app)
        assert shown(replica) == app.state()
        replica.close()


def test_a_store_that_is_deleted_leaves_versions_that_can_be_read(tmp_path: Path, engine: str) -> None:
    app = AppLog(new_url(), specs=(spec("counts", engine),))
    place = Place(tmp_path / "state")
    app.grow(5, seed=1)
    app = app.changed(spec("counts", engine), spec("late", engine))
    app.grow(2, seed=2)
    data = tmp_path / "state" / str(TASK) / "data"
    place.caught_up(app).close()
    assert {folder.name for folder in data.iterdir()} == {engine, f"{engine}@5"}
    app = app.changed(spec("counts", engine))
    app.grow(2, seed=3)
    app = app.changed(spec("counts", engine), rules=ChangeRules(keep_removed=timedelta(0)))
    app.grow(2, seed=4)
    for folder in (place, place.beside("fresh")):
        replica = folder.caught_up(app)
        assert shown(replica) == {"counts": app.state()["counts"]}
        replica.close()
    assert {folder.name for folder in data.iterdir()} == {engine}
