"""Placement never affects correctness: two active instances of the same tasks serve the same committed state."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.log.segments import STATE
from holdfast.words import TaskId, Version
from tests.instance.app_log import AppLog, State, key_of, shown
from tests.instance.test_process import FLUSH_OFTEN, NO_SNAPSHOTS, config_of
from tests.log import making

TASKS = [TaskId(0, 0), TaskId(0, 1)]


@contextmanager
def running(config: InstanceConfig) -> Iterator[Instance]:
    instance = Instance(config)
    instance.start()
    try:
        assert instance.wait_ready(30)
        yield instance
    finally:
        instance.stop()


def served(instance: Instance, version: Version) -> dict[TaskId, State]:
    """What an instance shows of every task at a version, as soon as it has it."""
    replicas = [hosted.replica for hosted in instance.hosted()]
    assert all(replica.published.wait_for(version, 30) for replica in replicas)
    return {replica.task: shown(replica, version) for replica in replicas}


def fail_an_attempt(app: AppLog, version: Version) -> None:
    """Writes the segments of a version as a task does whose driver dies before the commit."""
    parts = [(STATE, "counts", making.changes({key_of(1): b"never committed"}))]
    for task in TASKS:
        app.log.write_parts(task, version, parts, inline_limit=0)


@pytest.mark.parametrize(("told", "inline_limit"), [(["one"], 4_096), (["two"], 0), (["one", "two"], 0), ([], 4_096)])
def test_two_active_instances_serve_the_same_committed_state(
    tmp_path: Path, told: list[str], inline_limit: int
) -> None:
    """Both save snapshots. They start again, with their state and without. Not all are told about the versions."""
    app = AppLog(str(tmp_path / "log"), partitions=len(TASKS), inline_limit=inline_limit)
    chance = random.Random(6)

    def config(name: str, state: str) -> InstanceConfig:
        return config_of(
            app,
            tmp_path,
            name=name,
            state_dir=str(tmp_path / state),
            tasks={str(task): Role.ACTIVE for task in TASKS},
            state=FLUSH_OFTEN,
            snapshots=NO_SNAPSHOTS,
            poll_seconds=0.02,
        )

    for state in ("first", "first", "second"):
        with ExitStack() as stack:
            both = {name: stack.enter_context(running(config(name, f"{state}-{name}"))) for name in ("one", "two")}
            for _ in range(8):
                fail_an_attempt(app, Version(app.version + 1))
                version = app.random_commit(chance)
                for name in told:
                    both[name].committed(version)
                expected = {task: app.state(version, task) for task in TASKS}
                assert served(both["one"], version) == expected
                assert served(both["two"], version) == expected
            for hosted in [*both["one"].hosted(), *both["two"].hosted()]:
                assert hosted.role is Role.ACTIVE
                assert hosted.snapshotter.save() == app.version, "both save the same version"
    assert app.log.newest() == app.previous, "an instance has no say in what is committed"
