"""Trying again: what the world briefly refused, with growing waits and a limit.

Only errors of category RETRY are tried again; every other error comes straight back, and so does the last one when the
limit is reached. Waits double and are drawn at random below that bound, so that many tasks which failed together don't
come back together.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from holdfast import metrics
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.settings import RetrySettings

T = TypeVar("T")

_log = logging.getLogger(__name__)
_retries = metrics.counter("holdfast_retries", "Calls that failed and were tried again.", ["error"])


@dataclass(frozen=True)
class Retried:
    """A failed attempt that another will follow."""

    attempt: int
    attempts: int
    error: HoldfastError
    wait: float  # seconds


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may work in a moment."""
    return isinstance(error, HoldfastError) and error.category is ErrorCategory.RETRY


def retrying(
    fn: Callable[[], T],
    settings: RetrySettings,
    on_retry: Callable[[Retried], None] | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    dice: random.Random | None = None,
) -> T:
    """Calls `fn` until it works, fails for good, or has been tried `settings.attempts` times.

    `sleep` can be an event's `wait`, so that stopping doesn't wait for a retry.

    >>> from holdfast.errors import StorageUnavailable
    >>> answers = iter([StorageUnavailable("gone for a moment"), "here"])
    >>> def ask() -> str:
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> retrying(ask, RetrySettings(first="1ms"), lambda retried: print(retried.attempt, retried.error))
    1 gone for a moment
    'here'
    """
    rng = dice or random.Random()

    def wait(state: tenacity.RetryCallState) -> float:
        bound = min(settings.first.total_seconds() * 2 ** (state.attempt_number - 1), settings.longest.total_seconds())
        return rng.uniform(bound / 2, bound)

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, HoldfastError)
        retried = Retried(state.attempt_number, settings.attempts, error, state.upcoming_sleep)
        _retries.labels(type(error).__name__).inc()
        _log.warning(
            "attempt %d of %d failed, next in %.2f s: %s", retried.attempt, retried.attempts, retried.wait, error
        )
        if on_retry is not None:
            on_retry(retried)

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(settings.attempts),
        wait=wait,
        retry=tenacity.retry_if_exception(is_retryable),
        before_sleep=tell,
        sleep=sleep,
        reraise=True,
    )(fn)
