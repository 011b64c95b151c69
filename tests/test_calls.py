"""Calls to members end with the app, and whoever waits for one is woken."""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from holdfast.calls import Calls
from holdfast.errors import Interrupted


def test_who_waits_for_calls_that_have_no_turn_yet_is_woken_at_the_end() -> None:
    calls, first, go_on = Calls(1), threading.Event(), threading.Event()

    def answer() -> str:
        first.set()
        assert go_on.wait(60)
        return "answered"

    asked = [calls.submit(answer) for _ in range(3)]
    waiting = threading.Event()

    def wait() -> list[object]:
        answers = as_completed(asked)
        waiting.set()
        return [answer.exception() or answer.result() for answer in answers]

    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(wait)
        assert waiting.wait(60) and first.wait(60)
        calls.close()
        go_on.set()
        found = answers.result(60)
    assert found[0] == "answered" and [type(each) for each in found[1:]] == [Interrupted, Interrupted]


def test_no_call_begins_after_the_end() -> None:
    calls = Calls(1)
    calls.close()
    with pytest.raises(Interrupted):
        calls.submit(lambda: None)
