"""What an instance does as a member of its group, in steps. Threads, sockets and waiting are elsewhere.

A step writes a heartbeat, looks for the newest generation, and has the instance host what that names for it. Without a
live driver, the live member with the smallest id also coordinates: it proposes generations. A step that fails changes
nothing that is hosted, so an instance whose storage doesn't answer serves what it has.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.group.driver_heartbeat import DriverWatch
from holdfast.group.failure_detector import Liveness
from holdfast.group.generations import Generation
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.group.membership import Membership, Status
from holdfast.group.pace import interval_for
from holdfast.log.objects import Storage
from holdfast.words import TaskId

if TYPE_CHECKING:
    from holdfast.group.coordinator import Coordinator, Needs

_LOG = logging.getLogger(__name__)
_LATE = 1.5
"""A step that takes longer than this many intervals has its next heartbeat written for it."""


class Host(Protocol):
    """The instance, as its steps in the group need it."""

    def replicas(self, now: float) -> Mapping[str, Hosted]:
        """What the heartbeat says: the replicas here, also those that are left on the disk."""

    def hosted(self) -> Collection[TaskId]:
        """The tasks that are hosted now, in order."""

    def use_app(self, number: int) -> None:
        """Uses an app file from now on. Replicas whose stores differ in it are dropped."""

    def drop(self, task: TaskId) -> None: ...

    def host(self, task: TaskId, *, active: bool) -> None:
        """Hosts a task from now on, or changes its role. Returns before it is restored."""

    def not_hosted(self, task: TaskId, error: HoldfastError) -> None:
        """A task can't be hosted. It is tried again; each error is told once."""

    def ask_peers(self, generation: Generation) -> None:
        """From now on what isn't here is asked from the members of this generation."""

    def took(self, generation: Generation) -> None:
        """All that a generation names for this member is hosted."""

    def is_running(self, holder: Member) -> bool:
        """Whether the process that wrote a heartbeat still runs."""

    def look_at_driver(self, *, gone: bool) -> None:
        """Whether there surely is no driver: then what it said about its app is outdated."""

    def needs(self) -> "Needs | None":
        """What has to be placed, as the log has it; None if there is no version yet."""

    def tell(self, generation: Generation) -> None:
        """Tells the other members of a new generation. One that isn't reached finds it by itself."""


