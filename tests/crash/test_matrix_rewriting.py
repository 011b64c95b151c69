"""A crash at any step while entries of an older schema are rewritten: none is lost, none is upcast twice."""

from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import faults
from tests.crash.machine import Crash, Record, crash_at, reached
from tests.crash.matrix import points_of_an_operator
from tests.crash.rewriting_machine import OLD_BATCHES, ChangingMachine, TableMachine, ValueMachine

# Points are multiples of ten, so that sums of their tenths are exact.
BATCHES: list[list[Record]] = [
    [("alice", 100), ("bob", 200), ("carol", 50), ("dave", 10), ("heidi", 20), ("ivan", 70)],
    [("alice", 150), ("erin", 70), ("judy", 30), ("mallory", 40), ("niaj", 60), ("olivia", 80)],
    [("bob", 10), ("frank", 30), ("olivia", 20)],
    [],
    [("carol", 50), ("alice", 10), ("niaj", 90)],
    [("frank", 20)],
]

MachineType = type[TableMachine] | type[ValueMachine]
MACHINES: dict[str, MachineType] = {"table": TableMachine, "values": ValueMachine}


@pytest.fixture(scope="module", params=MACHINES.values(), ids=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> MachineType:
    chosen: MachineType = request.param
    return chosen


@pytest.fixture(scope="module")
def undisturbed(machine: MachineType, tmp_path_factory: pytest.TempPathFactory) -> ChangingMachine:
    made = machine(tmp_path_factory.mktemp("undisturbed"))
    made.run(BATCHES)
    return made


@pytest.fixture(scope="module")
def counts(machine: MachineType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, machine(tmp_path_factory.mktemp("counts")))


def test_without_a_crash_all_entries_are_rewritten(machine: MachineType, undisturbed: ChangingMachine) -> None:
    assert undisturbed.state() == machine.expected(BATCHES)
    old = {player for batch in BATCHES[:OLD_BATCHES] for player, _ in batch}
    rewritten = 0
    for entries, progress in undisturbed.stored().values():
        assert {schema for schema, _ in entries.values()} == {2}
        assert progress is not None
        assert progress.finished
        rewritten += progress.rewritten
    assert 0 < rewritten < len(old), "batches wrote some before the pass reached them"


@pytest.mark.parametrize("point", points_of_an_operator())
def test_crashes_at_any_point_lose_no_entry_and_upcast_none_twice(
    point: str,
    machine: MachineType,
    counts: dict[str, int],
    undisturbed: ChangingMachine,
    tmp_path: Path,
) -> None:
    """A crash in the middle of the pass, one near its end, and then the state directory is lost."""
    if not counts[point]:
        assert point.startswith("drop."), "only slices are dropped"
        return
    app = machine(tmp_path / "first")
    with faults.active(crash_at(point, counts[point] // 2 + 1)), pytest.raises(Crash):
        app.run(BATCHES)
    app.restart()
    with faults.active(crash_at(point, max(1, counts[point] // 4))), suppress(Crash):
        app.run(BATCHES)
    app.folder = tmp_path / "new"
    app.restart().run(BATCHES)
    assert app.state() == undisturbed.state()
    assert app.stored() == undisturbed.stored(), "every entry, and the progress of the pass"
    assert app.files() == undisturbed.files(), "sinks get no rewritten entries"
