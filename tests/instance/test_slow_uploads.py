"""Snapshots that take long to upload: the instance stays a member of its group, and does what can be done meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.group import members
from holdfast.group.generations import Address, Generation, Place
from holdfast.instance.config import Role
from holdfast.instance.group_member import GroupMember
from holdfast.instance.instance import Instance
from holdfast.log import documents, names
from holdfast.settings.group import GroupSettings
from holdfast.words import TaskId
from tests.instance.app_log import AppLog
from tests.instance.processes import until
from tests.instance.test_process import MANY_SNAPSHOTS, config_of

TASK = TaskId(0, 0)
BEATS_OF_A_SESSION = 20
GROUP = GroupSettings(heartbeat_interval="50ms", session_timeout="1s")


@pytest.fixture
def app(tmp_path: Path) -> AppLog:
    app = AppLog(str(tmp_path / "log"))
    app.grow(6, seed=1)
    return app


@pytest.fixture
def instance(app: AppLog, tmp_path: Path) -> Iterator[Instance]:
    instance = Instance(config_of(app, tmp_path, tasks={}, group=GROUP, snapshots=MANY_SNAPSHOTS))
    instance.start()
    yield instance
    instance.stop()


@contextmanager
def uploading() -> Iterator[threading.Event]:
    """Uploads of snapshots don't end before the block does. The event says that one is under way."""
    began, ended = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert ended.wait(60)

    with faults.active({"snapshot.middle": hold}):
        try:
            yield began
        finally:
            ended.set()


def propose(app: AppLog, number: int, active: str) -> None:
    generation = Generation(
        log=app.log.id,
        number=number,
        id=str(number),
        before="" if number == 1 else str(number - 1),
        proposer="",
        reason="",
        app_file=app.log.app.number,
        members={id: Address(incarnation=1, flight="grpc://127.0.0.1:1") for id in ("one", "two")},
        tasks={str(TASK): Place(active=active)},
    )
    app.log.storage.create(names.generation(number), documents.encode(generation))


def test_an_instance_that_waits_for_an_upload_before_it_drops_a_task_writes_heartbeats(
    app: AppLog, instance: Instance
) -> None:
    propose(app, 1, "one")

    def beat() -> int:
        found = members.read(app.log.storage, app.log.id, "one")
        return 0 if found is None else found.beat

    with uploading() as began:
        member = GroupMember(instance)
        assert began.wait(60)
        propose(app, 2, "two")
        until(lambda: instance.hosted() == [], "the task is being dropped")
        before = beat()
        until(lambda: beat() >= before + BEATS_OF_A_SESSION, "heartbeats go on", seconds=20)
        assert instance.generation == 1, "the upload isn't over"
    until(lambda: instance.generation == 2, "the next generation is hosted")
    member.stop()


def test_a_task_becomes_a_standby_while_its_snapshot_is_uploaded(app: AppLog, instance: Instance) -> None:
    with uploading() as began:
        instance.host(TASK, Role.ACTIVE)
        assert began.wait(60)
        changing = threading.Thread(target=instance.host, args=(TASK, Role.STANDBY))
        changing.start()
        changing.join(20)
        assert not changing.is_alive()
        assert [hosted.role for hosted in instance.hosted()] == [Role.STANDBY]
        dropping = threading.Thread(target=instance.drop, args=(TASK,))
        dropping.start()
        until(lambda: instance.hosted() == [], "the task is being dropped")
        assert instance._snapshots._running == TASK
        assert dropping.is_alive(), "its folder is needed until the upload has ended"
    dropping.join(60)
    assert not dropping.is_alive()