class MemberSteps:
    """One instance as a member. `step` is called about once per `pace`, and at once where `hear` says so."""

    def __init__(
        self,
        storage: Storage,
        member: Member,
        host: Host,
        clock: Clock,
        *,
        interval: float,
        timeout: float,
        new_coordinator: "Callable[[], Coordinator] | None",
        app_file: int | None = None,
    ) -> None:
        """Joins the group. Raises IdInUse if another process has the id.

        One without `new_coordinator` never coordinates, and can't be drained. `app_file` is the one it was started
        with, if someone chose one.
        """
        self._host = host
        self._clock = clock
        self._id = member.id
        self._interval, self._timeout = interval, timeout
        self._app_file = app_file
        self._new_coordinator = new_coordinator
        self._coordinator: Coordinator | None = None
        self._driver = DriverWatch(storage, member.log, interval, timeout)
        self._state = MemberState.JOINED
        self._generation: Generation | None = None
        self._warms_up = False
        """Whether a task is to move here as soon as this member says that its replica is caught up."""
        self._not_hosted: dict[TaskId, str] = {}
        """Tasks that couldn't be hosted, and why. They are tried again."""
        self._told = 0
        """The newest generation that someone has told of."""
        self._nobody_stays = self._looks_back = False
        self._membership = Membership.join(storage, member, self._status, host.is_running)
        self._beaten = clock.monotonic()
        self._take(self._membership.newest())

    @property
    def member(self) -> Member:
        """The last heartbeat."""
        return self._membership.member

    @property
    def generation(self) -> Generation | None:
        """The generation whose tasks are hosted here."""
        return self._generation

    @property
    def coordinator(self) -> "Coordinator | None":
        """What this member proposes generations with, while it looks at the others."""
        return self._coordinator

    @property
    def pace(self) -> float:
        """The seconds between two steps. Nobody waits longer than necessary for a replica that is moving."""
        if self._state is MemberState.LEAVING or self._warms_up:
            return self._interval
        members = 1 if self._generation is None else len(self._generation.members)
        return interval_for(members, self._interval, self._timeout)

    def hear(self, number: int) -> bool:
        """Someone says that there is a generation of this number; whether that is new, so that a step is due."""
        if self._generation is not None and number <= self._generation.number:
            return False
        self._told = max(self._told, number)
        return True

    def look_back(self) -> None:
        """The log was set back: the next step takes the generation that it has, whatever its number."""
        self._looks_back = True

    def step(self) -> None:
        """One heartbeat, and what follows from the newest generation. Raises Replaced when this process has to stop."""
        now = self._clock.monotonic()
        told, self._told = self._told, 0
        if self._looks_back:
            self._looks_back, self._coordinator = False, None
            self._membership.look_back()
        generation = self._membership.step(told)
        self._beaten = now
        if self._new_coordinator is not None:
            driverless, leaving = self._driver.is_gone(now, self.pace), self._state is MemberState.LEAVING
            self._host.look_at_driver(gone=driverless)
            if driverless or leaving:
                coordinator = self._coordinator = self._coordinator or self._new_coordinator()
                coordinator.look(now, self.pace)
                coordinator.detector.vouch(self._id)
                self._nobody_stays = leaving and not self._staying(coordinator, generation)
                if driverless:
                    generation = self._coordinated(coordinator, now) or generation
            else:
                self._coordinator = None  # by the next time, what its detector knew is long ago
        self._take(generation)

    def keep_alive(self) -> None:
        """Writes a heartbeat if a step takes long. Called by another thread than the steps, twice per `pace`.

        A step may wait for an upload to end before it closes a replica, or for the log. The instance serves meanwhile,
        and the others must not take it for gone. Raises Replaced when this process has to stop.
        """
        now = self._clock.monotonic()
        if now - self._beaten >= _LATE * self.pace:
            self._membership.beat_again()
            self._beaten = now

    def _coordinated(self, coordinator: "Coordinator", now: float) -> Generation | None:
        """The newest generation, which may be one of this member, if it is the one that coordinates."""
        # By then every other member that lives has been seen to: a first look knows of none.
        if coordinator.detector.has_looked_for(now) < 2 * self.pace:
            return None
        if min(coordinator.detector.live(), default=self._id) != self._id or (needs := self._host.needs()) is None:
            return None
        after = coordinator.propose(needs)
        if after is not None and (self._generation is None or after.number > self._generation.number):
            self._host.tell(after)
        coordinator.tidy(now)
        return after

    # Leaving

    def start_leaving(self) -> None:
        """From the next step on, others are asked to take over what is hosted here."""
        self._state = MemberState.LEAVING

    def has_handed_over(self) -> bool:
        """Whether this member is active for no task, or nobody who stays could be."""
        generation = self._generation
        if generation is None or self._nobody_stays or not generation.members.keys() - {self._id}:
            return True
        return all(place.active != self._id for place in generation.tasks.values())

    def _staying(self, coordinator: "Coordinator", generation: Generation | None) -> bool:
        """Whether another member could host tasks: it lives, as far as one can know, and doesn't leave."""
        known = {} if generation is None else generation.members

        def is_here(id: str) -> bool:
            liveness = coordinator.detector.liveness(id)
            return liveness is Liveness.LIVE or (liveness is Liveness.UNKNOWN and id in known)

        return any(
            member.state is MemberState.JOINED and id not in coordinator.draining and is_here(id)
            for id, member in coordinator.members.items()
            if id != self._id
        )

    def leave(self) -> None:
        """Says that this instance has ended, so that nobody asks it."""
        self._membership.leave()

    # Hosting

    def _take(self, generation: Generation | None) -> None:
        """Hosts what a generation names for this instance."""
        if generation is None or (generation == self._generation and not self._not_hosted):
            return
        host, known = self._host, self._generation
        if known is None and self._app_file not in (None, generation.app_file):
            # Of an earlier driver, whose app may have other tasks. The one that has started this instance proposes its
            # own.
            return
        if known is None or known.number != generation.number:
            _LOG.info("generation %d: %s", generation.number, generation.reason)
        host.use_app(generation.app_file)
        own = {TaskId.parse(task): place for task, place in generation.hosted_by(self._id).items()}
        host.ask_peers(generation)  # first, so that a read of a task that is dropped finds those who have it now
        for task in host.hosted():
            if task not in own:
                host.drop(task)
                self._beat_if_due()
        self._not_hosted = {task: why for task, why in self._not_hosted.items() if task in own}
        for task, place in sorted(own.items()):
            self._host_one(task, active=place.active == self._id)
            self._beat_if_due()
        self._generation = generation
        self._warms_up = any(self._id in place.warming for place in own.values())
        host.took(generation)

    def _host_one(self, task: TaskId, *, active: bool) -> None:
        try:
            self._host.host(task, active=active)
            self._not_hosted.pop(task, None)
        except HoldfastError as error:
            if self._not_hosted.get(task) != str(error):
                self._not_hosted[task] = str(error)
                self._host.not_hosted(task, error)

    def _beat_if_due(self) -> None:
        """Many tasks take longer than a session: the others must not take this member for gone meanwhile."""
        if self._clock.monotonic() - self._beaten < self.pace:
            return
        try:
            self._membership.beat()
        except HoldfastError as error:
            _LOG.debug("a heartbeat is missing: %s", error)
        self._beaten = self._clock.monotonic()

    def _status(self) -> Status:
        number = 0 if self._generation is None else self._generation.number
        tasks = self._host.replicas(self._clock.monotonic())
        return Status(state=self._state, generation=number, tasks=tasks, pace=self.pace)
