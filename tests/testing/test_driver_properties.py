"""The test driver gives the same results with crashes as without, and the same as Spark."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.clock import ManualClock
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.sinks.outputs import rows_of
from holdfast.stores.access import Now
from holdfast.stores.kinds.base import millis
from holdfast.testing import TestDriver, records
from holdfast.testing.driver import names_in_tests
from holdfast.testing.log_state import LogState
from holdfast.testing.store_reader import StoreInTest
from holdfast.words import Millis, Version
from tests.apps import read, settings, write
from tests.testing.topologies import GAMES, SCHEMA, SOURCES, START, Batch, build, inputs

POINTS = ("commit.before", "commit.middle", "commit.after", "sink.before", "sink.after", "state.read")


class Crash(BaseException):
    """The end of the process."""


def plain_app(seed: int) -> hf.App:
    app = hf.App("random", settings=hf.Settings(partitions=2))
    build(app, {name: records(GAMES) for name in SOURCES}, Random(seed), with_steps=False)
    return app


def crash_at(random: Random) -> Mapping[str, Callable[[], None]]:
    """A fault at a random point, at the first time or, where a version comes there often, a little later."""
    point = random.choice(POINTS)
    left = 1 if point.startswith("commit") else random.randint(1, 4)

    def handle() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash

    return {point: handle}


def run(app: hf.App, batches: list[Batch], random: Random | None = None) -> dict[str, Any]:
    """The stores and outputs after all batches; with `random`, after a crash now and then."""
    driver = TestDriver(app)
    crashes: list[int] = []

    def step(call: Callable[[], object]) -> None:
        if random is None:
            call()
            return
        try:
            with faults.active(crash_at(random)):
                call()
        except Crash:
            driver.crash()
            crashes.append(driver.version)

    for batch in batches:
        step(partial(driver.pipe_all, batch))
    until = driver.now.wall + 60_000
    while driver.now.wall < until:
        step(lambda: driver.advance(timedelta(milliseconds=until - driver.now.wall)))
    assert random is None or crashes, "no fault point was reached"
    found = {f"store {spec.name}": driver.store(spec.name).items() for spec in app._topology.stores}
    return found | {
        f"output {output}": in_order(driver.output(name))
        for name, output in names_in_tests(app._topology.outputs).items()
    }


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as texts. A dead letter counts as often as it says: which equal ones are together depends on tasks."""
    return sorted(
        repr({name: _same(value) for name, value in row.items() if name not in ("version", "times")})
        for row in rows
        for _ in range(row.get("times", 1))
    )


def _same(value: Any) -> Any:
    if isinstance(value, str):
        # A join with a global table isn't shuffled by key: Spark's tasks have other rows of it, at other places.
        return re.sub(r',"_task":\d+,"_row":\d+', "", value)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.parametrize("seed", range(2))
def test_crashes_change_nothing(seed: int) -> None:
    batches = inputs(Random(seed))
    expected = run(plain_app(seed), batches)
    assert repr(run(plain_app(seed), batches, Random(seed + 1000))) == repr(expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 200))
def test_crashes_change_nothing_in_many_topologies(seed: int) -> None:
    test_crashes_change_nothing(seed)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("seed", "first"), [(6, 1), *(pytest.param(seed, None, marks=pytest.mark.slow) for seed in range(12))]
)
def test_spark_gives_the_same(seed: int, first: int | None, spark: SparkSession, tmp_path: Path) -> None:
    """`make test` has the first batch of a seed, in which every source has records."""
    batches = inputs(Random(seed))[:first]
    on_spark = run_on_spark(spark, tmp_path, seed, batches)
    app = hf.App("random", settings=hf.Settings(partitions=2))
    build(app, {name: records(GAMES) for name in SOURCES}, Random(seed), with_steps=True)
    driver = TestDriver(app)
    for number, batch in enumerate(batches):
        driver.pipe_all(batch)
        assert driver.counts == on_spark["counts"][number]
    driver.advance()
    assert driver.version == on_spark["version"], "what is due after the last batch is made as well"
    for spec in app._topology.stores:
        assert repr(driver.store(spec.name).items()) == repr(on_spark[f"store {spec.name}"]), spec.name
    for name, output in names_in_tests(app._topology.outputs).items():
        assert in_order(driver.output(name)) == on_spark[f"output {output}"], name


def run_on_spark(spark: SparkSession, folder: Path, seed: int, batches: list[Batch]) -> dict[str, Any]:
    """The stores and outputs of an app on Spark, read from its log."""
    for name in SOURCES:
        for number, batch in enumerate(batches):
            write(folder / name, number, batch[name], SCHEMA)
    chosen = settings(folder, batch=hf.BatchSettings(idle_interval="1h", max_clock_jump="1000d"))
    app = hf.App("random", settings=chosen, spark=spark, clock=ManualClock(Millis(millis(START))))
    build(app, {name: read(spark, folder / name, GAMES) for name in SOURCES}, Random(seed), with_steps=True)
    topology = app._topology
    for name in [name for name in topology.outputs if name.endswith("late")]:
        topology.add_sink(name, hf.memory(), None)
    with app:
        app.process_all_available()
    log = Log.open(open_storage(chosen.log_url("random")))
    state = LogState(log, topology.subtopologies, 2)
    now = Now(millis(START), state.now.event)
    found: dict[str, Any] = {}
    for each in topology.subtopologies:
        for place, spec in enumerate(each.stores):
            store = StoreInTest(each, place, list(state.of_store(spec.name)), now)
            found[f"store {spec.name}"] = store.items()
    newest = log.newest()
    assert newest is not None
    found["version"] = newest.version
    commits = [log.commit(Version(number)) for number in range(1, newest.version + 1)]
    found["counts"] = [dict(commit.counts) for commit in commits if commit]
    for name, output in topology.outputs.items():
        parts = [part.table for commit in commits if commit for part in rows_of(output, log, commit)]
        found[f"output {name}"] = in_order([row for table in parts for row in table.to_pylist()])
    return found
