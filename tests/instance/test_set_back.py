"""A log that is set back to a backup while instances run on: what they have of the abandoned timeline is given up."""

import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Closed
from holdfast.instance.events import Events
from holdfast.instance.log_reader import LogReader
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.replica_disk import VersionStamp
from holdfast.instance.snapshotter import Snapshotter
from holdfast.instance.updater import ReplicaUpdater, TaskProgress
from holdfast.log import names
from holdfast.log.commits import BEGINNING, Point
from holdfast.log.log import Log, LogMissing, LostRace
from holdfast.settings.sections import RestoreSettings, RetrySettings, SnapshotSettings
from holdfast.words import NOTHING, TaskId, Version
from tests.instance.app_log import TASK, AppLog, Place, abandon, key_of, shown, spec
from tests.log.making import grow, next_commit

OFTEN = ReplicaSettings(flush_versions=1, overlay_bytes=1 << 10)


class Backups:
    """The folder of an app's log, with a copy of it at every version."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._copies = folder / "log", folder / "copies"
        self.app = AppLog(str(self.folder))
        self.save()

    def save(self) -> None:
        copy = self._copies / str(self.app.version)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)

    def make(self, versions: int, timeline: str) -> None:
        """Makes versions, each with the same key and one of its own, and saves a copy after each."""
        for _ in range(versions):
            version = self.app.version + 1
            entry: dict[bytes, bytes | None] = {key_of(0): f"{timeline}{version}".encode()}
            self.app.commit({TASK: {"counts": {**entry, key_of(version): timeline.encode()}}})
            self.save()

    def set_back(self, version: int) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._copies / str(version), self.folder)
        self.app.log = Log.open(self.app.log.storage)
        self.app.go_back(Version(version))


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    return Backups(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "state")
    yield made
    made.close()


def reader_of(replica: Replica) -> LogReader:
    return replica._log_reader


SET_BACK = [(6, 3), (6, 5), (6, 0), (40, 1)]
"""Versions that were made, and the one that the log is set back to."""


@pytest.mark.parametrize(("made", "to"), SET_BACK)
@pytest.mark.parametrize("settings", [None, OFTEN], ids=["in memory", "on disk"])
def test_a_task_that_names_its_commit_reads_no_abandoned_state(
    backups: Backups, place: Place, made: int, to: int, settings: ReplicaSettings | None
) -> None:
    backups.make(made, "old")
    replica = place.caught_up(backups.app, settings)
    abandoned = backups.app.point
    backups.set_back(to)
    backups.make(made - to, "new")
    assert backups.app.point.version == abandoned.version
    with replica.read_view(backups.app.version, commit=backups.app.point.commit) as view:
        assert view.commit == backups.app.point.commit
    assert shown(replica) == backups.app.state()
    with pytest.raises(VersionNotAvailable, match=f"commit {abandoned.commit} of it was asked for"):
        replica.read_view(abandoned.version, commit=abandoned.commit)
    assert replica.must_look_back is False


@pytest.mark.parametrize("newer", [0, 1, 2, 3, 4])
def test_a_reader_forgets_the_commits_it_has_kept(backups: Backups, newer: int) -> None:
    backups.make(6, "old")
    source = LogReader(backups.app.log)
    assert [source.commit(Version(each)) is not None for each in range(1, 7)] == [True] * 6
    backups.set_back(3)
    backups.make(newer, "new")
    assert source.newest() == 3 + newer
    assert source.timeline == 1
    for version in range(1, 4 + newer):
        assert source.commit(Version(version)) == backups.app.log.commit(Version(version))
    assert source.commit(Version(4 + newer)) is None


LOOKS: dict[str, Callable[[LogReader, Point], Any]] = {
    "a look for the newest version": lambda source, newest: source.newest(),
    "the driver's report": lambda source, newest: source.learn(*newest),
    "a task's request": lambda source, newest: source.has(newest),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("newer", [1, 3, 4, 6])
def test_whatever_shows_that_the_log_was_set_back_is_noticed(
    backups: Backups, look: Callable[[LogReader, Point], Any], newer: int
) -> None:
    backups.make(6, "old")
    source = LogReader(backups.app.log)
    source.newest()
    backups.set_back(3)
    backups.make(newer, "new")
    look(source, backups.app.point)
    source.follow()
    assert source.timeline == 1
    assert source.newest_known == backups.app.version


def test_a_look_for_the_next_version_notices_that_it_does_not_follow(backups: Backups) -> None:
    backups.make(6, "old")
    source = LogReader(backups.app.log)
    source.newest()
    backups.set_back(3)
    backups.make(4, "new")
    assert source.follow() == 7
    assert source.timeline == 1


def test_a_started_driver_that_reports_an_older_version_has_the_reader_look(backups: Backups) -> None:
    backups.make(6, "old")
    source = LogReader(backups.app.log)
    source.newest()
    backups.set_back(3)
    assert source.learn(*backups.app.point) == 3
    backups.set_back(0)
    assert source.learn(*BEGINNING) == NOTHING
    assert source.timeline == 2


def test_a_report_of_an_older_version_of_the_same_timeline_changes_nothing(backups: Backups) -> None:
    backups.make(3, "old")
    three = backups.app.point
    backups.make(3, "old")
    source = LogReader(backups.app.log)
    source.newest()
    assert source.learn(*three) == 6
    assert source.has(three)
    assert source.timeline == 0


def test_a_read_under_way_when_the_log_was_set_back_is_not_kept(backups: Backups) -> None:
    backups.make(6, "old")
    source = LogReader(backups.app.log)
    source.newest()
    read = source.log.commit

    def slow(version: Version) -> Any:
        found = read(version)
        if version == 5 and source.timeline == 0:
            backups.set_back(3)
            backups.make(3, "new")
            assert source.newest() == 6
        return found

    source.log.commit = slow  # type: ignore[method-assign]
    found = source.commit(Version(5))
    assert found == backups.app.log.commit(Version(5))
    assert source.newest_known == 6


def test_a_log_that_is_gone_is_not_a_log_that_was_set_back(backups: Backups, place: Place) -> None:
    """Such as a volume that isn't mounted: what is here is served until it is back."""
    backups.make(6, "old")
    replica = place.caught_up(backups.app)
    away = backups.folder.rename(backups.folder.with_name("away"))
    with pytest.raises(LogMissing):
        reader_of(replica).newest()
    assert not replica.must_look_back
    assert shown(replica) == backups.app.state()
    away.rename(backups.folder)
    assert reader_of(replica).newest() == 6
    assert reader_of(replica).timeline == 0


