"""Real Spark and real processes are killed. The result afterwards equals a Spark SQL batch over the same input.

`make test` kills one app ten times; `make crash` kills it more often, and runs every kill alone.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash import clinic, players, shop
from tests.crash.scenario import write_input

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLED = -9

Chain = Sequence[tuple[str, bool]]
"""The lives of one app: the faults of each, and whether the driver survives it."""

# Kills of workers and instances don't end the driver, so each life has several of them before the one that does. An
# instance takes snapshots after a while, however many versions there are by then: the driver waits for its kills.
_FIRST = "segment.before=kill@1,segment.after=kill@2,state.read=kill@3,apply.before=kill@1,apply.middle=kill@2"

CHAIN = [
    (f"{_FIRST},snapshot.before=kill@1,commit.after=kill@5:last", False),
    ("apply.after=kill@1,snapshot.middle=kill@1,commit.before=instance@2", True),
]
"""Ten kills in two lives, since each life starts a JVM."""

LONG_CHAIN = [
    (f"{_FIRST},snapshot.before=kill@1,commit.after=kill@6:last", False),
    ("apply.after=kill@1,snapshot.middle=kill@1,sink.after=kill@4:last", False),
    ("snapshot.after=kill@1,commit.before=kill@3:last", False),
    ("commit.before=instance@2", True),
]

PLAYERS_CHAIN = [
    ("segment.before=kill@1,apply.middle=kill@1,commit.before=kill@3:last", False),
    ("state.read=kill@2,snapshot.middle=kill@1,commit.after=kill@2:last", False),
    ("segment.after=kill@1,drop.before=kill@1,drop.after=kill@1,sink.after=kill@6:last", False),
    ("apply.after=kill@1", True),
]

EVERY = [
    *[(f"{point}=kill@3", True) for point in ("segment.before", "segment.after", "state.read")],
    *[(f"{point}=driver@3", False) for point in ("segment.before", "segment.after", "state.read")],
    *[(f"{point}=instance@3", True) for point in ("segment.before", "segment.after", "state.read")],
    *[(f"{point}=kill@3", False) for point in ("commit.before", "commit.after", "sink.before", "sink.after")],
    *[(f"{point}=instance@3", True) for point in ("commit.before", "commit.after", "sink.after")],
    *[(f"{point}=kill@2", False) for point in ("clean.before", "clean.middle", "clean.after")],
    *[(f"{part}.{when}=kill@2", True) for part in ("apply", "snapshot") for when in ("before", "middle", "after")],
    *[(f"{part}.{when}=driver@2", False) for part in ("apply", "snapshot") for when in ("before", "middle", "after")],
]

ENDINGS = [
    *[(point, "kill", 3) for point in ("segment.together", "commit.before", "commit.after")],
    *[(point, "kill", 8) for point in ("sink.before", "sink.after")],
    *[(point, "driver", 12) for point in ("segment.after", "state.read", "apply.middle", "snapshot.before")],
    *[(point, "executor", 12) for point in ("segment.before", "segment.after", "state.read")],
]
"""Kills after which the app has to be started again: of the driver, by itself or by another process, and of the JVM.

Each with how often its point may be reached before, which is at most about three versions.
"""
OF_INSTANCES = [
    *[(f"{part}.{when}", "kill", 8) for part in ("apply", "snapshot") for when in ("before", "middle", "after")],
    *[(point, "instance", 2) for point in ("commit.before", "commit.after", "segment.before", "sink.after")],
]
OF_WORKERS = [(point, "kill", 6) for point in ("segment.before", "segment.after", "state.read")]


def live(folder: Path, fault: str = "", life: int = 0, app: str = "scenario") -> subprocess.CompletedProcess[str]:
    """Runs the app until it is killed, or has processed everything and compared its result. Every fault happens."""
    done = run(folder, fault, life, app)
    named = {part.partition("=")[0] for part in fault.split(",") if part}
    never = named - fired(folder, life)
    assert not never, f"{never} never happened:\n{done.stderr[-4000:]}"
    return done


def fired(folder: Path, life: int) -> set[str]:
    """The fault points at which a life had a kill."""
    return {path.stem for path in (folder / f"faults-{life}").glob("*.fired")}


def run(folder: Path, fault: str, life: int, app: str) -> subprocess.CompletedProcess[str]:
    marks = folder / f"faults-{life}"
    marks.mkdir()
    environment = {**os.environ, "HOLDFAST_FAULT": fault, "HOLDFAST_FAULT_DIR": str(marks)}
    command = [sys.executable, "-m", f"tests.crash.{app}", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def live_through(chain: Chain, folder: Path, app: str) -> dict[str, object]:
    """Runs the app with each life's faults; the last life survives, and its verdict is returned."""
    for life, (fault, survives) in enumerate(chain):
        done = live(folder, fault, life, app)
        if not survives:
            assert done.returncode == KILLED, done.stderr[-6000:]
    return verdict(done)


