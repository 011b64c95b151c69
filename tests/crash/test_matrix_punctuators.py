"""A crash at any step of a version changes nothing in what punctuators do, with a batch and without one."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import faults
from tests.crash.machine import Crash, crash_at
from tests.crash.matrix import points_of_an_operator
from tests.crash.punctuating_machine import Batches, Model, PunctuatingMachine

SCRIPT: Batches = [
    [("alice", 100), ("bob", 200), ("carol", 5), ("alice", 3)],
    None,
    None,
    [("erin", 7), ("bob", 11)],
    [("alice", 1)],
    None,
    [],
    None,
    None,
    [("dave", 2), ("carol", 1)],
    None,
    None,
    None,
]


def rows(machine: PunctuatingMachine) -> list[tuple[Any, ...]]:
    """The file sink's rows."""
    files = [data for name, data in machine.files().items() if name.endswith(".parquet")]
    return [tuple(row.values()) for data in files for row in pq.read_table(pa.BufferReader(data)).to_pylist()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> PunctuatingMachine:
    machine = PunctuatingMachine(tmp_path_factory.mktemp("undisturbed"))
    machine.live(SCRIPT)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    found = dict.fromkeys(faults.POINTS, 0)

    def count(point: str) -> None:
        found[point] += 1

    with faults.active({point: partial(count, point) for point in faults.POINTS}):
        PunctuatingMachine(tmp_path_factory.mktemp("counts")).live(SCRIPT)
    return found


def test_punctuators_fire_by_both_clocks_with_and_without_batches(undisturbed: PunctuatingMachine) -> None:
    model = Model().live(SCRIPT)
    assert undisturbed.state() == model.state()
    assert set(rows(undisturbed)) == model.rows
    assert len(rows(undisturbed)) == len(model.rows), "each once"
    assert undisturbed.driver.newest is not None
    assert undisturbed.driver.newest.version == model.versions, "no version is made in which nothing fires"
    assert model.ticks == {"0": 3, "1": 3}, "in every partition, also in those without records"


@pytest.mark.parametrize("point", points_of_an_operator())
def test_crashes_at_any_point_change_nothing(
    point: str, counts: dict[str, int], undisturbed: PunctuatingMachine, tmp_path: Path
) -> None:
    """A crash when the point is first reached, another one later, and then the state directory is lost."""
    machine = PunctuatingMachine(tmp_path / "first")
    with faults.active(crash_at(point, 1)), suppress(Crash):
        machine.live(SCRIPT)
    machine.restart()
    with faults.active(crash_at(point, max(1, counts[point] // 2))), suppress(Crash):
        machine.live(SCRIPT)
    machine.folder = tmp_path / "new"
    machine.restart()
    machine.live(SCRIPT)
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()


@pytest.mark.parametrize("point", ["segment.before", "segment.after", "commit.before", "commit.after", "sink.before"])
def test_a_crash_in_each_version_changes_nothing(
    point: str, counts: dict[str, int], undisturbed: PunctuatingMachine, tmp_path: Path
) -> None:
    machine = PunctuatingMachine(tmp_path)
    for _ in range(counts[point]):
        with faults.active(crash_at(point, 2)), suppress(Crash):
            machine.live(SCRIPT)
        machine.restart()
    machine.live(SCRIPT)
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()
