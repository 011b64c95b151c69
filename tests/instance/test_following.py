"""Replicas that are up to date follow a commit together; the others are left to their turns."""

import random
from collections.abc import Sequence

import pytest

from holdfast.instance.events import Events
from holdfast.instance.following import follow
from holdfast.instance.log_reader import LogReader
from holdfast.instance.overlay import READABLE
from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.replica_disk import VersionStamp
from holdfast.instance.updater import ReplicaUpdater, TaskProgress
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.settings.sections import RestoreSettings, RetrySettings
from holdfast.words import TaskId, Version
from tests.instance.app_log import AppLog, Place, key_of, new_url, shown
from tests.log.making import Watched, overwrite
from tests.simulation.instance import Calls

TASKS = [TaskId(0, number) for number in range(3)]


def commit_of(app: AppLog, version: Version) -> Commit:
    found = app.log.commit(version)
    assert found is not None
    return found


@pytest.mark.parametrize(("inline_limit", "inline_bytes"), [(0, 0), (4_096, 0), (4_096, 1 << 20)])
def test_replicas_that_follow_equal_the_model_at_every_readable_version(
    place: Place, inline_limit: int, inline_bytes: int
) -> None:
    app = AppLog(new_url(), partitions=3, inline_limit=inline_limit, inline_bytes=inline_bytes)
    chance = random.Random(3)
    app.random_commit(chance)
    replicas = [place.replica(app, task=task) for task in TASKS]
    for replica in replicas:
        replica.catch_up(app.version)
    for _ in range(20):
        version = app.random_commit(chance)
        follow(replicas, commit_of(app, version), app.log)
        for replica in replicas:
            assert replica.version == version
            for shows in range(max(1, version - READABLE + 1), version + 1):
                assert shown(replica, Version(shows)) == app.state(Version(shows), replica.task)


def test_a_replica_that_cannot_follow_stays_where_it_is(place: Place) -> None:
    app = AppLog(new_url(), partitions=3, inline_limit=0)
    app.grow(4, seed=1)
    well, damaged, behind = (place.replica(app, task=task) for task in TASKS)
    for replica, version in ((well, 4), (damaged, 4), (behind, 3)):
        replica.catch_up(Version(version))
    version = app.commit({task: {"counts": {key_of(1): b"5"}} for task in TASKS})
    commit = commit_of(app, version)
    (ref,) = commit.of_task(damaged.task)
    assert ref.name is not None
    overwrite(app.log.storage, ref.name, b"garbage")
    follow([damaged, behind, well], commit, app.log)
    assert [replica.version for replica in (well, damaged, behind)] == [5, 4, 3]
    for replica in (well, damaged, behind):
        assert shown(replica) == app.state(replica.version, replica.task)


def test_an_object_of_several_tasks_is_read_once_and_a_damaged_part_stops_only_its_task(place: Place) -> None:
    app = AppLog(new_url(), partitions=3, inline_bytes=0)
    app.grow(2, seed=1)
    replicas = [place.replica(app, task=task) for task in TASKS]
    for replica in replicas:
        replica.catch_up(app.version)
    commit = commit_of(app, app.commit({task: {"counts": {key_of(1): b"3"}} for task in TASKS}))
    watched = Watched(app.log.storage)
    follow(replicas, commit, Log(watched, app.log.app))
    assert len(watched.calls) == 1
    assert [replica.version for replica in replicas] == [3, 3, 3]
    commit = commit_of(app, app.commit({task: {"counts": {key_of(1): b"4"}} for task in TASKS}))
    (ref,) = commit.of_task(TASKS[1])
    assert ref.name is not None
    data = bytearray(app.log.storage.get(ref.name))
    data[ref.parts[0].offset] ^= 1
    overwrite(app.log.storage, ref.name, bytes(data))
    follow(replicas, commit, app.log)
    assert [replica.version for replica in replicas] == [4, 3, 4]
    for replica in replicas:
        assert shown(replica) == app.state(replica.version, replica.task)


def test_a_version_is_followed_once_and_only_by_its_own_history(place: Place) -> None:
    app = AppLog(new_url(), partitions=1)
    app.grow(2, seed=1)
    replica = place.caught_up(app)
    version = app.commit({TASKS[0]: {"counts": {key_of(1): b"3"}}})
    commit = commit_of(app, version)
    runs = replica.changes_of(commit)
    for _ in range(2):
        replica.follow(commit, runs, VersionStamp.of(commit))
        assert shown(replica) == app.state()
    assert replica.applied_bytes == sum(commit_of(app, Version(each)).state_bytes(TASKS[0]) for each in (1, 2, 3))
    other = AppLog(new_url(), partitions=1)
    other.grow(4, seed=2)
    assert not replica.can_follow(commit_of(other, Version(4)))


def test_a_full_overlay_is_left_to_a_turn(place: Place) -> None:
    app = AppLog(new_url(), partitions=1)
    app.grow(1, seed=1)
    replica: Replica = place.caught_up(app, ReplicaSettings(overlay_bytes=2_000))
    while True:
        commit = commit_of(app, app.commit({TASKS[0]: {"counts": {key_of(app.version): bytes(300)}}}))
        if not replica.can_follow(commit):
            break
        follow([replica], commit, app.log)
    assert replica.version == app.version - 1
    replica.catch_up(app.version)
    assert shown(replica) == app.state()


def test_a_task_that_is_removed_while_others_follow_is_left_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = AppLog(new_url(), partitions=3, inline_limit=0)
    app.grow(2, seed=1)
    pool = Calls()
    updater = ReplicaUpdater(LogReader(app.log), Events(), RestoreSettings(), RetrySettings(), pool=pool)
    tasks = [updater.add(place.replica(app, task=task)) for task in TASKS]
    while not updater.ready:
        updater.step(0.0)
        pool.run()
    app.commit({task: {"counts": {key_of(1): b"3"}} for task in TASKS})
    together = updater._follow_together

    def meanwhile(following: Sequence[TaskProgress], commit: Commit) -> None:
        if tasks[0].replica.task in updater._tasks:
            updater.remove(tasks[0].replica.task)
        together(following, commit)

    monkeypatch.setattr(updater, "_follow_together", meanwhile)
    updater.step(0.0)
    assert [each.busy for each in tasks] == [False, True, True], "the first one is closed by now"
    pool.run()
    assert [each.replica.version for each in tasks] == [2, 3, 3]
