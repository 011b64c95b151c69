"""A program that is forked is started as any other: `subprocess` and the program itself see no difference."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forking

COMMAND = [sys.executable, "-m", "tests.lean", "tests.forked_program", "one", "two words"]


def program(folder: Path, file: int, command: list[str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command or COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[file],
        cwd=folder,
        env={"PATH": "/bin", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_CTYPE": "C.UTF-8"},
        start_new_session=True,
    )


def facts(folder: Path, file: int) -> tuple[dict[str, Any], bytes, int]:
    with program(folder, file) as started:
        output, errors = started.communicate(b"7\n")
        found: dict[str, Any] = json.loads(output)
        return found, errors, started.returncode


def test_a_forked_program_is_started_like_any_other(tmp_path: Path) -> None:
    assert forking.can_be_forked(COMMAND)
    with (tmp_path / "file").open("wb") as file:
        forked = facts(tmp_path, file.fileno())
        forking.pause(True)
        started = facts(tmp_path, file.fileno())
        forking.pause(False)
    assert forked == started
    assert forked[0]["parent"] == os.getpid()
    assert forked[1:] == (b"an error\n", 7)


def test_a_forked_program_is_killed(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, program(tmp_path, file.fileno()) as started:
        assert started.stdout is not None
        assert started.stdout.readline()
        assert Path(f"/proc/{started.pid}/cmdline").read_bytes().split(b"\0")[2] == b"tests.forking"
        started.kill()
        assert started.wait(60) == -signal.SIGKILL
        assert not Path(f"/proc/{started.pid}").exists()


@pytest.mark.parametrize("command", [["sleep", "1"], [sys.executable, "-c", ""], "ls", [sys.executable, "app.py"]])
def test_other_programs_are_not_forked(command: Any) -> None:
    assert not forking.can_be_forked(command)
