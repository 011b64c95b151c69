"""Old and new code in turns on one log, each in a process of its own: a rolling deployment, both ways."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.stores.access import BytesAsColumns, Now
from holdfast.stores.layouts.rewriter import Rewriter, progress_of
from tests.stores.run_release import read_all, state_of
from tests.stores.schemas import First, Gained, Renamed, Tenths, spec_of, typed

ROOT = Path(__file__).parents[3]


def run(folder: Path, release: str, points: int) -> Any:
    """Starts one release: its output, or its refusal."""
    command = [sys.executable, "-m", "tests.lean", "tests.stores.run_release", str(folder), release, str(points)]
    path = f"{ROOT / 'src'}:{ROOT}"
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": path}, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_a_rolling_deployment_works_both_ways(tmp_path: Path) -> None:
    total = 0
    for n, release in enumerate(["First", "Gained", "First", "Renamed", "First", "Gained"], 1):
        total += n
        told = run(tmp_path, release, n)
        assert told["read"] == {"ann": total, "bob": total}, release
        # Every release reads the same from a replica that has just been restored, and two replicas are equal.
        log = Log.open(open_storage(str(tmp_path)))
        assert state_of(log).entries == state_of(log).entries
        for reader in (First, Gained, Renamed):
            assert read_all(reader, log) == {"ann": total, "bob": total}
    assert Log.open(open_storage(str(tmp_path))).app.number == 3  # First, Gained and Renamed, once each


def test_a_release_with_an_upcaster_reads_old_values_and_the_old_release_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "First", 30)
    assert run(tmp_path, "Tenths", 1)["read"] == {"ann": 4.0, "bob": 4.0}
    refused = run(tmp_path, "First", 1)
    assert "AppChanged" in refused
    assert "start the newer code" in refused
    assert run(tmp_path, "Tenths", 1)["read"] == {"ann": 5.0, "bob": 5.0}


@pytest.mark.parametrize("limit", [1, 5])
def test_the_background_rewrite_of_a_log_of_old_entries(tmp_path: Path, limit: int) -> None:
    run(tmp_path, "First", 30)
    bytes_ = state_of(Log.open(open_storage(str(tmp_path))))
    rewriter = Rewriter(spec_of(Tenths), Now(wall=1), typed(Tenths))
    while (step := rewriter.step(BytesAsColumns(bytes_), limit)) is not None:
        bytes_.put_many(step.part["key"].to_pylist(), step.part["value"].to_pylist())
    done = progress_of(bytes_)
    assert done is not None
    assert (done.rewritten, done.share) == (2, 1.0)
