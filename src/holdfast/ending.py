"""How an app ends: a caller asks it to stop, or one of its parts fails.

From the first request on, the app has `stop_timeout` to end. Its parts end one after the other, and each waits until a
share of that time is used, so that the parts after it have time too:

    the current batch ─► Spark's query ─► sinks ─► instances
                   0.5            0.7    0.85         1.0

A part that has not ended by then is given up, also if it waits for a log that doesn't answer. Nothing is lost: Spark
repeats a batch, a sink gets its version again, and an instance restores from the log.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import Interrupted

BATCH, QUERY, SINKS, ALL = 0.5, 0.7, 0.85, 1.0
"""The share of the time that is used when a part is given up."""
_LOOK_SECONDS = 0.1
"""How often a wait for a call looks whether it has been given up."""

T = TypeVar("T")


class Ending:
    """The end of one app. Any thread may ask for it and look at it.

    >>> from holdfast.clock import ManualClock
    >>> clock = ManualClock()
    >>> ending = Ending(timedelta(seconds=10), on_failure=print, clock=clock)
    >>> clock.advance(seconds=60); ending.left(BATCH)
    5.0
    >>> ending.ask(); clock.advance(seconds=7); ending.left(BATCH), ending.left(SINKS)
    (0.0, 1.5)
    """

    def __init__(
        self, timeout: timedelta, on_failure: Callable[[BaseException], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._timeout = timeout.total_seconds()
        self._on_failure = on_failure
        self._clock = clock
        # Its lock is reentrant: a signal handler may ask while the same thread is inside one of these methods.
        self._changed = threading.Condition()
        self._asked_at: float | None = None
        self.explain: Callable[[BaseException], BaseException] = lambda cause: cause
        """Finds the cause behind the failure of a part: the driver may be outdated."""
        self._failure: BaseException | None = None
        """The error of the part that failed first."""
        self._cause: BaseException | None = None
        """What `explain` found behind it, once it has answered: that takes a request to the log."""

    def ask(self) -> None:
        """Asks the app to stop. Interrupts its start and waits before a retry."""
        with self._changed:
            if self._asked_at is None:
                self._asked_at = self._clock.monotonic()
                self._changed.notify_all()

    def hurry(self) -> None:
        """Asks the app to stop without waiting for anything."""
        self.ask()
        self._timeout = 0.0

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def has_begun(self) -> bool:
        """Whether the app was asked to stop, or has failed."""
        return self.asked or self.failed

    def left(self, share: float = ALL) -> float:
        """The seconds until this share of the time is used: all of the share until the app is asked to stop."""
        used = 0.0 if self._asked_at is None else self._clock.monotonic() - self._asked_at
        return max(0.0, self._timeout * share - used)

    def is_over(self, share: float) -> bool:
        """Whether the app was asked to stop and has used this share of the time."""
        return self.asked and self.left(share) == 0.0

    def wait(self, seconds: float | None, until: Callable[[], bool] = lambda: False) -> bool:
        """Waits, at most until `until` is true at a `wake`, and returns whether the app was asked to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.asked or until(), seconds)
            return self.asked

    def wake(self) -> None:
        """Lets those that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Waits before another attempt. Raises when the app is asked to stop, or has failed."""
        with self._changed:
            if self._changed.wait_for(self.has_begun, seconds):
                raise Interrupted("The app stops before another attempt. The next start makes it.")

    def call(self, what: str, call: Callable[[], T]) -> T:
        """Calls what may hang, in a thread of its own. Raises Interrupted when it is given up."""
        done = Future[T]()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001  the caller that waits for it raises it
                done.set_exception(error)

        threading.Thread(target=run, name="holdfast-start-call", daemon=True).start()
        while not done.done():
            wait([done], _LOOK_SECONDS)
            if self.is_over(BATCH) and not done.done():
                raise Interrupted(f"The app was told to stop, and {what} didn't return in time: it is left to itself.")
        return done.result()

    def check(self) -> None:
        if self.asked:
            raise Interrupted("The app was told to stop before it had started.")

    def fail(self, cause: BaseException) -> None:
        """A part of the app can't go on. Failures while the app is stopping are not reported."""
        with self._changed:
            if self.asked:
                return
            if self._failure is None:
                self._failure = cause
            self._changed.notify_all()
        explained = self.explain(cause)
        with self._changed:
            if self._cause is None:
                self._cause = explained
        self._on_failure(explained)

    def cause_of(self, error: BaseException) -> BaseException:
        """Why a call on this app ended with an error: the part that failed first has stopped the others.

        >>> ending = Ending(timedelta(seconds=10), on_failure=lambda cause: None)
        >>> ending.cause_of(OSError("alone"))
        OSError('alone')
        >>> ending.fail(ValueError("first")); ending.cause_of(Interrupted("an effect"))
        ValueError('first')
        """
        if self._cause is not None:
            return self._cause
        if self._failure is None and self.asked:
            return error
        return self.explain(self._failure or error)
