"""How the driver of an app coordinates its group, in steps. Threads, sockets and waiting are elsewhere.

A step writes the driver's heartbeat, looks at the members, and proposes a generation if there is a reason for one.
Between steps others report: a process has ended, a connection was refused or reset, a member answers nothing, a process
was started. The next step takes their reports into account, so it should follow at once.

A member that answers nothing hangs only if its heartbeats are missing, too. One that is slow or cut off from the driver
still writes them: its replicas are asked last by callers that have waited for it, and to take its roles from it and
give them back would cost more.
"""

import threading
from collections.abc import Callable, Collection, Sequence

from holdfast.clock import Clock
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.driver_heartbeat import DriverHeartbeat
from holdfast.group.failure_detector import Liveness
from holdfast.group.generations import Generation
from holdfast.group.members import Member, MemberState
from holdfast.group.pace import interval_for

Ask = Callable[[Sequence[Member]], Sequence[bool]]
"""Asks the processes that wrote some heartbeats whether they run."""

MISSED = 2
"""So many heartbeats of a member that answers nothing have to be missing. At one, it may be late."""


class DriverSteps:
    """The coordination of one driver. `step` is called by one thread, and reports come from any."""

    def __init__(
        self,
        coordinator: Coordinator,
        heartbeat: DriverHeartbeat,
        clock: Clock,
        *,
        interval: float,
        timeout: float,
        ask: Ask,
        on_generation: Callable[[Generation], None],
    ) -> None:
        self._coordinator = coordinator
        self._heartbeat = heartbeat
        self._clock = clock
        self._interval, self._timeout = interval, timeout
        self._ask = ask
        self._on_generation = on_generation
        self._known: Generation | None = None
        self._asked: dict[str, tuple[int, str]] = {}
        self._reporting = threading.Lock()
        self._lost: dict[str, int | None] = {}
        self._hanging: dict[str, int] = {}
        self._started: set[str] = set()

    @property
    def generation(self) -> Generation | None:
        """The generation in effect, as far as this driver knows."""
        return self._known

    @property
    def pace(self) -> float:
        """The seconds between two steps. A member that leaves doesn't wait longer than necessary for its last task."""
        members, detector = self._coordinator.members.items(), self._coordinator.detector
        if any(each.state is MemberState.LEAVING and detector.liveness(id) is Liveness.LIVE for id, each in members):
            return self._interval
        count = 1 if self._known is None else len(self._known.members)
        return interval_for(count, self._interval, self._timeout)

    @property
    def suspected(self) -> Collection[str]:
        """The members that are in the generation and don't answer now."""
        members = () if self._known is None else self._known.members
        return {id for id in members if self._coordinator.detector.liveness(id) in (Liveness.SUSPECTED, Liveness.GONE)}

    def running(self, generation: Generation) -> set[tuple[str, str]]:
        """Member and task of the replicas that run in this generation, as the last heartbeats say."""
        return {
            (id, task)
            for id, member in self._coordinator.members.items()
            if member.generation >= generation.number
            for task, hosted in member.tasks.items()
            if hosted.running
        }

    def lost(self, id: str, incarnation: int | None = None) -> bool:
        """The process of a member has ended, or a connection to it was refused or reset; whether that is new."""
        if self._coordinator.detector.liveness(id) is not Liveness.LIVE:
            return False
        with self._reporting:
            self._lost[id] = incarnation
        return True

    def hangs(self, id: str, incarnation: int) -> bool:
        """A member has answered nothing for a while; whether that is new. It is reported again as long as it lasts."""
        if self._coordinator.detector.liveness(id) is not Liveness.LIVE:
            return False
        with self._reporting:
            self._hanging[id] = incarnation
        return True

    def started(self, id: str) -> None:
        """The process of a member was started and has joined, or answers again."""
        with self._reporting:
            self._started.add(id)

    def step(self, needs: Callable[[], Needs]) -> None:
        """One look at the members, and a new generation if there is a reason for one."""
        self._heartbeat.beat()
        coordinator, now = self._coordinator, self._clock.monotonic()
        coordinator.look(now, self.pace)
        with self._reporting:
            lost, self._lost = self._lost, {}
            hanging, self._hanging = self._hanging, {}
            started, self._started = self._started, set()
        silent = {
            id: it for id, it in hanging.items() if coordinator.detector.silent_for(id, now) >= MISSED * self.pace
        }
        # After the look: a heartbeat that was written just before the end would clear the suspicion.
        for id, incarnation in {**silent, **lost}.items():
            member = coordinator.members.get(id)
            if incarnation is None or member is None or member.incarnation == incarnation:
                coordinator.detector.suspect(id)
        for id in sorted({*started, *self._answering(started)}):
            coordinator.detector.vouch(id)
        found = coordinator.propose(needs())
        if found is not None and (self._known is None or found.id != self._known.id):
            self._known = found
            self._on_generation(found)
        coordinator.tidy(now)

    def end(self) -> None:
        """Says that this driver has ended, so that a member coordinates."""
        self._heartbeat.end()

    def _answering(self, started: Collection[str]) -> list[str]:
        """Those members, of which only an old heartbeat is known, that answer now. Each is asked once."""
        coordinator = self._coordinator
        unknown = [
            member
            for id, member in sorted(coordinator.members.items())
            if coordinator.detector.liveness(id) is Liveness.UNKNOWN
            and member.state is not MemberState.LEFT
            and id not in started
            and self._asked.get(id) != (member.incarnation, member.process)
        ]
        self._asked |= {member.id: (member.incarnation, member.process) for member in unknown}
        answers = self._ask(unknown) if unknown else ()
        return [member.id for member, here in zip(unknown, answers, strict=True) if here]
