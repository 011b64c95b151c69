"""What the crash matrices share: two crashes and a lost state directory, and time in which nothing arrives."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import faults
from holdfast.ending import Ending
from holdfast.idle import IdleVersions
from holdfast.pipeline.driver import BatchResult, Step
from holdfast.stores.layouts.due import Due
from holdfast.words import Version
from tests.crash.machine import Crash, Machine, Record, crash_at

STAGES = ("state.read", "segment.after", "commit.before", "commit.after", "sink.after", "drop.before")
"""One point per stage of a version that a crash can leave behind: nothing is stored yet; some segments are; all are;
the commit is, and sinks have nothing of it; some sinks have its rows; some slices are dropped."""


def points_of_an_operator(*parts: str, drops: bool = True) -> list[object]:
    """The fault points for the matrix of an operator; without drops if none of its stores has slices.

    An operator meets each stage of a version here. `test_matrix.py` has every point, `test_clinic.py` and
    `test_shop.py` have every one on the way from a task to a sink; here the others are for `make crash`.
    """
    return [
        point if point in STAGES else pytest.param(point, marks=pytest.mark.slow)
        for point in faults.POINTS
        if point.startswith(parts or "") and (drops or not point.startswith("drop."))
    ]


def crash_twice(machine: Machine, batches: Sequence[Sequence[Record]], point: str, times: int, new: Path) -> None:
    """A crash when the point is first reached, another one later, and then the state directory is lost.

    `times` is how often a run without a crash reaches the point.
    """
    with faults.active(crash_at(point, 1)), pytest.raises(Crash):
        machine.run(batches)
    machine.restart()
    with faults.active(crash_at(point, max(1, times // 2))), suppress(Crash):
        machine.run(batches)
    machine.folder = new
    machine.restart().run(batches)


def stay_quiet(
    machine: Machine,
    due: Callable[[Version], Mapping[str, Due]],
    compute: Callable[[Collection[str], Step], BatchResult],
) -> int:
    """Lets 20 seconds pass in which no record arrives. Returns how many versions the driver has made on its own."""
    idle = IdleVersions(
        driver=machine.driver,
        due=due,
        compute=compute,
        clock=machine.clock,
        interval=timedelta(seconds=1),
        ending=Ending(timedelta(seconds=1), lambda cause: pytest.fail(str(cause))),
    )
    before = machine.driver.newest
    for _ in range(20):
        idle.step()
        machine.clock.advance(1)
    newest = machine.driver.newest
    assert before is not None
    assert newest is not None
    return newest.version - before.version
