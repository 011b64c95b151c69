"""Threads that last: an error that nobody expected is reported, and the loop goes on."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.clock import ManualClock
from holdfast.ending import Ending
from holdfast.lasting import lasting_thread, run_to_its_end
from holdfast.loops import Loops
from tests.instance.processes import until


class Failing:
    """A loop that raises these errors, one per call, and then returns."""

    def __init__(self, *errors: BaseException, lasts: Callable[[], None] = lambda: None) -> None:
        self._errors = iter(errors)
        self._lasts = lasts
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        for error in self._errors:
            self._lasts()
            raise error


def test_a_loop_goes_on_after_any_error_and_ends_when_it_returns(caplog: pytest.LogCaptureFixture) -> None:
    loop = Failing(ValueError("unexpected"), SystemExit(3))
    thread = lasting_thread("example", loop)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert loop.calls == 3
    assert caplog.text.count("the thread example failed and goes on") == 2
    assert "ValueError: unexpected" in caplog.text


def test_pauses_grow_and_the_same_error_is_reported_once() -> None:
    clock, said = ManualClock(), list[BaseException]()
    run_to_its_end(Failing(*[OSError("gone") for _ in range(20)], OSError("other")), said.append, clock)
    assert [str(error) for error in said] == ["gone", "other"]
    assert 15 * 2.5 <= clock.monotonic() <= 21 * 5


def test_an_error_is_reported_again_when_the_loop_has_run_for_long() -> None:
    clock, said = ManualClock(), list[BaseException]()
    run_to_its_end(Failing(OSError("gone"), OSError("gone"), lasts=lambda: clock.advance(61)), said.append, clock)
    assert len(said) == 2


def test_an_error_of_a_loop_of_a_running_app_is_an_alert() -> None:
    ending, alerts, over = Ending(timedelta(seconds=60), lambda error: None), list[BaseException](), threading.Event()
    loops, error = Loops(ending, alerts.append), ValueError("unexpected")
    loop = Failing(error)

    def body() -> None:
        loop()
        over.wait(60)

    loops.start("example", body)
    until(lambda: loop.calls == 2, "it goes on")
    over.set()
    loops.join()
    assert alerts == [error]
