"""The driver coordinates the group, in a thread of its own: a step per heartbeat interval, and at once after a report.

A report is that a process has ended, that a connection was refused or reset, or that a process was started. So a new
generation follows within a fraction of a second, and not only when a session has timed out.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from holdfast.chance import new_id
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.driver_heartbeat import DriverHeartbeat
from holdfast.group.generations import KEPT, Generation
from holdfast.group.judge import Judge, Standing
from holdfast.group.members import Member, MemberState
from holdfast.group.pace import interval_for
from holdfast.group.rules import assignor_of, rules_of
from holdfast.instance.client import StateClient
from holdfast.instance.credentials import Credentials
from holdfast.log.objects import Storage
from holdfast.settings.model import Settings

logger = logging.getLogger(__name__)

_PING_SECONDS = 1.0
_PINGS = 16
_END_SECONDS = 1.0


class DriverCoordinator:
    """Proposes generations as the driver of an app. `on_generation` gets each one that is found or made."""

    def __init__(
        self, storage: Storage, log: str, settings: Settings, on_generation: Callable[[Generation], None]
    ) -> None:
        group = settings.group
        self._interval = group.heartbeat_interval.total_seconds()
        self._timeout = group.session_timeout.total_seconds()
        self._log = log
        self._credentials = Credentials.of(settings.security)
        self._coordinator = Coordinator(
            storage,
            log,
            f"the driver, process {os.getpid()} on {socket.gethostname()}",
            Judge(self._interval, self._timeout),
            assignor_of(group),
            rules_of(group, settings.standbys, settings.restore.acceptable_lag),
            new_id,
        )
        self._heartbeat = DriverHeartbeat(storage, log, process=new_id(), host=socket.gethostname(), pid=os.getpid())
        self._on_generation = on_generation
        self._known: Generation | None = None
        self._pinged: dict[str, tuple[int, str]] = {}
        self._changed = threading.Condition()
        self._needs: Callable[[], Needs] | None = None
        self._lost: dict[str, int | None] = {}
        self._started: set[str] = set()
        self._look = False
        self._stopping = False
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-coordinator", daemon=True)

    def start(self, needs: Callable[[], Needs]) -> None:
        """Makes the first step, and starts the thread if it doesn't run. `needs` is asked at every step."""
        self._needs = needs
        if self._thread.is_alive():
            self._wake()
            return
        self._heartbeat.beat()
        self.step()
        self._coordinator.generations.clean()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and says so, so that a member coordinates."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)
            try:
                if not self._thread.is_alive():  # otherwise the storage doesn't answer now
                    self._heartbeat.end()
            except HoldfastError as error:
                logger.debug("the group isn't told that the driver ends: %s", error)

    @property
    def suspected(self) -> Collection[str]:
        """The members that are in the generation and don't answer now."""
        members = () if self._known is None else self._known.members
        return {id for id in members if self._coordinator.judge.standing(id) in (Standing.SUSPECTED, Standing.GONE)}

    def lost(self, id: str, incarnation: int | None = None) -> None:
        """The process of a member has ended, or a connection to it was refused or reset."""
        with self._changed:
            if self._coordinator.judge.standing(id) is Standing.LIVE:
                self._lost[id] = incarnation
                self._wake()

    def started(self, id: str) -> None:
        """The process of a member was started and has joined."""
        with self._changed:
            self._started.add(id)
            self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._look = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                members = 1 if self._known is None else len(self._known.members)
                pause = interval_for(members, self._interval, self._timeout)
                self._changed.wait_for(lambda: self._look or self._stopping, pause)
                if self._stopping:
                    return
                self._look = False
            try:
                self._heartbeat.beat()
                self.step()
                self._problem = None
            except HoldfastError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    logger.warning("the group can't be coordinated, and this is tried again: %s", error)
            except Exception:
                # A thread that ends unnoticed would leave the group without a coordinator.
                logger.exception("the group can't be coordinated, and this is tried again")

    def step(self) -> None:
        """One look at the members, and a new generation if there is a reason for one."""
        assert self._needs is not None
        with self._changed:
            lost, self._lost = self._lost, {}
            started, self._started = self._started, set()
        coordinator = self._coordinator
        coordinator.look(SYSTEM_CLOCK.monotonic())
        # After the look: a heartbeat that was written just before the end would clear the suspicion.
        for id, incarnation in lost.items():
            member = coordinator.members.get(id)
            if incarnation is None or member is None or member.incarnation == incarnation:
                coordinator.judge.suspect(id)
        for id in {*started, *self._answering()}:
            coordinator.judge.vouch(id)
        found = coordinator.propose(self._needs())
        if found is not None and (self._known is None or found.id != self._known.id):
            self._known = found
            self._on_generation(found)
            if found.number % KEPT == 0:
                coordinator.generations.clean()

    def _answering(self) -> list[str]:
        """Those members, of which only an old heartbeat is known, that answer now. Each is asked once."""
        coordinator = self._coordinator
        unknown = [
            member
            for id, member in coordinator.members.items()
            if coordinator.judge.standing(id) is Standing.UNKNOWN
            and member.state is not MemberState.LEFT
            and id not in self._started
            and self._pinged.get(id) != (member.incarnation, member.process)
        ]
        if not unknown:
            return []
        self._pinged |= {member.id: (member.incarnation, member.process) for member in unknown}
        with ThreadPoolExecutor(min(_PINGS, len(unknown)), thread_name_prefix="holdfast-ping") as pool:
            return [member.id for member, here in zip(unknown, pool.map(self._answers, unknown), strict=True) if here]

    def _answers(self, member: Member) -> bool:
        try:
            with StateClient(member.address, _PING_SECONDS, credentials=self._credentials) as client:
                status = client.status()
        except HoldfastError:
            return False
        return (status.name, status.log, status.process) == (member.id, self._log, member.process)
