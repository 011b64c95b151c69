"""Two drivers of one app overlap at any step of a batch, and nothing changes. One process, with a log in memory."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.log.leadership import OutdatedDriver
from tests.crash.machine import Crash, Machine, crash_at, reached
from tests.crash.test_matrix import BATCHES

POINTS = [point for point in faults.POINTS if not point.startswith("drop.")]
"""A replica drops slices of its own disk, of which another driver has its own. This store has none."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("undisturbed"))
    machine.run(BATCHES)
    return machine


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return reached(BATCHES, Machine(tmp_path_factory.mktemp("counts")))


def three(number: int) -> list[int]:
    """The first time that a point is reached, one between and the last."""
    assert number > 1
    every = range(1, number + 1)
    return sorted({*every[:1], *every[number // 2 : number // 2 + 1], *every[-1:]})


def between(number: int) -> list[int]:
    return three(number)[1:2]


def ends(number: int) -> list[int]:
    return [1, number]


def once_at(nth: int, call: Callable[[], None]) -> Callable[[], None]:
    count = 0

    def handle() -> None:
        nonlocal count
        count += 1
        if count == nth:
            call()

    return handle


def failure_of(machine: Machine) -> BaseException | None:
    """How the app ends that runs on this machine; None if it runs to the end."""
    try:
        machine.run(BATCHES)
    except HoldfastError as error:
        return machine.leadership.explain(error)
    return None


@pytest.mark.parametrize(
    ("ahead", "times"),
    [(len(BATCHES), ends), *(pytest.param(n, three, marks=pytest.mark.slow) for n in (len(BATCHES), 1, 0))],
)
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_overtaken_at_any_point_changes_nothing(
    point: str,
    ahead: int,
    times: Callable[[int], list[int]],
    counts: dict[str, int],
    undisturbed: Machine,
    tmp_path: Path,
) -> None:
    """At the point another driver takes over and runs some batches; then the first goes on, as after a sleep."""
    for nth in times(counts[point]):
        old, new = Machine(tmp_path / f"old-{nth}"), list[Machine]()

        def take_over(old: Machine = old, new: list[Machine] = new, nth: int = nth) -> None:
            other = old.beside(tmp_path / f"new-{nth}")
            new.append(other)
            other.run(BATCHES[: min(old.done + ahead, len(BATCHES))])

        with faults.active({point: once_at(nth, take_over)}):
            ended = failure_of(old)
        assert isinstance(ended, OutdatedDriver) or old.done == len(BATCHES), f"{point}@{nth}: {ended!r}"
        (driver,) = new
        driver.run(BATCHES)
        assert_same(driver, undisturbed, f"{point}@{nth}")


@pytest.mark.parametrize("times", [between, pytest.param(three, marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", POINTS)
def test_the_first_driver_comes_back_after_the_second_was_killed_at_any_point(
    point: str, times: Callable[[int], list[int]], counts: dict[str, int], undisturbed: Machine, tmp_path: Path
) -> None:
    for nth in times(counts[point]):
        first = Machine(tmp_path / f"first-{nth}")
        first.run(BATCHES[:1])
        second = first.beside(tmp_path / f"second-{nth}")
        with faults.active(crash_at(point, nth)):
            with contextlib.suppress(Crash):
                second.run(BATCHES)
        with pytest.raises(OutdatedDriver):
            first.run([*BATCHES, BATCHES[0]])
        first.done = second.done
        first.restart().run(BATCHES)
        assert_same(first, undisturbed, f"{point}@{nth}")


def assert_same(machine: Machine, undisturbed: Machine, where: str) -> None:
    assert machine.state() == undisturbed.state(), where
    assert machine.files() == undisturbed.files(), where
    assert machine.driver.newest is not None
    assert machine.driver.newest.version == len(BATCHES), where


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_where_another_one_sleeps_changes_nothing(
    point: str, counts: dict[str, int], undisturbed: Machine, tmp_path: Path
) -> None:
    """The first driver sleeps at the point, where the second one is killed. The first goes on; then a third starts."""
    assert counts[point]
    first = Machine(tmp_path / "first")

    def killed_there() -> None:
        with contextlib.suppress(Crash), faults.active(crash_at(point, 1)):
            first.beside(tmp_path / "second").run(BATCHES)

    with faults.active({point: once_at(1, killed_there)}):
        failure_of(first)
    third = first.beside(tmp_path / "third")
    third.run(BATCHES)
    assert_same(third, undisturbed, point)
