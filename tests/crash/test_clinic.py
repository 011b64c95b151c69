"""Two sources, five sub-topologies, final windows, joins and a punctuator: a crash at any step changes nothing.

The app runs in a test driver, with the log, the tasks and the driver of an app. `test_spark.py` kills it on real Spark.
"""

import random
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import faults
from holdfast.testing import TestDriver, records
from tests.crash import clinic
from tests.crash.clinic_oracle import Batch
from tests.crash.machine import Crash, crash_at
from tests.crash.scenario import EVERY_STEP

BATCHES = clinic.made_up(6)


def driver_of() -> TestDriver:
    app = hf.App("clinic", settings=hf.Settings(partitions=clinic.PARTITIONS, log=EVERY_STEP["log"]))
    clinic.build(app, records(clinic.BEATS), records(clinic.TEMPS), Path("nowhere"))
    return TestDriver(app, wall=clinic.START)


def results_of(driver: TestDriver) -> clinic.Found:
    driver.advance("5s")
    stores = {name: dict(driver.store(name).items()) for name in clinic.STORES}
    return clinic.Found(stores, {name: driver.output(name) for name in clinic.OUTPUTS})


def pipe(driver: TestDriver, batch: Batch) -> None:
    beats, temperatures = batch
    driver.pipe_all({"beats": map(clinic.as_row, beats), "temps": map(clinic.as_row, temperatures)})


def test_without_a_crash_everything_is_that_of_a_plain_program() -> None:
    driver, true = driver_of(), clinic.expected(BATCHES)
    for batch in BATCHES:
        pipe(driver, batch)
    assert results_of(driver).differences(true) == []
    assert true.late > 0
    assert {tenths is None for _, _, tenths in true.alerts} == {True, False}, "with a match and without"


def test_versions_without_a_batch_change_nothing() -> None:
    dice, driver = random.Random(5), driver_of()
    for batch in BATCHES:
        pipe(driver, batch)
        if dice.random() < 0.5:
            driver.advance("2s")
    assert results_of(driver).differences(clinic.expected(BATCHES)) == []


@pytest.mark.parametrize("point", [point for point in faults.POINTS if point.startswith(("segment", "commit", "sink"))])
def test_a_crash_in_every_version_changes_nothing(point: str) -> None:
    driver, crashes = driver_of(), 0
    for number, batch in enumerate(BATCHES):
        with faults.active(crash_at(point, 1 + number % 4)), suppress(Crash):
            pipe(driver, batch)
            continue
        crashes += 1
        driver.crash()
    assert crashes > 0
    assert results_of(driver).differences(clinic.expected(BATCHES)) == []
