"""Foreign keys, a history and global tables in one app: a crash at any step changes nothing.

The app runs in a test driver, with the log, the tasks and the driver of an app. `test_spark.py` kills it on real Spark.
"""

from contextlib import suppress
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import faults
from holdfast.testing import TestDriver, records
from tests.crash import shop
from tests.crash.machine import Crash, crash_at
from tests.crash.scenario import EVERY_STEP
from tests.crash.shop_oracle import Batch, truth

BATCHES = shop.made_up(12)
COUNTRIES = shop.countries_in(0)


def driver_of() -> TestDriver:
    app = hf.App("shop", settings=hf.Settings(partitions=shop.PARTITIONS, log=EVERY_STEP["log"]))
    frames = [records(schema) for schema in (shop.ORDERS, shop.CUSTOMERS, shop.PRODUCTS_FRAME)]
    shop.build(app, frames, COUNTRIES, Path("nowhere"))
    return TestDriver(app, wall=shop.START)


def results_of(driver: TestDriver) -> shop.Found:
    stores = {name: dict(driver.store(name).items()) for name in shop.STORES}
    return shop.Found(stores, {name: driver.output(name) for name in shop.OUTPUTS})


def pipe(driver: TestDriver, batch: Batch) -> None:
    driver.pipe_all(shop.rows_of(batch))


def test_without_a_crash_everything_is_that_of_a_plain_program() -> None:
    driver, true = driver_of(), truth(BATCHES, COUNTRIES)
    expired = 0
    for batch in BATCHES:
        pipe(driver, batch)
        expired += driver.counts.get("expired/customers", 0)
    assert results_of(driver).differences(true) == []
    assert expired > 0, "some rows are from before the history"
    assert sum(letter["times"] for letter in driver.dead_letters()) == true.unusable > 0
    for column, meaning in ((2, "a city"), (3, "a price"), (4, "a country")):
        assert {row[column] is None for row in true.labelled} == {True, False}, f"with {meaning} and without"
    assert {row is None for _, row in true.both_sent} == {True, False}, "with deleted rows and without"


@pytest.mark.parametrize("point", [point for point in faults.POINTS if point.startswith(("segment", "commit", "sink"))])
@pytest.mark.parametrize("batches", [BATCHES[:5], pytest.param(BATCHES, marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_crash_in_every_version_changes_nothing(batches: list[Batch], point: str) -> None:
    driver, crashes = driver_of(), 0
    for number, batch in enumerate(batches):
        with faults.active(crash_at(point, 1 + number % 4)), suppress(Crash):
            pipe(driver, batch)
            continue
        crashes += 1
        driver.crash()
    assert crashes > 0
    assert results_of(driver).differences(truth(batches, COUNTRIES)) == []
