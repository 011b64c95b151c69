"""An instance ends with the driver that started it, whatever children that driver has left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.instance.config import encode
from tests.instance.app_log import AppLog
from tests.instance.processes import until
from tests.instance.test_process import config_of

DRIVER = """
import os, pathlib, signal, sys
from holdfast.instance.config import decode
from holdfast.launching import launch

folder = pathlib.Path(sys.argv[1])
launched = launch(decode((folder / "config").read_bytes()), lambda: False)
if os.fork() == 0:
    signal.pause()
(folder / "instance").write_text(str(launched.process.pid))
print("ready", flush=True)
signal.pause()
"""


def test_a_forked_child_of_a_killed_driver_does_not_keep_its_instance_alive(tmp_path: Path) -> None:
    """The child has every file of the driver, also the pipe that is the instance's standard input."""
    (tmp_path / "config").write_bytes(encode(config_of(AppLog(str(tmp_path / "log")), tmp_path)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # so that the child can be ended with its group
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        instance = int((tmp_path / "instance").read_text())
        driver.kill()
        driver.wait()
        until(lambda: not _runs(instance), "the instance ends", 30)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended may still be there until its parent looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
