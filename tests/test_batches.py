"""Spark's batches become versions; a batch that fails for a reason that may pass is run again."""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.batches import BatchFailed, BatchRunner, RunningQuery
from holdfast.clock import SYSTEM_CLOCK, ClockJumped, ManualClock, SteadyClock
from holdfast.ending import Ending
from holdfast.errors import Interrupted, StorageUnavailable
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.spark_errors import FailedInQuery, SparkRefused
from holdfast.settings.model import Settings
from holdfast.settings.sections import RetrySettings


def test_a_retry_asks_where_the_tasks_are_now() -> None:
    places: list[Any] = ["before the move", "after the move"]
    asked: list[Any] = []

    def compute(sources: object, step: object, locations: StateLocations) -> None:
        asked.append(locations)
        if len(asked) == 1:
            raise StorageUnavailable("task 0_0 isn't here.")

    def process(batch: object, work: Callable[[object], None]) -> None:
        work("step")

    parts: dict[str, Any] = {
        "checkpoint": SimpleNamespace(batch=lambda number: number),
        "driver": SimpleNamespace(process=process),
        "work": SimpleNamespace(compute=compute),
    }
    settings = Settings(retry=RetrySettings(first="0s", longest="0s"))
    ending = Ending(settings.stop_timeout, on_failure=lambda cause: None)
    runner = BatchRunner(
        **parts,
        locations=iter(places).__next__,
        settings=settings,
        ending=ending,
        clock=SYSTEM_CLOCK,
    )
    frame: Any = None
    runner.run(frame, 0)
    assert asked == places


def test_a_failed_app_makes_no_further_attempt() -> None:
    """Its instances are gone, and a task would look for them until `batch.read_deadline`."""
    ending = Ending(timedelta(seconds=10), on_failure=lambda cause: None)
    ending.fail(RuntimeError("another driver has taken over"))
    with pytest.raises(Interrupted, match="The next start makes it"):
        ending.pause(3600)


@pytest.mark.parametrize("outcome", ["the clock is back", "the app is stopped"])
def test_a_batch_waits_while_the_clock_is_far_ahead_and_alerts_once(outcome: str) -> None:
    """An app that ended instead would be started again at once by whoever watches it, and a start accepts the clock."""
    clock = ManualClock()
    alerts: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    done: queue.SimpleQueue[object] = queue.SimpleQueue()
    settings = Settings(retry=RetrySettings(attempts=1))
    ending = Ending(settings.stop_timeout, on_failure=lambda cause: None)
    parts: dict[str, Any] = {
        "checkpoint": SimpleNamespace(batch=lambda number: number),
        "driver": SimpleNamespace(process=lambda batch, work: done.put(batch)),
        "work": None,
        "locations": None,
    }
    steady = SteadyClock(clock, timedelta(hours=1), on_jump=alerts.put)
    runner = BatchRunner(**parts, settings=settings, ending=ending, clock=steady, look_seconds=0.001)
    clock.jump(86_400)
    frame: Any = None

    def run() -> None:
        try:
            runner.run(frame, 7)
        except BaseException as error:  # noqa: BLE001  it is compared below
            done.put(error)

    batch = threading.Thread(target=run, daemon=True)
    batch.start()
    assert isinstance(alerts.get(timeout=30), ClockJumped)
    if outcome == "the clock is back":
        clock.jump(-86_400)
        assert done.get(timeout=30) == 7
    else:
        ending.ask()
        assert isinstance(done.get(timeout=30), BatchFailed)
        assert isinstance(runner.failure, Interrupted)
    batch.join(30)
    assert alerts.empty()
    assert done.empty()


@pytest.mark.spark
def test_a_batch_that_comes_while_the_app_stops_ends_the_query_without_an_error(spark: SparkSession) -> None:
    ending = Ending(timedelta(seconds=120), on_failure=lambda cause: None)
    ending.ask()
    parts: dict[str, Any] = dict.fromkeys(("checkpoint", "driver", "work", "locations", "clock"))
    runner = BatchRunner(**parts, settings=Settings(), ending=ending)
    called = threading.Event()

    def batch(frame: DataFrame, number: int) -> None:
        called.set()
        runner.run(frame, number)

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(batch).start()
    assert called.wait(60)
    query.stop()
    assert query.exception() is None


def test_an_app_fails_whose_query_cant_be_started_again() -> None:
    """A step of the query failed, so another query would have to look for the record."""

    def start() -> Any:
        raise SparkRefused("Spark can't start the query.")

    ended: Any = SimpleNamespace(awaitTermination=lambda seconds: True, exception=lambda: None, stop=lambda: None)
    batches: Any = SimpleNamespace(failure=FailedInQuery("x"), work=SimpleNamespace(check_steps=lambda: None))
    spark: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
    failures: list[BaseException] = []
    ending = Ending(timedelta(seconds=1), on_failure=failures.append)
    RunningQuery(ended, spark, batches, ending, start).watch()
    assert [str(failure) for failure in failures] == ["Spark can't start the query."]


def test_a_stop_that_has_to_wait_for_a_batch_says_what_happens(caplog: pytest.LogCaptureFixture) -> None:
    released, ending = threading.Event(), Ending(timedelta(seconds=10), on_failure=lambda cause: None)
    ending.hurry()
    query: Any = SimpleNamespace(isActive=True, stop=released.wait)
    batches: Any = SimpleNamespace(number=7, between_batches=lambda stop: stop())
    runs: Any = SimpleNamespace(isStopped=lambda: False)
    spark: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: runs))
    RunningQuery(query, spark, batches, ending, start=lambda: query).stop()
    released.set()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("holdfast: the driver is still at work on batch 7, and Spark can't interrupt it: ")
