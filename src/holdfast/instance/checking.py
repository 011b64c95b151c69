"""Each replica is checked once per opening, as soon as it is running: after a restore, a move or a restart.

One that differs from the log is an alert, and is rebuilt; readers use another replica meanwhile. If the rebuilt one
differs too, the log itself is the cause, or a bug: that is an alert, and the replica stays as it is. No snapshot of a
replica is saved until it was checked, so that a difference doesn't get into the log.
"""

import logging
from collections.abc import Callable

from holdfast import metrics
from holdfast.errors import HoldfastError
from holdfast.instance.events import Events, report_problem
from holdfast.instance.log_reader import LogReader
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.instance.replica import Replica
from holdfast.instance.replica_check import ReplicaDiffers, check_replica
from holdfast.stores.engines.base import DamagedState

_LOG = logging.getLogger(__name__)
_checks = metrics.counter("holdfast_replica_checks", "Replicas compared with the log, by the result.", ["result"])


class Repaired(ReplicaDiffers):
    """A replica differed from the log and is rebuilt."""

    def __init__(self, cause: HoldfastError) -> None:
        HoldfastError.__init__(self, f"{cause} It is rebuilt from the log. Check the disk of this machine.")


class DiffersAgain(ReplicaDiffers):
    """A replica that was rebuilt still differs from the log: no check has passed in between."""

    def __init__(self, cause: HoldfastError) -> None:
        HoldfastError.__init__(
            self,
            f"{cause} It was rebuilt before, so it stays as it is, and no snapshot of it is saved. Check the storage "
            "of the log, and please report this.",
        )


class ReplicaCheck:
    """The check of one replica. A loop calls `step` again and again."""

    def __init__(
        self,
        replica: Replica,
        source: LogReader,
        events: Events,
        *,
        is_running: Callable[[], bool],
        rebuild: Callable[[HoldfastError], None],
    ) -> None:
        self._replica = replica
        self._source = source
        self._events = events
        self._is_running = is_running
        self._rebuild = rebuild
        self._done = -1
        self._passed = -1
        """The number of the opening that was last compared, and of the last one that was as the log says."""
        self._rebuilt = False
        """Whether it was rebuilt since the last check that passed."""

    @property
    def passed(self) -> bool:
        """Whether the replica, as it was last opened, has what the log says."""
        return self._passed == self._replica.openings

    def step(self) -> None:
        opening = self._replica.openings
        if self._done == opening or not self._is_running() or self._replica.must_look_back:
            return
        try:
            found = check_replica(self._replica, self._source)
        except VersionNotAvailable:
            return  # it has moved on, or starts over; the next round looks again
        except (ReplicaDiffers, DamagedState) as error:
            if self._replica.openings == opening and not self._replica.must_look_back:
                self._differs(error, opening)
            return
        self._done = self._passed = opening
        if found is not None:
            self._rebuilt = False  # another difference, weeks later, has another cause
            _checks.labels("passed").inc()
            _LOG.debug("task %s is as the log says: %s", self._replica.task, found)

    def _differs(self, error: HoldfastError, opening: int) -> None:
        _checks.labels("differs").inc()
        self._done = opening
        report_problem(self._events, self._replica.task, DiffersAgain(error) if self._rebuilt else Repaired(error))
        if not self._rebuilt:
            self._rebuilt = True
            self._rebuild(error)