def test_versions_that_were_cleaned_are_not_a_log_that_was_set_back(backups: Backups) -> None:
    backups.make(6, "old")
    source = LogReader(backups.app.log)
    source.newest()
    backups.make(4, "old")
    backups.app.log.storage.delete([names.commit(Version(each)) for each in range(1, 8)])
    assert source.newest() == 10
    assert source.timeline == 0


@pytest.mark.parametrize("settings", [None, OFTEN], ids=["in memory", "on disk"])
@pytest.mark.parametrize("kept", [2, 3])
def test_a_replica_keeps_what_the_log_still_has(
    backups: Backups, place: Place, settings: ReplicaSettings | None, kept: int
) -> None:
    backups.make(kept, "old")
    replica = place.caught_up(backups.app, settings)
    backups.make(6 - kept, "old")
    assert reader_of(replica).newest() == 6
    backups.set_back(3)
    backups.make(1, "new")
    opened = replica.openings
    assert reader_of(replica).newest() == 4
    assert replica.must_look_back
    for _ in range(2):
        replica.catch_up(Version(4))
    assert shown(replica) == backups.app.state()
    assert replica.openings == opened, "it was not opened again"


class Steps(ThreadPoolExecutor):
    """Runs what is submitted at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def updated(replica: Replica) -> tuple[ReplicaUpdater, TaskProgress]:
    updater = ReplicaUpdater(reader_of(replica), Events(), RestoreSettings(), RetrySettings(), pool=Steps(1))
    return updater, updater.add(replica)


@pytest.mark.parametrize(("made", "to"), SET_BACK)
@pytest.mark.parametrize("newer", [0, 1, 5, 6, 7])
def test_replicas_settle_after_the_log_was_set_back(
    backups: Backups, place: Place, made: int, to: int, newer: int
) -> None:
    backups.make(made, "old")
    replica = place.caught_up(backups.app)
    updater, progress = updated(replica)
    updater.step(0.0)
    assert progress.readable
    backups.set_back(to)
    backups.make(newer, "new")
    updater.committed(*backups.app.point)
    for _ in range(4):
        updater.step(0.0)
    assert (progress.readable, progress.failures) == (True, 0)
    assert shown(replica) == backups.app.state()
    openings = replica.openings
    backups.make(3, "newer")
    for _ in range(4):
        updater.step(0.0)
    assert (replica.openings, shown(replica)) == (openings, backups.app.state())


@pytest.mark.parametrize("seed", [*range(6), 1041])
def test_whatever_happens_between_set_backs_a_task_reads_what_its_commit_has(
    backups: Backups, place: Place, seed: int
) -> None:
    chance = random.Random(seed)
    settings = ReplicaSettings(flush_versions=chance.choice([1, 3, 64]), overlay_bytes=chance.choice([1 << 9, 1 << 20]))
    replica = place.replica(backups.app, settings)
    updater, progress = updated(replica)
    for _ in range(40):
        what = chance.choice(["version"] * 6 + ["set back"] * 2 + ["step"] * 2 + ["snapshot", "flush", "kill"])
        if what == "version":
            backups.app.random_commit(chance)
            backups.save()
        elif what == "set back":
            backups.set_back(chance.randrange(backups.app.version + 1))
        elif what == "step":
            updater.step(0.0)
        elif what == "snapshot":
            with suppress(Closed):
                Snapshotter(replica, reader_of(replica).log, SnapshotSettings()).save()
        elif what == "flush":
            replica.flush_overlay()
        else:
            abandon(replica)
            replica = place.replica(backups.app, settings)
            updater, progress = updated(replica)
        if chance.random() < 0.5:
            updater.committed(*backups.app.point)
        if chance.random() < 0.4 and backups.app.version:
            with replica.read_view(backups.app.version, commit=backups.app.point.commit) as view:
                found = {store: dict(view.scan(store, b"", None)) for store in replica.stores}
            assert found == backups.app.state()
    updater.committed(*backups.app.point)
    for _ in range(4):
        updater.step(0.0)
    assert (progress.readable, progress.failures) == (True, 0)
    assert shown(replica) == backups.app.state()


def test_nothing_is_read_from_a_replica_between_the_set_back_and_its_look(backups: Backups, place: Place) -> None:
    backups.make(6, "old")
    replica = place.caught_up(backups.app)
    updater, progress = updated(replica)
    updater.step(0.0)
    backups.set_back(3)
    reader_of(replica).newest()
    assert not progress.readable
    with pytest.raises(VersionNotAvailable):
        replica.read_view(Version(6))
    with replica.read_view(Version(3)) as view:
        assert view.get("counts", key_of(0)) == b"old3"


def test_no_snapshot_of_an_abandoned_version_is_saved(backups: Backups, place: Place) -> None:
    backups.make(6, "old")
    replica = place.caught_up(backups.app)
    backups.set_back(3)
    backups.make(2, "new")
    with pytest.raises(Closed, match="a version that the log doesn't have any more"):
        Snapshotter(replica, reader_of(replica).log, SnapshotSettings()).save()
    assert backups.app.log.snapshots.versions(TASK) == []


@pytest.mark.parametrize("newer", [3, 4])
def test_a_snapshot_of_an_abandoned_version_is_neither_loaded_nor_in_the_way(
    backups: Backups, place: Place, newer: int
) -> None:
    backups.make(6, "old")
    replica = place.caught_up(backups.app)
    Snapshotter(replica, reader_of(replica).log, SnapshotSettings()).save()
    shutil.copytree(backups.folder / "snapshots", backups.folder.with_name("snapshots"))
    backups.set_back(3)
    backups.make(newer, "new")
    shutil.copytree(backups.folder.with_name("snapshots"), backups.folder / "snapshots")
    other = place.beside("other").caught_up(backups.app)
    assert shown(other) == backups.app.state()
    Snapshotter(other, reader_of(other).log, SnapshotSettings()).save()
    third = place.beside("third").caught_up(backups.app)
    assert shown(third) == backups.app.state()
    manifest = backups.app.log.snapshots.newest(TASK)
    assert manifest is not None
    assert (manifest.version, manifest.commit) == backups.app.point


def test_a_store_that_was_added_after_the_backup_is_another_one_when_it_is_added_again(tmp_path: Path) -> None:
    backups = Backups(tmp_path)
    backups.make(3, "old")
    counts, other = spec("counts", "rocksdb"), spec("other", "rocksdb")
    backups.app = backups.app.changed(counts, other, spec("added", "rocksdb"))
    backups.app.commit({TASK: {"added": {key_of(1): b"abandoned"}}})
    backups.make(1, "old")
    source = LogReader(backups.app.reopened())
    source.newest()
    assert [each.after for each in source.stores_of(TASK) if each.name == "added"] == [3]
    backups.app.stores = ("counts", "other")
    backups.set_back(2)
    again = AppLog(str(backups.folder), previous=backups.app.previous, version=Version(2), history=backups.app.history)
    backups.app = again.changed(counts, other, spec("added", "rocksdb"))
    backups.app.commit({TASK: {"added": {key_of(2): b"new"}}})
    assert source.newest() == 3
    source.use_app(backups.app.log.app.number)
    assert [each.after for each in source.stores_of(TASK) if each.name == "added"] == [2]


def test_where_its_stores_begin_a_replica_is_as_any_commit_has_it(place: Place, tmp_path: Path) -> None:
    app = AppLog(str(tmp_path / "log"))
    app.grow(3, seed=1)
    app = app.changed(spec("counts", "rocksdb"), spec("other", "rocksdb"), spec("added", "rocksdb"), apart=("added",))
    task = TaskId(1, 0)
    replica = place.replica(app, task=task)
    assert replica.version == 3
    with replica.read_view(app.version, commit=app.point.commit) as view:
        assert list(view.scan("added", b"", None)) == []
    app.commit({task: {"added": {key_of(1): b"1"}}})
    with replica.read_view(app.version, commit=app.point.commit) as view:
        assert view.commit == app.point.commit


def test_an_interrupted_apply_of_an_abandoned_version_is_not_completed_from_another_one(
    backups: Backups, place: Place
) -> None:
    backups.make(3, "old")
    replica = place.caught_up(backups.app, OFTEN)
    replica.flush_overlay()
    backups.app.commit({TASK: {"counts": {key_of(n): b"abandoned" for n in range(100, 3_000)}}})
    disk, commit = replica._disk, backups.app.previous
    assert disk is not None
    assert commit is not None

    def interrupted() -> Iterator[Any]:
        for store, changes in replica._source.changes(commit):
            yield store, changes
            raise KeyboardInterrupt

    disk.know(Version(4), VersionStamp.of(commit), 0)
    with pytest.raises(KeyboardInterrupt):
        disk.apply(interrupted(), Version(4))
    backups.set_back(3)
    backups.make(2, "new")
    replica.open(again=True)
    replica.catch_up(Version(5))
    assert shown(replica) == backups.app.state()


def test_a_driver_of_an_abandoned_timeline_adds_no_version(backups: Backups) -> None:
    log = backups.app.log
    newest = grow(log, 6, values=lambda version: {b"k": b"old"})
    log.storage.delete([names.commit(Version(each)) for each in (4, 5, 6)])
    other = Log.open(log.storage)
    grow(other, 3, values=lambda version: {b"k": b"new"})
    with pytest.raises(LostRace, match="version 6, which it follows, is missing or another one"):
        log.create_commit(next_commit(log, newest))
    assert log.commit(Version(7)) is None
