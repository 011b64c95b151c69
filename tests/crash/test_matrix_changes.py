"""A store is added, removed or brought back, and the app is killed at any step of the first batch after that.

Then either the same code is started again or the code of before. One process, with a log in memory.
"""

from pathlib import Path

import pytest

from holdfast import faults
from holdfast.log.changing import CONTINUE
from tests.crash.lifecycle import App, Code, Record, Table
from tests.crash.machine import Crash, crash_at

A, B = Table("a", sink=True), Table("b", sink=True)
_BESIDE = [f"{part}.{when}" for part in ("apply", "drop", "snapshot", "clean") for when in ("before", "after")]
"""Points of instances and of the cleaner, beside one in the middle of each part. These tables have nothing to drop."""
CHANGES: dict[str, list[Code]] = {
    "added": [(A,), (A, B)],
    "removed": [(A, B), (A,)],
    "brought back": [(A, B), (A,), (A, B)],
    "reshaped": [(A, B), (A, Table("b", best=True))],
}
CASES = [
    pytest.param(change, point, marks=pytest.mark.slow if change != "added" and point in _BESIDE else [])
    for change in CHANGES
    for point in faults.POINTS
]
RECORDS: list[Record] = [("ann", 1), ("bob", 2), ("carol", 3), ("dan", 4)]


def killed(app: App, code: Code, point: str, nth: int) -> None:
    """Starts the app and kills it in its first batch; one that never comes to the point is stopped after it."""
    life = app.start(code, CONTINUE)
    try:
        with faults.active(crash_at(point, nth)):
            app.run(life, RECORDS)
    except Crash:
        life.vanish()
    else:
        life.close()


def run(app: App, code: Code, batches: int = 1) -> None:
    """Starts the app, makes versions, and compares it with dictionaries."""
    life = app.start(code, CONTINUE)
    goal = app.version + batches
    while app.version < goal:  # a batch that was killed may be in the log already
        app.run(life, RECORDS[: 1 + app.version % 4])
    assert life.state() == {table.name: app.oracle.rows[table.name] for table in code}
    assert app.delivered() == app.oracle.delivered
    life.close()


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "back", [pytest.param(False, id="same code"), pytest.param(True, id="former code", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("change", "point"), CASES)
def test_a_change_that_is_killed_at_any_point_changes_nothing_else(
    point: str, change: str, back: bool, nth: int, tmp_path: Path
) -> None:
    app = App(tmp_path)
    *before, last = CHANGES[change]
    for code in before:
        run(app, code, batches=3)
    killed(app, last, point, nth)
    run(app, before[-1] if back else last, batches=2)
    run(app, last)
