"""Spark's batches become versions; a batch that fails for a reason that may pass is run again."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.batches import BatchRunner
from holdfast.ending import Ending
from holdfast.errors import Interrupted, StorageUnavailable
from holdfast.pipeline.remote_state import StateLocations
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
    runner = BatchRunner(**parts, source="events", locations=iter(places).__next__, settings=settings, ending=ending)
    frame: Any = None
    runner.run(frame, 0)
    assert asked == places


def test_a_failed_app_makes_no_further_attempt() -> None:
    """Its instances are gone, and a task would look for them until `batch.read_deadline`."""
    ending = Ending(timedelta(seconds=10), on_failure=lambda cause: None)
    ending.fail(RuntimeError("another driver has taken over"))
    with pytest.raises(Interrupted, match="The next start makes it"):
        ending.pause(3600)
