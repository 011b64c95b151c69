"""A crash at any step changes nothing in a join by a foreign key: its three steps are one version."""

from pathlib import Path

import pytest

from tests.crash.machine import Record, reached
from tests.crash.matrix import crash_twice, points_of_an_operator
from tests.crash.topology_machine import TopologyMachine

BATCHES: list[list[Record]] = [
    [("ann", 11), ("ann", 21), ("bob", 31), ("ann", 101)],
    [("bob", 102), ("bob", 22)],  # a new city, and a changed foreign key
    [("ann", 103), ("ann", 19), ("cid", 41)],  # an order is deleted while its customer changes
    [("bob", 109), ("", 23)],  # a customer is deleted, and an order has no customer any more
    [("cid", 104), ("cid", 23), ("bob", 32)],
    [("bob", 105)],
    [],
]
SENT = [
    [(1, (11, 101)), (2, (21, 101)), (3, (31, None))],
    [(2, (22, 102)), (3, (31, 102))],
    [(1, None), (4, (41, None))],
    [(2, (23, None)), (3, (31, None))],
    [(2, (23, 104)), (3, (32, None)), (4, (41, 104))],
    [(3, (32, 105))],
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TopologyMachine:
    machine = TopologyMachine(tmp_path_factory.mktemp("undisturbed"))
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, TopologyMachine(tmp_path_factory.mktemp("counts")))


def test_without_a_crash_rows_are_the_expected_ones(undisturbed: TopologyMachine) -> None:
    assert undisturbed.sent() == SENT


@pytest.mark.parametrize("point", points_of_an_operator(drops=False))
def test_crashes_at_any_point_change_nothing(
    point: str, counts: dict[str, int], undisturbed: TopologyMachine, tmp_path: Path
) -> None:
    """No store here has slices that could be dropped."""
    machine = TopologyMachine(tmp_path / "first")
    crash_twice(machine, BATCHES, point, counts[point], tmp_path / "new")
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()
