"""A crash at any step of a batch of a processor changes nothing in its stores of six kinds."""

from pathlib import Path

import pytest

from holdfast import faults
from tests.crash.machine import Crash, Record, crash_at, reached
from tests.crash.matrix import crash_twice, points_of_an_operator
from tests.crash.processor_machine import Model, ProcessorMachine

BATCHES: list[list[Record]] = [
    [("alice", 100), ("bob", 200), ("carol", 5), ("dave", 1), ("alice", 3)],
    [("alice", 150), ("erin", 7), ("bob", 11)],
    [],
    [("bob", 1), ("bob", 2), ("frank", 3), ("grace", 4), ("carol", 9)],
    [("carol", 5), ("alice", 1), ("dave", 8)],
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> ProcessorMachine:
    machine = ProcessorMachine(tmp_path_factory.mktemp("undisturbed"))
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, ProcessorMachine(tmp_path_factory.mktemp("counts")))


def test_without_a_crash_every_store_equals_the_model(undisturbed: ProcessorMachine) -> None:
    assert undisturbed.state() == Model().run(BATCHES).state()
    shown = undisturbed.state()
    players = {player for batch in BATCHES for player, _ in batch}
    assert set(shown["recent"]) < players, "some were evicted"
    assert set(shown["online"]) < set(shown["last"]) < players, "some have expired, each store with its own TTL"


def test_a_batch_reaches_every_fault_point(counts: dict[str, int]) -> None:
    assert {point for point, number in counts.items() if not number} == set()


@pytest.mark.parametrize("point", points_of_an_operator())
def test_crashes_at_any_point_change_nothing_in_any_store(
    point: str, counts: dict[str, int], undisturbed: ProcessorMachine, tmp_path: Path
) -> None:
    machine = ProcessorMachine(tmp_path / "first")
    crash_twice(machine, BATCHES, point, counts[point], tmp_path / "new")
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()


@pytest.mark.parametrize("point", ["segment.after", "commit.after", "apply.middle", "drop.before", "snapshot.middle"])
def test_a_crash_in_the_last_batch_changes_nothing_in_any_store(
    point: str, counts: dict[str, int], undisturbed: ProcessorMachine, tmp_path: Path
) -> None:
    machine = ProcessorMachine(tmp_path)
    with faults.active(crash_at(point, counts[point])), pytest.raises(Crash):
        machine.run(BATCHES)
    machine.restart().run(BATCHES)
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()
