"""Retrying calls that failed for a reason that may pass, with growing waits and a limit.

Only errors of category RETRY are retried. Every other error is raised at once, and so is the last one at the limit. The
longest possible wait doubles with every failure, and the wait is drawn from its upper half, so that many tasks that
failed together don't all come back together.

`RetrySettings` is the policy everywhere. Loops that keep state of their own between attempts (a suspended task, a
restarted process) share `backoff`.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import tenacity

from holdfast import metrics
from holdfast.chance import SYSTEM_RANDOM, Random
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.settings.sections import RetrySettings

T = TypeVar("T")

DEFAULT_RETRY = RetrySettings()

_log = logging.getLogger(__name__)
_retries = metrics.counter("holdfast_retries", "Calls that failed and were tried again.", ["error"])


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may work in a moment."""
    return isinstance(error, HoldfastError) and error.category is ErrorCategory.RETRY


def backoff(failures: int, settings: RetrySettings, random: Random = SYSTEM_RANDOM) -> float:
    """Seconds to wait after this many failures in a row.

    >>> settings = RetrySettings(first="1s", longest="5s")
    >>> [round(backoff(failures, settings, Random(7)), 2) for failures in (1, 2, 3, 4, 5000)]
    [0.66, 1.32, 2.65, 3.31, 3.31]
    """
    doublings = min(failures - 1, 32)  # beyond that a float overflows, and every `longest` is reached
    bound = min(settings.first.total_seconds() * 2**doublings, settings.longest.total_seconds())
    return random.uniform(bound / 2, bound)


def retrying(
    fn: Callable[[], T],
    settings: RetrySettings,
    *,
    deadline: timedelta | None = None,
    sleep: Callable[[float], None] = SYSTEM_CLOCK.sleep,
    random: Random = SYSTEM_RANDOM,
) -> T:
    """Calls `fn` until it works, fails with an error that can't be retried, or reaches the limit.

    The limit is `settings.attempts`, or `deadline` if one is given. `sleep` can be an event's `wait`, so that stopping
    doesn't wait for a retry.

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

    def report(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, HoldfastError)
        _retries.labels(type(error).__name__).inc()
        _log.warning("attempt %d failed, next in %.2f s: %s", state.attempt_number, state.upcoming_sleep, error)

    return tenacity.Retrying(
        stop=tenacity.stop_before_delay(deadline)
        if deadline is not None
        else tenacity.stop_after_attempt(settings.attempts),
        wait=lambda state: backoff(state.attempt_number, settings, random),
        retry=tenacity.retry_if_exception(is_retryable),
        before_sleep=report,
        sleep=sleep,
        reraise=True,
    )(fn)
