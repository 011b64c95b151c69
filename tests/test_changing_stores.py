"""Stores that come and go on real Spark: added after cleaning, rolled back, and back again."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli import main
from holdfast.instance.snapshotter import Snapshotter
from holdfast.log import names
from holdfast.log.appfile import AppChanged
from holdfast.log.leadership import Leadership
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.settings.sections import SnapshotSettings
from holdfast.words import Version
from tests.apps import entries_of, game, get, read, settings, write
from tests.instance.app_log import Place

pytestmark = pytest.mark.spark

RELEASE = """
from pathlib import Path
from pyspark.sql import SparkSession
from tests.test_changing_stores import release

def app():
    return release(SparkSession.builder.getOrCreate(), Path.cwd(), "points")
"""


def release(
    spark: SparkSession, folder: Path, *tables: str, log: hf.LogSettings | None = None, **returned: str
) -> hf.App:
    """The app with a table of the best points per player under each name."""
    chosen = settings(folder, returned_stores=returned, log=log or hf.LogSettings())
    app = hf.App("points", settings=chosen, spark=spark)
    stream = app.stream(read(spark, folder / "input"), key="player", timestamp="at")
    for name in tables:
        stream.group_by().aggregate(best=hf.max("points")).store(name)
    return app


def run(app: hf.App, folder: Path, number: int, points: int) -> dict[str, Any]:
    """Runs the app over one more batch, and returns every store's value for ann."""
    write(folder / "input", number, [game("ann", points)])
    with app:
        app.process_all_available()
        stores = [store["store"] for store in get(app, "/v1/stores")[1]["stores"]]
        return {store: entries_of(app, store)["ann"]["best"] for store in stores}


def forget_version_1(folder: Path) -> None:
    """Leaves the log as cleaning does: snapshots of the newest version, and nothing of the first."""
    log = Log.open(open_storage(str(folder / "base/points/log")))
    newest = log.newest()
    assert newest is not None
    for task in log.app.tasks():
        place = Place(folder / "saved")
        replica = place.replica_of(log, task)
        replica.catch_up(Version(newest.version))
        Snapshotter(replica, log, SnapshotSettings()).save()
        replica.close()
    log.storage.delete([names.commit(Version(1))])


def test_stores_come_and_go(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "input", 0, [game("ann", 2)])
    assert "a log is created" in release(spark, tmp_path, "points").plan().changes
    assert not (tmp_path / "base").exists(), "a plan writes nothing"
    assert run(release(spark, tmp_path, "points"), tmp_path, 1, 70) == {"points": 70}
    assert run(release(spark, tmp_path, "points"), tmp_path, 2, 1) == {"points": 70}
    forget_version_1(tmp_path)

    [added] = release(spark, tmp_path, "points", "later").plan().changes
    assert added == "store 'later' (key-value, key player string) is added and begins, empty, after version 3"
    assert run(release(spark, tmp_path, "points", "later"), tmp_path, 3, 30) == {"points": 70, "later": 30}

    assert "store 'later' is not in the code any more" in plan_by_command(tmp_path, monkeypatch, capfd)
    assert run(release(spark, tmp_path, "points"), tmp_path, 4, 90) == {"points": 90}

    with pytest.raises(AppChanged, match="'later' was removed after version 4 and has missed versions 5 to 5"):
        run(release(spark, tmp_path, "points", "later"), tmp_path, 5, 20)
    again = release(spark, tmp_path, "points", "later", later="continue")
    assert run(again, tmp_path, 6, 31) == {"points": 90, "later": 31}


def test_going_back_to_a_release_without_a_store_is_no_error(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """When the store is dropped, the group's newest generation still names its tasks."""
    write(tmp_path / "input", 1, [game("ann", 1)])
    for number, names_ in enumerate([("points",), ("points", "later"), ("points",), ("points",)], start=2):
        app = release(spark, tmp_path, *names_, log=hf.LogSettings(keep_removed="0s"))
        with app:
            write(tmp_path / "input", number, [game("ann", number)])
            app.process_all_available()
            assert {task.subtopology for task in app._started().log.app.tasks()} == (
                {0, 1} if number in (3, 4) else {0}
            )
            assert entries_of(app)["ann"]["best"] == number
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_two_starts_that_add_one_store_need_no_third(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start adds the store, after another version, between the plan of this one and its takeover."""
    write(tmp_path / "input", 1, [game("ann", 0)])
    run(release(spark, tmp_path, "points"), tmp_path, 2, 1)
    take_over = Leadership.take_over

    def take_over_late(*given: Any) -> Leadership:
        monkeypatch.setattr(Leadership, "take_over", take_over)
        run(release(spark.newSession(), tmp_path, "points"), tmp_path, 3, 2)
        run(release(spark.newSession(), tmp_path, "points", "later"), tmp_path, 4, 3)
        return take_over(*given)

    monkeypatch.setattr(Leadership, "take_over", take_over_late)
    with release(spark, tmp_path, "points", "later") as late:
        write(tmp_path / "input", 5, [game("ann", 4)])
        late.process_all_available()
        assert entries_of(late, "later") == entries_of(late, "points") == {"ann": {"best": 4}}


def plan_by_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """What `holdfast plan` prints for the first release."""
    (folder / "first_release.py").write_text(RELEASE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["holdfast", "plan", "first_release:app"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capfd.readouterr().out
