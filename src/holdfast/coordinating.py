"""The driver coordinates the group, in a thread of its own: a step per heartbeat interval, and at once after a report.

A report is that a process has ended, that a connection was refused or reset, that a member answers nothing, or that a
process was started. So a new generation follows within a fraction of a second, or of a session, and not only when a
session has timed out. What a step does is in `group/driver_steps.py`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Sequence

from holdfast.chance import new_id
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.driver_heartbeat import DriverHeartbeat
from holdfast.group.driver_steps import DriverSteps
from holdfast.group.failure_detector import FailureDetector
from holdfast.group.generations import Generation
from holdfast.group.members import Member
from holdfast.group.rules import assignor_of, rules_of
from holdfast.group.side_by_side import side_by_side
from holdfast.instance.client import StateClient
from holdfast.instance.credentials import Credentials
from holdfast.lasting import lasting_thread
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.log.objects import Storage
from holdfast.settings.model import Settings

logger = logging.getLogger(__name__)

_PING_SECONDS = 1.0
_END_SECONDS = 1.0


class DriverCoordinator:
    """Proposes generations as the driver of an app. `on_generation` gets each one that is found or made."""

    def __init__(
        self,
        storage: Storage,
        log: str,
        settings: Settings,
        on_generation: Callable[[Generation], None],
        leadership: Leadership | None,
        alert: Callable[[HoldfastError], None] = logger.warning,
    ) -> None:
        group = settings.group
        interval, timeout = group.heartbeat_interval.total_seconds(), group.session_timeout.total_seconds()
        self._log = log
        self._credentials = Credentials.of(settings.security)
        coordinator = Coordinator(
            storage,
            log,
            f"the driver, process {os.getpid()} on {socket.gethostname()}",
            FailureDetector(interval, timeout),
            assignor_of(group, alert),
            rules_of(group, settings.standbys, settings.restore.acceptable_lag),
            new_id,
            check_leads=(lambda: None) if leadership is None else leadership.check,
        )
        self._generations = coordinator.generations
        self.former: Generation | None = None
        """The generation that was in effect when this driver started."""
        self._steps = DriverSteps(
            coordinator,
            DriverHeartbeat(
                storage,
                log,
                process=new_id(),
                host=socket.gethostname(),
                pid=os.getpid(),
                is_outdated=lambda: leadership is not None and leadership.is_outdated,
            ),
            SYSTEM_CLOCK,
            interval=interval,
            timeout=timeout,
            ask=self._ask,
            on_generation=on_generation,
        )
        self._changed = threading.Condition()
        self._needs: Callable[[], Needs] | None = None
        self._look = False
        self._stopping = False
        self._problem: str | None = None
        self._thread = lasting_thread("holdfast-coordinator", self._run)

    def start(self, needs: Callable[[], Needs]) -> None:
        """Makes the first step, and starts the thread if it doesn't run. `needs` is asked at every step."""
        self._needs = needs
        if self._thread.is_alive():
            self._wake()
            return
        self.former = self._generations.follow()
        self._steps.step(needs)
        self._thread.start()

    def stop(self, seconds: float = _END_SECONDS) -> None:
        """Ends the thread, which says so, so that a member coordinates. Waits no longer if the storage hangs."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(min(seconds, _END_SECONDS))
            if self._thread.is_alive():
                logger.warning("the group isn't told yet that the driver ends: the log doesn't answer")

    @property
    def suspected(self) -> Collection[str]:
        """The members that are in the generation and don't answer now."""
        return self._steps.suspected

    def running(self, generation: Generation) -> set[tuple[str, str]]:
        """Member and task of the replicas that run in this generation, as heartbeats say."""
        return self._steps.running(generation)

    def lost(self, id: str, incarnation: int | None = None) -> None:
        """The process of a member has ended, or a connection to it was refused or reset."""
        if self._steps.lost(id, incarnation):
            self._wake()

    def hangs(self, id: str, incarnation: int) -> None:
        """A member has answered none of several calls."""
        if self._steps.hangs(id, incarnation):
            self._wake()

    def started(self, id: str) -> None:
        """The process of a member was started and has joined, or answers again."""
        self._steps.started(id)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._look = True
            self._changed.notify_all()

    def _run(self) -> None:
        assert self._needs is not None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._look or self._stopping, self._steps.pace)
                if self._stopping:
                    break
                self._look = False
            try:
                self._steps.step(self._needs)
                self._problem = None
            except OutdatedDriver as outdated:
                logger.info("the group is coordinated by another driver: %s", outdated)
                return  # the app is about to end, see `upkeep.watch_leadership`
            except HoldfastError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    logger.warning("the group can't be coordinated, and this is tried again: %s", error)
        try:
            self._steps.end()
        except HoldfastError as error:
            logger.debug("the group isn't told that the driver ends: %s", error)

    def _ask(self, members: Sequence[Member]) -> Sequence[bool]:
        return side_by_side(self._answers, members)

    def _answers(self, member: Member) -> bool:
        try:
            with StateClient(member.address, _PING_SECONDS, credentials=self._credentials) as client:
                status = client.status()
        except HoldfastError:
            return False
        return (status.name, status.log, status.process) == (member.id, self._log, member.process)
