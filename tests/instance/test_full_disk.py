"""A full disk: it is reported as an error, readers continue, and nothing is missing once there is room again."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from holdfast.words import TaskId
from tests.instance.app_log import AppLog, key_of
from tests.instance.processes import Process, until
from tests.instance.test_process import FLUSH_OFTEN, NO_SNAPSHOTS, check, config_of, problems

TASK = TaskId(0, 0)


def flushed(state_dir: Path) -> int:
    """The version of the last flush that worked."""
    return int(json.loads((state_dir / str(TASK) / ".checkpoint").read_text())["stores"]["counts"])


@pytest.mark.parametrize("small_disk", ["12m"], indirect=True)
def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    app = AppLog(str(tmp_path / "log"))
    chance = random.Random(1)
    config = config_of(app, tmp_path, state_dir=str(small_disk / "state"), state=FLUSH_OFTEN, snapshots=NO_SNAPSHOTS)
    with Process(config) as process, process.listening() as client:
        until(lambda: client.status().ready, "ready")
        warning = problems(client)[0]
        assert (warning.severity, warning.error) == ("warning", "TemporaryFileSystem")
        while not any(problem.error == "DiskFull" for problem in problems(client)):
            numbers = chance.sample(range(10**5), 500)
            entries: dict[bytes, bytes | None] = {key_of(number): chance.randbytes(900) for number in numbers}
            client.committed(app.commit({TASK: {"counts": entries}}))
            until(lambda: client.status().newest == app.version, "the newest version")
        full = next(problem for problem in problems(client) if problem.error == "DiskFull")
        assert full.severity == "error"
        assert "is full" in full.message
        assert "Free space" in full.message
        subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
        app.random_commit(chance)
        until(lambda: client.status().ready and client.status().tasks[0].error is None, "ready again")
        # RocksDB keeps failing after a full disk until the flush loop has opened it again, and then a flush works.
        until(lambda: flushed(small_disk / "state") >= app.version - 1, "a flush")
        check(client, app)
        assert process.terminate() < 5
    with Process(config) as process, process.listening() as client:
        check(client, app)
