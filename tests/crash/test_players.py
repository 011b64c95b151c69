"""A processor over stores of every kind, really killed: what comes out equals a plain program over the same input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.players import FILES, write_input

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLED = -9

CHAIN = [
    ("segment.before=kill@1,apply.middle=kill@1,commit.before=kill@3", False),
    ("state.read=kill@2,snapshot.middle=kill@1,commit.after=kill@2", False),
    ("segment.after=kill@1,drop.before=kill@1,drop.after=kill@1,sink.middle=kill@6", False),
    ("apply.after=kill@1", True),
]
"""The faults of each life, and whether the driver survives it."""


def live(folder: Path, fault: str, life: int) -> subprocess.CompletedProcess[str]:
    marks = folder / f"faults-{life}"
    marks.mkdir()
    environment = {**os.environ, "HOLDFAST_FAULT": fault, "HOLDFAST_FAULT_DIR": str(marks)}
    command = [sys.executable, "-m", "tests.crash.players", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    fired = {path.stem for path in marks.glob("*.fired")}
    named = {part.partition("=")[0] for part in fault.split(",")}
    assert named <= fired, f"{named - fired} never happened:\n{done.stderr[-4000:]}"
    return done


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_kills_in_one_life_change_nothing_in_any_store(tmp_path: Path) -> None:
    write_input(tmp_path)
    for life, (fault, survives) in enumerate(CHAIN):
        done = live(tmp_path, fault, life)
        assert done.returncode == (0 if survives else KILLED), done.stdout[-2000:] + done.stderr[-6000:]
    assert json.loads(done.stdout.strip().splitlines()[-1])["version"] == FILES
