"""A driver is frozen between a commit and its delivery, the log is set back, another driver leads, and it wakes up."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from tests.crash.machine import Machine
from tests.freezing import frozen

BATCHES = [[("alice", 10**n), ("bob", n)] for n in range(6)]
OTHERS = [*BATCHES[:3], *([("carol", n)] for n in range(6))]


class Local(Machine):
    """A machine whose log is a folder that other processes have, too."""

    def __init__(self, folder: Path, state: str) -> None:
        self._log = folder / "log"
        super().__init__(folder / state)

    def storage(self) -> Storage:
        return open_storage(str(self._log), fsync=False)


def objects(log: Path) -> set[str]:
    return {str(path.relative_to(log)) for path in log.rglob("*") if path.is_file()}


def test_a_driver_of_an_abandoned_timeline_that_wakes_up_delivers_and_deletes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    Local(tmp_path, "first").run(BATCHES[:3])
    shutil.copytree(log, tmp_path / "backup")
    program = [sys.executable, "-m", "tests.crash.test_set_back_driver", str(tmp_path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sleeping:
        assert sleeping.stdin is not None and sleeping.stdout is not None
        assert sleeping.stdout.readline() == "committed\n"
        with frozen(sleeping.pid):
            shutil.rmtree(log)
            shutil.copytree(tmp_path / "backup", log)
            now = Local(tmp_path, "now")
            now.done = 3
            now.run(OTHERS)
            before = objects(log)
        said, _ = sleeping.communicate("go on\n", timeout=60)
    assert said.splitlines() == [
        "delivery: OutdatedDriver",
        "cleaning: OutdatedDriver",
        "the sink has versions up to 5",
    ]
    assert objects(log) == before
    now.check_leads()
    assert sorted(now.state()) == ["alice", "bob", "carol"]


def sleep(folder: Path) -> None:
    """Makes versions 4 to 6, and waits for a line after the last commit, before it is delivered."""
    driver = Local(folder, "sleeping")
    driver.done = 3
    driver.run(BATCHES[:5])

    def wait() -> None:
        print("committed", flush=True)
        sys.stdin.readline()

    with faults.active({"commit.after": wait}):
        _try("delivery", lambda: driver.run(BATCHES))
    _try("cleaning", driver.cleaner.clean)
    print(f"the sink has versions up to {max(driver.memory.versions)}")


def _try(what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except HoldfastError as error:
        print(f"{what}: {type(error).__name__}")
    else:
        print(f"{what}: done")


if __name__ == "__main__":
    sleep(Path(sys.argv[1]))
