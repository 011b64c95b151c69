"""What a running app does beside its batches, in threads of its own: clean the log, and look for another driver."""

import logging
from collections.abc import Callable
from datetime import timedelta

from holdfast.ending import Ending
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.cleaning import Cleaner
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.retry import is_retryable
from holdfast.settings.units import format_duration

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Between two looks of an idle driver for another one. A look is one request without a put."""


class CleaningFailed(HoldfastError):
    """The log can't be cleaned. The app goes on."""

    category = ErrorCategory.INVALID


def clean_log(cleaner: Cleaner, interval: timedelta, ending: Ending, alert: Callable[[HoldfastError], None]) -> None:
    """Cleans again and again until the app stops. An error that doesn't pass is an alert, once."""
    reported = ""
    while not ending.wait(interval.total_seconds()):
        try:
            cleaner.clean()
            reported = ""
        except OutdatedDriver:
            return  # `watch_leadership` reports it
        except Exception as error:  # noqa: BLE001  a thread that ends unnoticed would let the log grow for ever
            what = f"{type(error).__name__}: {error}"
            if is_retryable(error):
                logger.warning("cleaning the log failed and is tried again later: %s", error)
            elif what != reported:
                reported = what
                failure = CleaningFailed(
                    f"The log isn't cleaned and grows: {what} The app goes on, and cleaning is tried again every "
                    f"{format_duration(interval)}. Fix the cause; if the error is unknown to you, please report it."
                )
                failure.__cause__ = error
                alert(failure)


def watch_leadership(leadership: Leadership, ending: Ending, free: Callable[[], None]) -> None:
    """Ends an app, also an idle one, when another driver takes over. That one may need what `free` frees."""
    while not ending.wait(_LOOK_SECONDS):
        try:
            leadership.check()
        except OutdatedDriver as error:
            if not ending.failed:
                ending.fail(error)
            free()
            return
        except HoldfastError as error:
            logger.warning("it isn't known whether another driver has taken over: %s", error)
