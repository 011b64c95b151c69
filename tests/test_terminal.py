"""The error with which an app in a terminal ends."""

import sys
from datetime import timedelta

import pytest

from holdfast.ending import Ending
from holdfast.errors import TopologyError
from holdfast.states import AppState
from holdfast.terminal import run_in_terminal


class Refused:
    """An app whose start is refused."""

    id = "points"
    state = AppState.CREATED
    cause: BaseException | None = None
    version = 0
    address: str | None = None
    metrics_address: str | None = None

    def __init__(self, error: TopologyError) -> None:
        self.error = error

    def start(self) -> None:
        raise self.error

    def stop(self) -> None:
        """It doesn't run."""


def run(error: TopologyError) -> None:
    app = Refused(error)
    with pytest.raises(TopologyError):
        run_in_terminal(app, Ending(timedelta(seconds=1), on_failure=print), app.start)


def test_an_error_is_one_message_and_the_former_hook_is_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after several runs in one program, whose errors it has caught."""
    others: list[BaseException] = []

    def former(kind: type[BaseException], value: BaseException, trace: object) -> None:
        others.append(value)

    monkeypatch.setattr(sys, "excepthook", former)
    first, second, unrelated = TopologyError("no key"), TopologyError("no store"), ValueError("7")
    run(first)
    run(second)
    sys.excepthook(TopologyError, second, None)
    assert capsys.readouterr().err == "holdfast: points stopped: no store\n"
    assert sys.excepthook is former
    run(first)
    sys.excepthook(ValueError, unrelated, None)
    assert others == [unrelated] and sys.excepthook is former
