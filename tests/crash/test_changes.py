"""Changes of an app around its sinks: a sink and a store that come back."""

from pathlib import Path

import pytest

from holdfast import faults
from holdfast.log.changing import START_OVER
from tests.crash.lifecycle import App, Table
from tests.crash.machine import Crash, crash_at

WITH, WITHOUT = Table("b", sink=True), Table("b")
A = Table("a")


def run(app: App, *code: Table, batches: int = 1) -> None:
    life = app.start(code, START_OVER)
    for _ in range(batches):
        app.run(life, [("ann", 1)])
    life.close()


def test_a_sink_that_comes_back_after_a_cleaning_goes_on_with_the_oldest_version_there_is(tmp_path: Path) -> None:
    app = App(tmp_path)
    run(app, A, WITH)
    run(app, A, WITHOUT, batches=12)
    run(app, A, WITH)
    versions = sorted(app.sinks["b"].versions)
    assert versions[0] == 1
    assert versions[-1] == 14
    assert versions == [1, *range(versions[1], 15)]
    assert versions[1] > 2, "the versions after the first one were cleaned"


def test_the_sink_of_a_store_that_starts_over_gets_nothing_of_its_former_life(tmp_path: Path) -> None:
    """The former rows have a column more, and could not be read as those of the new store."""
    app = App(tmp_path)
    life = app.start((A, Table("b", best=True, sink=True)))
    with faults.active(crash_at("sink.before", 1)), pytest.raises(Crash):
        app.run(life, [("ann", 1)])
    life.vanish()
    run(app, A, batches=2)  # the first one is in the log already
    run(app, A, WITH)
    assert app.oracle.rows["b"] == {"ann": {"n": 1, "total": 1}}
    assert app.sinks["b"].versions == {3: [{"player": "ann", "n": 1, "total": 1}]}
