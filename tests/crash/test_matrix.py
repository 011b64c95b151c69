"""A crash at any step of a batch changes nothing. One process, with a log in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.spec import StoreSpec
from tests.crash.machine import (
    BOUNDED,
    EXPIRING,
    KEY,
    PARTITIONS,
    SPEC,
    VERSIONED_TABLE,
    Crash,
    Machine,
    crash_at,
    expected,
    reached,
)
from tests.crash.matrix import STAGES

BATCHES = [
    [("alice", 100), ("bob", 200), ("carol", 5), ("dave", 1)],
    [("alice", 150), ("erin", 7)],
    [],
    [("bob", 1), ("bob", 2), ("frank", 3), ("grace", 4)],
    [("carol", 5), ("alice", 1)],
]


KINDS = {"plain": SPEC, "bounded": BOUNDED, "expiring": EXPIRING, "versioned": VERSIONED_TABLE}


@pytest.fixture(scope="module", params=KINDS.values(), ids=list(KINDS))
def spec(request: pytest.FixtureRequest) -> StoreSpec:
    chosen: StoreSpec = request.param
    return chosen


@pytest.fixture(scope="module")
def undisturbed(spec: StoreSpec, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("undisturbed"), spec)
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(spec: StoreSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, Machine(tmp_path_factory.mktemp("counts"), spec))


def test_without_a_crash_the_counts_are_correct(spec: StoreSpec, undisturbed: Machine) -> None:
    if spec is SPEC:
        assert undisturbed.state() == expected(BATCHES)
    elif spec is BOUNDED:
        assert undisturbed.state() == touched_last(BATCHES)
    elif spec is VERSIONED_TABLE:
        # One batch per second and a history of 2.5 s: results that ended before second 3 are gone.
        assert undisturbed.state() == {
            "alice": [(2, 250, 2), (3, 251, 5)],
            "bob": [(1, 200, 1), (3, 203, 4)],
            "carol": [(1, 5, 1), (2, 10, 5)],
            "dave": [(1, 1, 1)],
            "erin": [(1, 7, 2)],
            "frank": [(1, 3, 4)],
            "grace": [(1, 4, 4)],
        }
    else:
        # One batch per second and a TTL of 2.5 s: players of the last three batches, counted from 0 after a gap.
        recent = {"alice": (1, 1), "bob": (2, 3), "carol": (1, 5), "frank": (1, 3), "grace": (1, 4)}
        assert undisturbed.state() == recent


def touched_last(batches: list[list[tuple[str, int]]]) -> dict[str, tuple[int, int]]:
    """The two players of each partition that were touched last; within a batch by name."""
    tables: dict[int, dict[str, tuple[int, int]]] = {partition: {} for partition in range(PARTITIONS)}
    for batch in batches:
        for player, (n, total) in sorted(expected([batch]).items()):
            own = tables[partition_of(KEY, [player], PARTITIONS)]
            before = own.pop(player, (0, 0))
            own[player] = (before[0] + n, before[1] + total)
        for own in tables.values():
            for player in list(own)[:-2]:
                del own[player]
    return {player: row for own in tables.values() for player, row in own.items()}


def test_a_batch_reaches_every_fault_point(spec: StoreSpec, counts: dict[str, int]) -> None:
    unreached = {point for point, number in counts.items() if not number}
    assert unreached == (set() if spec.slice_ms else {"drop.before", "drop.after"}), "only slices are dropped"


def some(every: range) -> list[int]:
    """The first and the last time that a point is reached. The test with a lost state directory has one between.

    >>> some(range(1, 10)), some(range(1, 2)), some(range(1, 1))
    ([1, 9], [1], [])
    """
    return sorted({*every[:1], *every[-1:]})


def cases(*stages: str) -> pytest.MarkDecorator:
    """Plain tables with every point. Other kinds differ in what a task writes: `make test` has them at these points."""
    return pytest.mark.parametrize(
        ("spec", "point"),
        [
            pytest.param(spec, point, id=f"{name}-{point}", marks=[] if chosen else [pytest.mark.slow])
            for name, spec in KINDS.items()
            for point in faults.POINTS
            for chosen in [spec is SPEC or point in stages]
        ],
        indirect=["spec"],
        scope="module",
    )


@pytest.mark.parametrize("times", [some, pytest.param(list, marks=pytest.mark.slow)])
@cases()
def test_a_crash_at_any_point_changes_nothing(
    point: str, times: Callable[[range], list[int]], counts: dict[str, int], undisturbed: Machine, tmp_path: Path
) -> None:
    for nth in times(range(1, counts[point] + 1)):
        machine = Machine(tmp_path / str(nth), undisturbed.spec)
        with faults.active(crash_at(point, nth)), pytest.raises(Crash):
            machine.run(BATCHES)
        machine.restart().run(BATCHES)
        assert machine.state() == undisturbed.state(), f"{point}@{nth}"
        assert machine.files() == undisturbed.files(), f"{point}@{nth}"
        assert machine.driver.newest is not None
        assert machine.driver.newest.version == len(BATCHES)


@cases(*STAGES)
def test_a_crash_and_a_lost_state_directory_change_nothing(
    point: str, counts: dict[str, int], undisturbed: Machine, tmp_path: Path
) -> None:
    if not counts[point]:
        return
    machine = Machine(tmp_path / "before", undisturbed.spec)
    with faults.active(crash_at(point, (counts[point] + 1) // 2)), pytest.raises(Crash):
        machine.run(BATCHES)
    machine.folder = tmp_path / "after"
    machine.restart().run(BATCHES)
    assert machine.state() == undisturbed.state()
    assert machine.files() == undisturbed.files()
