"""An app in a terminal: Ctrl-C and SIGTERM end it, and a person reads a line when it runs and when it has ended."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from holdfast.ending import Ending
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.states import ACTIVE, AppState


class Runnable(Protocol):
    """What is needed of an app."""

    id: str

    @property
    def state(self) -> AppState: ...
    @property
    def cause(self) -> BaseException | None: ...
    @property
    def version(self) -> int: ...
    @property
    def address(self) -> str | None: ...
    @property
    def metrics_address(self) -> str | None: ...
    def stop(self) -> None: ...


def run_in_terminal(app: Runnable, ending: Ending, start: Callable[[], object]) -> None:
    """Starts an app by `start` and returns when it is stopped. Raises the error that stopped it, if one did."""
    has_run = False
    try:
        with signals(ending):
            start()
            if app.state in ACTIVE:
                has_run = True
                _say(_running(app))
            while not ending.wait(0.2) and app.state in ACTIVE:
                pass
            app.stop()
    except (KeyboardInterrupt, SystemExit):
        _say(f"{app.id} ended at once. Spark repeats its batch at the next start.")
        raise
    except HoldfastError as error:
        _print_alone(app.id, error)
        raise
    if app.state is AppState.ERROR and app.cause is not None:
        _print_alone(app.id, app.cause)
        raise app.cause
    _say(f"{app.id} stopped {f'at version {app.version}' if has_run else 'before it was running'}.")


def _running(app: Runnable) -> str:
    addresses = f". Query it: {app.address}/v1/state" if app.address else ""
    if app.metrics_address:
        addresses += f". The driver's metrics: {app.metrics_address}"
    return f"{app.id} is {app.state} at version {app.version}{addresses}"


def _print_alone(app: str, error: BaseException) -> None:
    """Has Python print this error, if nobody catches it, as its message.

    A traceback would show where Holdfast has noticed it, and no code of the user's. One that may be a bug has it.
    """
    if isinstance(error, HoldfastError) and error.category is not ErrorCategory.BUG:
        former = sys.excepthook
        sys.excepthook = _Alone(app, error, former.former if isinstance(former, _Alone) else former)


@dataclass(frozen=True)
class _Alone:
    """What Python calls for the next error that nobody has caught."""

    app: str
    error: HoldfastError
    former: Callable[[type[BaseException], BaseException, TracebackType | None], object]

    def __call__(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = self.former
        if value is self.error:
            _say(f"{self.app} stopped: {value}")
        else:
            self.former(kind, value, trace)


def _say(line: str) -> None:
    """Prints a line for a person at the terminal; programs use the states."""
    sys.stderr.write(f"holdfast: {line}\n")


@contextlib.contextmanager
def signals(ending: Ending) -> Iterator[None]:
    """Ctrl-C and SIGTERM in a `with` block ask the app to stop; a second one ends it at once.

    Python lets only the main thread handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if not ending.asked:
            ending.ask()
            return
        ending.hurry()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
