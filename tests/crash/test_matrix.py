"""A crash at every step of a batch, at every time it is reached, changes nothing. One process, a log in memory."""

from pathlib import Path

import pytest

from holdfast import faults
from tests.crash.machine import Crash, Machine, crash_at, expected, reached

BATCHES = [
    [("alice", 100), ("bob", 200), ("carol", 5), ("dave", 1)],
    [("alice", 150), ("erin", 7)],
    [],
    [("bob", 1), ("bob", 2), ("frank", 3), ("grace", 4)],
    [("carol", 5), ("alice", 1)],
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("undisturbed"))
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, tmp_path_factory.mktemp("counts"))


def test_without_a_crash_the_numbers_are_true(undisturbed: Machine) -> None:
    assert undisturbed.state() == expected(BATCHES)


def test_every_fault_point_is_on_the_way_of_a_batch(counts: dict[str, int]) -> None:
    assert all(counts.values()), {point for point, number in counts.items() if not number}


@pytest.mark.parametrize("point", faults.POINTS)
def test_a_crash_anywhere_changes_nothing(
    point: str, counts: dict[str, int], undisturbed: Machine, tmp_path: Path
) -> None:
    for nth in range(1, counts[point] + 1):
        machine = Machine(tmp_path / str(nth))
        with faults.active(crash_at(point, nth)), pytest.raises(Crash):
            machine.run(BATCHES)
        machine.restart().run(BATCHES)
        assert machine.state() == undisturbed.state(), f"{point} for the {nth}. time"
        assert machine.files() == undisturbed.files(), f"{point} for the {nth}. time"
        assert machine.driver.newest is not None
        assert machine.driver.newest.version == len(BATCHES)


@pytest.mark.parametrize("point", faults.POINTS)
def test_a_crash_and_then_a_lost_folder_changes_nothing(
    point: str, counts: dict[str, int], undisturbed: Machine, tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "before")
    with faults.active(crash_at(point, (counts[point] + 1) // 2)), pytest.raises(Crash):
        machine.run(BATCHES)
    machine.folder = tmp_path / "after"
    machine.restart().run(BATCHES)
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()
