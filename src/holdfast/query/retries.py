"""Reads that start over: because an instance went away, or because the version did.

After an instance or a version has gone away, the read is tried once more in any case, since another replica answers,
or a newer version does. A version that the request names isn't replaced by another one.
"""

from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import Closed
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.freshness import Freshness
from holdfast.query.task_reader import ReadInterrupted, Restoring, VersionGone

T = TypeVar("T")


class Retries:
    """What has gone wrong with one read so far."""

    def __init__(self, freshness: Freshness, clock: Clock) -> None:
        self._named = freshness.at if isinstance(freshness.at, int) else None
        self._clock = clock
        self._until = clock.monotonic() + freshness.wait.total_seconds()
        self.started_over = False

    def check(self, error: ReadInterrupted | VersionNotAvailable) -> None:
        """Raises the error, unless the read starts over."""
        late = self._clock.monotonic() >= self._until
        if isinstance(error, VersionNotAvailable):
            if self._named is not None and error.gone and error.held is not None:
                raise VersionGone(self._named, *error.held) from error
            if not error.gone:
                raise error
        if late and self.started_over:
            raise error
        self.started_over = True


def uninterrupted(read: Callable[[], T]) -> T:
    """The result of a read, from the start if its replica goes away in the middle of it: another one answers.

    It goes with its instance, or from this one: a task that moves elsewhere is dropped while it is read.
    """
    try:
        return read()
    except (ReadInterrupted, Closed, Restoring, VersionNotAvailable):
        return read()
