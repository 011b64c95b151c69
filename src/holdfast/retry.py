"""Retrying calls that failed for a reason that may pass, with growing waits and a limit.

Only errors of category RETRY are retried, unless the caller says which may pass. Every other error is raised at once,
and so is the last one at the limit.

`RetrySettings` is the policy everywhere. Loops that keep state of their own between attempts (a suspended task, a
restarted process, a client's question) share `backoff` with this one.
"""

import itertools
import logging
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from holdfast import metrics
from holdfast.backoff import backoff
from holdfast.chance import SYSTEM_RANDOM, Random
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.settings.sections import RetrySettings

T = TypeVar("T")

DEFAULT_RETRY = RetrySettings()

_log = logging.getLogger(__name__)
_retries = metrics.counter("holdfast_retries", "Calls that failed and were tried again.", ["error"])


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may work in a moment."""
    return isinstance(error, HoldfastError) and error.category is ErrorCategory.RETRY


class WarnedRarely:
    """Warns of the first failure of a kind and then of one per minute. During an outage every call fails many times.

    The others are logged for those who look for them, and all of them are counted in `holdfast_retries`.

    >>> warned, error = WarnedRarely(), HoldfastError()
    >>> [logging.getLevelName(warned.level(error)) for _ in range(3)]
    ['WARNING', 'DEBUG', 'DEBUG']
    """

    def __init__(self, seconds: float = 60.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[type[HoldfastError], float] = {}
        self._lock = threading.Lock()

    def level(self, error: HoldfastError) -> int:
        now = self._clock.monotonic()
        with self._lock:
            if now - self._last.get(type(error), -math.inf) < self._seconds:
                return logging.DEBUG
            self._last[type(error)] = now
            return logging.WARNING


def retrying(
    fn: Callable[[], T],
    settings: RetrySettings,
    *,
    deadline: timedelta | None = None,
    sleep: Callable[[float], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    random: Random = SYSTEM_RANDOM,
    may_pass: Callable[[HoldfastError], bool] = is_retryable,
    warned: WarnedRarely | None = None,
) -> T:
    """Calls `fn` until it works, fails with an error that can't be retried, or reaches the limit.

    The limit is `settings.attempts`, or `deadline` if one is given. `sleep` can be an event's `wait`, so that stopping
    doesn't wait for a retry; otherwise it is the clock's. `warned` is shared by calls that fail together.

    >>> from holdfast.errors import StorageUnavailable
    >>> answers = iter([StorageUnavailable("no answer"), "here"])
    >>> def ask() -> str:
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> retrying(ask, RetrySettings(first="1ms"))
    'here'
    """

    started = clock.monotonic()
    for failures in itertools.count(1):
        try:
            return fn()
        except HoldfastError as error:
            wait = backoff(failures, settings, random)
            waited = clock.monotonic() - started + wait
            over = failures >= settings.attempts if deadline is None else waited >= deadline.total_seconds()
            if over or not may_pass(error):
                raise
            _retries.labels(type(error).__name__).inc()
            level = logging.WARNING if warned is None else warned.level(error)
            _log.log(level, "attempt %d failed, next in %.2f s: %s", failures, wait, error)
        (sleep or clock.sleep)(wait)
    raise AssertionError("unreachable")
