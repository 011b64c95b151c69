"""The threads beside the batches: what they do with errors, and when another driver takes over."""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.ending import Ending
from holdfast.errors import HoldfastError, StorageUnavailable
from holdfast.log.cleaning import Cleaner
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.upkeep import CleaningFailed, clean_log, watch_leadership
from holdfast.words import Millis
from tests.instance.app_log import new_url
from tests.log.making import Watched, app_spec, grow

SOON = timedelta(milliseconds=1)


def cleaned_with(errors: Callable[[int], Exception | None], times: int) -> list[HoldfastError]:
    """The alerts of a cleaner whose nth cleaning fails with an error."""
    log = Log.create_or_open(open_storage(new_url()), app_spec())
    grow(log, 3)
    tries, enough = iter(range(10_000)), threading.Event()

    def check_leads() -> None:
        if (number := next(tries)) >= times:
            enough.set()
        elif (error := errors(number)) is not None:
            raise error

    cleaner = Cleaner(
        Log.open(Watched(log.storage)),
        retention=timedelta(0),
        sinks=lambda: (),
        clock=SYSTEM_CLOCK,
        check_leads=check_leads,
    )
    alerts: queue.SimpleQueue[HoldfastError] = queue.SimpleQueue()
    ending = Ending(timedelta(seconds=5), on_failure=lambda error: None)
    thread = threading.Thread(target=clean_log, args=(cleaner, SOON, ending, alerts.put), daemon=True)
    thread.start()
    assert enough.wait(30), "the loop goes on"
    ending.ask()
    thread.join(30)
    return [alerts.get() for _ in range(alerts.qsize())]


def test_an_unexpected_error_of_the_cleaner_is_an_alert_once_and_cleaning_goes_on() -> None:
    (alert,) = cleaned_with(lambda number: ZeroDivisionError("a bug"), 5)
    assert isinstance(alert, CleaningFailed)
    assert "The log isn't cleaned and grows: ZeroDivisionError: a bug" in str(alert)
    assert isinstance(alert.__cause__, ZeroDivisionError)


def test_a_storage_that_is_away_for_a_while_is_not_an_alert(caplog: pytest.LogCaptureFixture) -> None:
    assert cleaned_with(lambda number: StorageUnavailable("no answer"), 3) == []
    assert "tried again later: no answer" in caplog.text


def test_an_idle_driver_ends_and_frees_its_places_when_another_one_takes_over() -> None:
    storage = open_storage(new_url())
    leadership = Leadership.take_over(storage, "L", "a", Millis(0))
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    ending, freed = Ending(timedelta(seconds=5), on_failure=failures.put), threading.Event()
    watch = threading.Thread(target=watch_leadership, args=(leadership, ending, freed.set), daemon=True)
    watch.start()
    Leadership.take_over(storage, "L", "b", Millis(1))
    failure = failures.get(timeout=30)
    watch.join(30)
    assert isinstance(failure, OutdatedDriver)
    assert "driver b, epoch 2" in str(failure)
    assert freed.is_set()
    assert failures.empty()
