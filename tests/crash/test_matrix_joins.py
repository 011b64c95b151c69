"""A crash at any step changes nothing in a join: each pair and each unmatched record comes out exactly once."""

from pathlib import Path

import pytest

from tests.crash.join_machine import JoinMachine, expected
from tests.crash.machine import Record, reached
from tests.crash.matrix import crash_twice, points_of_an_operator, stay_quiet

BATCHES: list[list[Record]] = [
    [("alice", 10), ("bob", 21), ("carol", 110), ("alice", 31)],
    [("alice", 140), ("bob", 50), ("carol", 121), ("alice", 141)],
    [("bob", 240), ("dave", 91), ("alice", 81)],
    [("alice", 150), ("alice", 10_000)],  # the windows before close at once, far past what buffers keep
    [("bob", 10_011), ("erin", 70)],  # erin is late
    [("frank", 10_300), ("bob", 10_020)],
    [],
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JoinMachine:
    machine = JoinMachine(tmp_path_factory.mktemp("undisturbed"))
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, JoinMachine(tmp_path_factory.mktemp("counts")))


def test_without_a_crash_rows_are_those_of_an_oracle(undisturbed: JoinMachine) -> None:
    assert undisturbed.sent() == expected(BATCHES)
    assert ("alice", 10_000, None) in undisturbed.sent() and ("dave", None, 91) in undisturbed.sent()


@pytest.mark.parametrize("point", points_of_an_operator())
def test_crashes_at_any_point_change_nothing(
    point: str, counts: dict[str, int], undisturbed: JoinMachine, tmp_path: Path
) -> None:
    machine = JoinMachine(tmp_path / "first")
    crash_twice(machine, BATCHES, point, counts[point], tmp_path / "new")
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()


def test_unmatched_records_come_out_when_nothing_arrives(tmp_path: Path) -> None:
    """The driver makes one version that sends them, and no other."""
    machine = JoinMachine(tmp_path)
    machine.run(BATCHES[:4])
    assert stay_quiet(machine, machine.due, machine.computed_idle) == 1
    assert machine.sent() == expected([*BATCHES[:4], []])
