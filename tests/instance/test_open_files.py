"""The limit of open files: it is divided among the databases, and reaching it is no damage and passes by itself."""

import itertools
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.instance.client import StateClient
from holdfast.instance.config import InstanceConfig, Phase, Role
from holdfast.instance.events import ProblemEvent
from holdfast.settings.sections import LogSettings, MemorySettings, SnapshotSettings, StateSettings
from holdfast.stores.engines.open_files import files_needed
from tests.instance.app_log import AppLog, key_of
from tests.instance.processes import Process, until

STORES = 20


def limited(files: int) -> tuple[str, ...]:
    """The command of an instance that may open so many files, as by `ulimit -Hn`."""
    program = Path(__file__).with_name("run_instance.py")
    code = (
        "import resource, runpy; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files})); "
        f"runpy.run_path({str(program)!r}, run_name='__main__')"
    )
    return "-c", code


def app_log(folder: Path, partitions: int, stores: int = STORES) -> AppLog:
    names = tuple(f"s{number:02d}" for number in range(stores))
    return AppLog(f"file://{folder}/log", stores=names, partitions=partitions)


def config_of(app: AppLog, folder: Path) -> InstanceConfig:
    return InstanceConfig(
        app="app",
        name="one",
        app_file=app.log.app.number,
        log_url=app.url,
        state_dir=str(folder / "state"),
        tasks={str(task): Role.ACTIVE for task in app.log.app.tasks()},
        log=LogSettings(fsync=False),
        memory=MemorySettings(limit="512MiB"),
        snapshots=SnapshotSettings(enabled=False),
        state=StateSettings(flush_versions=1),
        poll_seconds=0.05,
    )


def change_all(app: AppLog) -> None:
    """A version that changes each store of each task."""
    value = os.urandom(8)
    app.commit(
        {task: {store: {key_of(app.version % 7): value} for store in app.stores} for task in app.log.app.tasks()}
    )


def caught_up(client: StateClient, app: AppLog) -> Callable[[], bool]:
    """Whether every task is at the newest version, and nothing fails."""

    def check() -> bool:
        tasks = client.status().tasks
        return all(each.phase is Phase.RUNNING and each.readable_to == app.version and not each.error for each in tasks)

    return check


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def problems(client: StateClient) -> list[ProblemEvent]:
    events = (each.event for each in client.events(0).events)
    return [each for each in events if isinstance(each, ProblemEvent) and each.error != "TemporaryFileSystem"]


def flushed(config: InstanceConfig, app: AppLog) -> bool:
    """Whether the state on disk is the newest version."""
    paths = [Path(config.state_dir, str(task), ".checkpoint") for task in app.log.app.tasks()]
    written = [json.loads(path.read_text())["stores"] for path in paths if path.exists()]
    return len(written) == len(paths) and all(set(stores.values()) == {app.version} for stores in written)


@pytest.mark.parametrize("partitions", [8, pytest.param(256, marks=pytest.mark.slow)])
def test_databases_keep_to_the_limit_of_open_files(tmp_path: Path, partitions: int) -> None:
    """Through flushes, views, merges and a restore. Undivided, 8 tasks of 20 stores have more than 850 open.

    256 tasks of 20 stores run where a process may open 20,000.
    """
    app = app_log(tmp_path, partitions)
    config = config_of(app, tmp_path)
    limit = files_needed([STORES] * partitions)
    assert limit < 20_000
    most = 0
    change_all(app)
    for _ in range(2):  # the second one restores what the first has flushed
        with Process(config, limited(limit)) as process:
            client = process.listening()
            until(caught_up(client, app), "the restore")
            for _ in range(6):
                change_all(app)
                client.committed(app.version)
                until(caught_up(client, app), "the version")
                until(lambda: flushed(config, app), "the flush")
                most = max(most, open_files(process.pid))
            assert problems(client) == []
    assert most <= limit - 256 // 2, "half of what is reserved for connections and others is left"


def test_too_many_open_files_are_no_damage_and_pass(tmp_path: Path) -> None:
    """The state stays, the alert says what to do, and the tasks go on once files can be opened again."""
    app = app_log(tmp_path, partitions=4, stores=6)
    config = config_of(app, tmp_path)
    change_all(app)
    with Process(config) as process:
        client = process.listening()
        until(caught_up(client, app), "the restore")
        until(lambda: flushed(config, app), "the first flush")
        folders = [Path(config.state_dir, str(task), "data") for task in app.log.app.tasks()]
        before = [folder.stat().st_ino for folder in folders]
        high = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        used = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
        low = next(number for number in itertools.count() if number not in used) + 2
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (low, high[1]))
        for _ in range(3):
            change_all(app)
        until(lambda: any(each.error == "TooManyOpenFiles" for each in problems(client)), "the alert")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, high)
        change_all(app)
        until(caught_up(client, app), "all tasks are at the newest version")
        until(lambda: flushed(config, app), "the flush of what waited")
        found = problems(client)
        alert = next(each.message for each in found if each.error == "TooManyOpenFiles")
        for part in (f"may open {low:,} files", "are open (", "ulimit -n", "LimitNOFILE", "Nothing is lost"):
            assert part in alert
        assert [each for each in found if "emptied" in each.message] == []
        assert [folder.stat().st_ino for folder in folders] == before


def test_a_limit_that_is_too_low_for_the_app_is_said_at_the_start(tmp_path: Path) -> None:
    app = app_log(tmp_path, partitions=8)
    change_all(app)
    with Process(config_of(app, tmp_path), limited(600)) as process:
        warning = next(each for each in problems(process.listening()) if each.error == "FewOpenFiles")
        assert "may open 600 files, and all tasks of the app need about 736: they have 8 databases" in warning.message