def verdict(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("chain", "files"), [(CHAIN, 8), pytest.param(LONG_CHAIN, 20, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_many_kills_change_nothing(chain: Chain, files: int, tmp_path: Path) -> None:
    write_input(tmp_path / "input", files=files)
    assert live_through(chain, tmp_path, "scenario")["wrong"] == []


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_kills_change_nothing_in_a_processors_stores(tmp_path: Path) -> None:
    """The result is compared with a plain program over the same input."""
    players.write_input(tmp_path)
    assert live_through(PLAYERS_CHAIN, tmp_path, "players")["version"] == players.FILES


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("app", [clinic, shop], ids=["clinic", "shop"])
def test_a_dozen_kills_change_nothing_in_topologies(app: Any, seed: int, tmp_path: Path) -> None:
    """Several sources and sub-topologies, killed at random. The result is compared with a plain program.

    The clinic has windows, joins of streams and a punctuator, the shop has foreign keys, a history and global tables.
    """
    app.write_input(tmp_path, files=36)
    name = app.__name__.rpartition(".")[2]
    dice, kills, life = random.Random(seed), 0, 0
    while kills < 12:
        fault = some_faults(dice)
        done = run(tmp_path, fault, life, name)
        assert done.returncode != 0, f"after {kills} kills the input was processed before {fault}"
        kills += len(fired(tmp_path, life))
        life += 1
    assert verdict(live(tmp_path, life=life, app=name))["wrong"] == []


def some_faults(dice: random.Random) -> str:
    """Kills of a worker and of an instance, and one that ends the driver or its JVM."""
    chosen: dict[str, str] = {}
    for kills in (ENDINGS, OF_INSTANCES, OF_WORKERS):
        point, verb, most = dice.choice([kill for kill in kills if kill[0] not in chosen])
        first = most // 2 + 1 if kills is ENDINGS else 1  # the others come before it
        chosen[point] = f"{point}={verb}@{dice.randint(first, most)}"
    return ",".join(chosen.values())


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "survives"), EVERY, ids=[fault for fault, _ in EVERY])
def test_one_kill_changes_nothing(fault: str, survives: bool, tmp_path: Path) -> None:
    write_input(tmp_path / "input", files=8)
    done = live(tmp_path, fault)
    if not survives:
        assert done.returncode == KILLED, done.stderr[-6000:]
        done = live(tmp_path, life=1)
    assert verdict(done)["wrong"] == []


@pytest.mark.slow
def test_records_with_random_keys_count_once_although_an_executor_is_lost(tmp_path: Path) -> None:
    done = live(tmp_path, "state.read=executor@1", app="lost_executor")
    found = verdict(done)
    assert found["counted"] == found["records"]


@pytest.mark.slow
def test_a_lost_spark_is_an_error_within_seconds_and_the_next_start_continues(tmp_path: Path) -> None:
    write_input(tmp_path / "input", files=8)
    command = [sys.executable, "-m", "tests.crash.lost_spark", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    losses = json.loads(done.stdout.strip().splitlines()[-1])
    causes = ["Spark was stopped while the app ran", "Spark was stopped while the app ran", "Spark's JVM died"]
    for loss, cause in zip(losses, causes, strict=True):
        assert loss["state"] == "error"
        assert loss["cause"].startswith(cause), loss["cause"]
        assert loss["seconds"] < 10
        assert loss["stopping"] < 15, "stop_timeout is 10s"
    assert verdict(live(tmp_path))["wrong"] == []
