"""An app on real Spark is changed, and killed in the first version of the change. Nothing else changes.

A store with a sink, a column and a second sink are added, removed and brought back, each time with a kill.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.apps import NOON, write
from tests.soak.app import RECORD
from tests.soak.release import EVERYTHING, Release

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

FILES, ROWS = 110, 10
"""Files per stage, which are three batches, and rows per file."""
KILLED = -9


class Stages:
    """The input, stage by stage, and the app that processes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[list[dict[str, Any]]] = []
        self._lives = 0

    def add_input(self) -> None:
        """The input of the next stage."""
        first = len(self.records) * FILES * ROWS
        numbers = range(first, first + FILES * ROWS)
        rows = [{"player": f"p{n * 7 % 30}", "level": n % 6, "points": n * 31 % 101, "at": NOON} for n in numbers]
        for n in range(FILES):
            write(self.folder / "input", first // ROWS + n, rows[n * ROWS : (n + 1) * ROWS], RECORD)
        self.records.append(rows)

    def live(self, release: Release, fault: str = "") -> int:
        """Runs the app until it is killed or has processed all input. Returns how it ended."""
        self._lives += 1
        marks = self.folder / f"faults-{self._lives}"
        marks.mkdir()
        environment = {**os.environ, "HOLDFAST_FAULT": fault, "HOLDFAST_FAULT_DIR": str(marks)}
        command = [sys.executable, "-m", "tests.soak.app", str(self.folder), str(release), str(marks / "runs")]
        done = subprocess.run([*command, "--finish"], capture_output=True, text=True, env=environment, check=False)
        assert not fault or list(marks.glob("*.fired")), done.stderr[-4000:]
        assert done.returncode in (0, KILLED), done.stderr[-4000:]
        return done.returncode

    def stage(self, release: Release, fault: str = "") -> None:
        """Adds input and processes it, with a kill if there is a fault."""
        self.add_input()
        if not fault or self.live(release, fault) == KILLED:
            self.live(release)

    def stored(self, store: str) -> dict[Any, dict[str, int]]:
        rows = json.loads((self.folder / "stores.json").read_bytes())[store]
        return {row.pop("key"): row for row in rows}

    def newest_rows(self, sink: str) -> dict[Any, dict[str, int]]:
        """The newest row per key in the files of a sink, with its version."""
        found: dict[Any, dict[str, int]] = {}
        for path in sorted((self.folder / sink).glob("*.parquet")):
            for row in pq.read_table(path).to_pylist():
                found[row.pop("level" if sink == "levels" else "player")] = row
        return found

    def truth(self, key: str, *stages: int) -> dict[Any, dict[str, int]]:
        """What these stages alone add up to."""
        found: dict[Any, dict[str, int]] = {}
        for record in (record for stage in stages for record in self.records[stage]):
            row = found.setdefault(record[key], {"games": 0, "points": 0, "best": 0})
            row["games"] += 1
            row["points"] += record["points"]
            row["best"] = max(row["best"], record["points"])
        return found


def only(rows: dict[Any, dict[str, int]], columns: Iterable[str]) -> dict[Any, dict[str, int]]:
    return {key: {column: row[column] for column in columns} for key, row in rows.items()}


def check(app: Stages, levels: tuple[int, ...], best: int) -> None:
    """Compares the app: which stages count in `levels`, and since which one `best` counts."""
    stages = range(len(app.records))
    true = only(app.truth("player", *stages), ["games", "points"])
    best_rows = app.truth("player", *stages[best:])
    true = {player: {**row, "best": best_rows[player]["best"]} for player, row in true.items()}
    assert app.stored("totals") == true
    assert only(app.newest_rows("out"), ["games", "points", "best"]) == true
    assert only(app.newest_rows("copy"), ["games", "points", "best"]) == true
    counted = only(app.truth("level", *levels), ["games"])
    assert app.stored("levels") == counted
    assert only(app.newest_rows("levels"), ["games"]) == counted


@pytest.mark.parametrize(
    ("fault", "returned"),
    [
        ("segment.after=driver@1", "start_over"),
        ("commit.before=kill@1", "continue"),
        ("commit.after=kill@1", "start_over"),
        ("sink.before=kill@1", "continue"),
    ],
)
def test_a_change_that_is_killed_in_its_first_version(tmp_path: Path, fault: str, returned: str) -> None:
    app, everything = Stages(tmp_path), Release(levels=True, best=True, copy=True, returned=returned)
    app.stage(Release())
    app.stage(everything, fault)
    check(app, levels=(1,), best=1)
    app.stage(Release(), fault)
    assert app.stored("totals") == only(app.truth("player", 0, 1, 2), ["games", "points"])
    app.stage(everything, fault)
    check(app, levels=(1, 3) if returned == "continue" else (3,), best=3)


@pytest.mark.parametrize("fault", ["state.read=kill@1", "commit.before=instance@1"])
def test_a_change_in_whose_first_version_a_worker_or_an_instance_is_killed(tmp_path: Path, fault: str) -> None:
    app = Stages(tmp_path)
    app.stage(Release(levels=True))
    app.add_input()
    assert app.live(Release(), fault) == 0
    app.add_input()
    assert app.live(EVERYTHING, fault) == 0
    check(app, levels=(0, 2), best=2)


def test_a_change_that_is_killed_before_its_first_version_and_taken_back(tmp_path: Path) -> None:
    app = Stages(tmp_path)
    app.stage(EVERYTHING)
    app.add_input()
    assert app.live(Release(), "commit.before=kill@1") == KILLED
    app.live(EVERYTHING)
    check(app, levels=(0, 1), best=0)
