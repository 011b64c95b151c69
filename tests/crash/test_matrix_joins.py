"""A crash at any step changes nothing in a join: each pair and each unmatched record comes out exactly once."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.ending import Ending
from holdfast.idle import IdleVersions
from tests.crash.join_machine import JoinMachine, expected
from tests.crash.machine import Crash, Record, crash_at, reached

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


@pytest.mark.parametrize("point", faults.POINTS)
def test_crashes_at_any_point_change_nothing(
    point: str, counts: dict[str, int], undisturbed: JoinMachine, tmp_path: Path
) -> None:
    """A crash when the point is first reached, another one later, and then the state directory is lost."""
    machine = JoinMachine(tmp_path / "first")
    with faults.active(crash_at(point, 1)), pytest.raises(Crash):
        machine.run(BATCHES)
    machine.restart()
    with faults.active(crash_at(point, max(1, counts[point] // 2))), suppress(Crash):
        machine.run(BATCHES)
    machine.folder = tmp_path / "new"
    machine.restart().run(BATCHES)
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()


def test_unmatched_records_come_out_when_nothing_arrives(tmp_path: Path) -> None:
    """The driver makes one version that sends them, and no other."""
    machine = JoinMachine(tmp_path)
    machine.run(BATCHES[:4])
    before = machine.driver.newest
    idle = IdleVersions(
        driver=machine.driver,
        due=machine.due,
        compute=machine.computed_idle,
        clock=machine.clock,
        interval=timedelta(seconds=1),
        ending=Ending(timedelta(seconds=1), lambda cause: pytest.fail(str(cause))),
    )
    for _ in range(20):
        idle.step()
        machine.clock.advance(1)
    newest = machine.driver.newest
    assert before is not None and newest is not None
    assert newest.version == before.version + 1
    assert machine.sent() == expected([*BATCHES[:4], []])
