"""The wall clock, when the system's jumps."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.clock import ClockJumped, ManualClock, SteadyClock
from holdfast.pipeline.driver import Driver
from holdfast.retry import is_retryable
from holdfast.words import Millis
from tests.apps import game, read, settings, write
from tests.crash.machine import EVENT_CLOCK, Machine, _spark_batch

HOUR, DAY = 3_600, 86_400


def test_time_passes_also_in_long_pauses_and_small_jumps() -> None:
    clock = ManualClock(Millis(0))
    steady = SteadyClock(clock, timedelta(hours=1))
    clock.advance(30 * DAY)  # a quiet app
    assert steady.now() == 30 * DAY * 1000
    clock.jump(HOUR)
    assert steady.now() == (30 * DAY + HOUR) * 1000


def test_a_clock_that_was_set_back_may_come_back() -> None:
    clock = ManualClock(Millis(0))
    steady = SteadyClock(clock, timedelta(hours=1))
    clock.jump(-DAY)
    assert steady.now() == -DAY * 1000
    clock.advance(5)
    clock.jump(DAY)
    assert steady.now() == 5_000


def test_no_version_is_made_while_the_clock_is_a_day_ahead(tmp_path: Path) -> None:
    """Made at that time, everything with a TTL would expire in it, and the log's clock never goes back."""
    machine = Machine(tmp_path)
    clock = ManualClock(Millis(1_000_000))
    steady = SteadyClock(clock, timedelta(hours=1))
    driver = Driver(machine.log, machine.sinks, steady, machine.driver._leadership, event_clock=EVENT_CLOCK)
    driver.process(_spark_batch(0, [("alice", 1)]), lambda step: machine.computed([("alice", 1)], step))
    clock.advance(1)
    clock.jump(DAY)
    for _ in range(2):
        with pytest.raises(ClockJumped, match="ahead by 1 day, 0:00:00.*restart the app") as jumped:
            driver.process(_spark_batch(1, [("bob", 1)]), lambda step: machine.computed([("bob", 1)], step))
        assert is_retryable(jumped.value)
    clock.jump(-DAY)
    made = driver.process(_spark_batch(1, [("bob", 1)]), lambda step: machine.computed([("bob", 1)], step))
    assert made is not None and made.clocks.wall == 1_001_000
    assert SteadyClock(clock, timedelta(hours=1)).now() == clock.now(), "a start accepts the clock"


@pytest.mark.spark
def test_nothing_is_cleaned_while_the_clock_is_a_day_ahead(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(Millis(1_800_000_000_000))
    write(tmp_path / "input", 1, [game("alice", 1)])
    chosen = settings(tmp_path, log=hf.LogSettings(clean_interval="1s"))
    app = hf.App("points", settings=chosen, spark=spark, clock=clock)
    stream = app.stream(read(spark, tmp_path / "input"), key="player", timestamp="at")
    stream.group_by().count().store("points")
    with app:
        app.process_all_available()
        clock.jump(DAY)
        deadline = time.monotonic() + 60
        while "cleaning the log failed and is tried again later: The wall clock of this" not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0.02)
