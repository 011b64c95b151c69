"""When a snapshot is due: by size, by ratio, by age."""

import random
from datetime import timedelta

import pytest

from holdfast.clock import ManualClock
from holdfast.instance.config import unchecked
from holdfast.instance.snapshotter import Snapshotter, is_due
from holdfast.log import names
from holdfast.log.commits import Clocks
from holdfast.settings.sections import SnapshotSettings
from holdfast.words import Millis, Version
from tests.instance.app_log import TASK, AppLog, Place, abandon, key_of, new_url
from tests.log.making import overwrite

MIB = 1 << 20


@pytest.mark.parametrize(
    ("versions", "tail", "snapshot", "minutes", "due"),
    [
        (0, 0, None, 99, False),  # no new version
        (1, 10 * MIB, None, 1, False),  # nobody knows yet what a snapshot would cost
        (1, 256 * MIB, None, 0, True),
        (1, 1, None, 10, True),
        (3, 20 * MIB, 10 * MIB, 0, True),
        (3, 19 * MIB, 10 * MIB, 0, False),
        (3, MIB - 1, 100, 0, False),  # a small store doesn't get a snapshot per version
        (3, 0, 100, 10, True),  # so that cleaning continues although the task changes nothing
        (3, 256 * MIB, 10_000 * MIB, 0, True),
    ],
)
def test_a_snapshot_is_due_by_size_ratio_or_age(
    versions: int, tail: int, snapshot: int | None, minutes: int, due: bool
) -> None:
    limits = SnapshotSettings(ratio=2.0, bytes="256MiB", age="10m")
    since = timedelta(minutes=minutes)
    assert due is is_due(limits, tail_versions=versions, tail_bytes=tail, snapshot_bytes=snapshot, since=since)


def test_an_app_that_is_restarted_often_still_takes_snapshots(place: Place) -> None:
    """Each process runs for 4 minutes only; the age of a snapshot is measured by the log's wall clock."""
    app = AppLog(new_url())
    saved = []
    for minute in range(0, 40, 4):
        clock = ManualClock(Millis(minute * 60_000))
        replica = place.replica(app)
        snapshotter = Snapshotter(replica, app.log, SnapshotSettings(age="10m"), clock)
        for _ in range(4):
            version = app.commit({TASK: {"counts": {key_of(minute): b"1"}}}, Clocks(clock.now(), None, {}))
            replica.catch_up(version)
            if snapshotter.step():
                saved.append((clock.now() // 60_000, version))
            clock.advance(60)
        replica.close()
    assert [minute for minute, _ in saved] == [10, 20, 30]
    assert app.log.snapshots.versions(TASK)[-1] == Version(31)


@pytest.mark.parametrize("overwrites", [True, False])
def test_the_first_snapshot_is_saved_when_the_tail_outweighs_the_state(place: Place, overwrites: bool) -> None:
    """Otherwise a replica that is restored in the first ten minutes of an app would replay every version there was."""
    app = AppLog(new_url())
    replica = place.replica(app)
    snapshotter = Snapshotter(replica, app.log, SnapshotSettings())
    dice = random.Random(7)
    for number in range(12):
        keys = range(4) if overwrites else range(4 * number, 4 * number + 4)
        replica.catch_up(app.commit({TASK: {"counts": {key_of(key): dice.randbytes(64 << 10) for key in keys}}}))
    assert not snapshotter.step(), "all versions are still in memory"
    replica.flush_overlay()
    replica.tidy()
    assert snapshotter.step() is overwrites


def test_a_damaged_manifest_does_not_stop_the_snapshots(place: Place) -> None:
    app = AppLog(new_url())
    limits = unchecked(SnapshotSettings, bytes=1)
    replica = place.replica(app)
    for number in range(2):
        replica.catch_up(app.commit({TASK: {"counts": {key_of(number): b"1"}}}))
        assert Snapshotter(replica, app.log, limits).step()
        overwrite(app.log.storage, names.manifest(TASK, replica.version), b"garbage")
    assert app.log.snapshots.versions(TASK) == [1, 2]


@pytest.mark.parametrize("killed", [False, True])
def test_the_tail_that_earlier_processes_applied_counts(place: Place, killed: bool) -> None:
    app = AppLog(new_url())
    size = 0
    for number in range(6):
        replica = place.replica(app)
        version = app.commit({TASK: {"counts": {key_of(number): b"1" * 100}}})
        commit = app.log.commit(version)
        assert commit is not None
        size += commit.state_bytes(TASK)
        replica.catch_up(version)
        if killed:
            replica.flush_overlay()
            abandon(replica)
        else:
            replica.close()
    limits = unchecked(SnapshotSettings, bytes=size)
    assert Snapshotter(place.replica(app), app.log, limits).step()
    replica = place.opened[-1]
    assert not Snapshotter(replica, app.log, limits).step(), "the tail starts at the snapshot"
    other = place.beside("other").caught_up(app)
    assert other.applied_bytes == size, "a snapshot tells how many bytes led to it"
