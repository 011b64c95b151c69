"""Threads that run as long as the part of the program they belong to.

Each runs a loop that handles the errors it knows. One that nobody expected would end the thread, and with it unnoticed
what it is for: replicas would stay behind, or an app would have no coordinator. Here such an error is reported, and the
loop is started again after a pause that grows. A loop ends its thread by returning.
"""

import logging
import threading
from collections.abc import Callable

from holdfast.backoff import backoff
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.settings.sections import RetrySettings

Report = Callable[[BaseException], None]

_LOG = logging.getLogger(__name__)
_RETRY = RetrySettings(first="500ms", longest="5s")
_LONG = 60.0
"""After so many seconds without an error, the next one has a new cause: it is reported, and the pauses start over."""


def lasting_thread(name: str, loop: Callable[[], None], report: Report | None = None) -> threading.Thread:
    """A daemon thread, not started yet, that runs `loop` until it returns. Errors are logged, or given to `report`."""
    told = report or (lambda error: _LOG.error("the thread %s failed and goes on", name, exc_info=error))
    return threading.Thread(target=run_to_its_end, args=(loop, told), name=name, daemon=True)


def run_to_its_end(loop: Callable[[], None], report: Report, clock: Clock = SYSTEM_CLOCK) -> None:
    """Calls `loop` until it returns. An error that follows the same one at once is reported only the first time.

    >>> errors = iter([ValueError("a"), ValueError("a"), None])
    >>> def loop() -> None:
    ...     if (error := next(errors)) is not None:
    ...         raise error
    >>> from holdfast.clock import ManualClock
    >>> run_to_its_end(loop, print, ManualClock())
    a
    """
    failures, before = 0, ""
    while True:
        began = clock.monotonic()
        try:
            return loop()
        except BaseException as error:  # noqa: BLE001  SystemExit too: it would end the thread unnoticed
            if clock.monotonic() - began >= _LONG:
                failures, before = 0, ""
            failures += 1
            if repr(error) != before:
                before = repr(error)
                report(error)
        clock.sleep(backoff(failures, _RETRY))
