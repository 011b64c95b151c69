"""An instance in its group: a thread writes its heartbeats, follows the generations and hosts what they name for it.

Without a live driver, the live member with the smallest id also coordinates: it proposes generations. An instance whose
storage doesn't answer keeps what it hosts and serves it.
"""

import logging
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.chance import new_id
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError
from holdfast.group.driver_heartbeat import DriverWatch
from holdfast.group.generations import Generation
from holdfast.group.judge import Judge
from holdfast.group.members import Hosted, Member, MemberState, check_id
from holdfast.group.membership import Membership, Replaced, Status
from holdfast.group.pace import interval_for
from holdfast.instance.addresses import rest_address
from holdfast.instance.client import StateClient
from holdfast.instance.config import Role
from holdfast.instance.credentials import NotAuthenticated
from holdfast.instance.events import report_problem
from holdfast.instance.instance import Instance
from holdfast.instance.leftover_state import LeftoverState
from holdfast.instance.read_rates import ReadRates
from holdfast.log.storage import open_storage
from holdfast.words import NOTHING, TaskId

if TYPE_CHECKING:
    from holdfast.group.coordinator import Coordinator, Needs

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 2.0
"""How long another process may take to say that it has the id, or to hear of a generation."""
_DRAIN_LOOK = 0.2


class GroupMember:
    """One instance as a member of its group. `step` is called by a thread of its own, about once per interval."""

    def __init__(self, instance: Instance, rest: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        config = instance.config
        self._instance = instance
        self._clock = clock
        self._id = check_id(config.name)
        self._storage = open_storage(config.log_url, config.log.options, fsync=False, retry=config.retry)
        self._log = instance.log.id
        self._state = MemberState.JOINED
        self._rest = rest
        self._interval = config.group.heartbeat_interval.total_seconds()
        self._timeout = config.group.session_timeout.total_seconds()
        self._generation: Generation | None = None
        self._not_hosted: dict[TaskId, str] = {}
        """Tasks that couldn't be hosted, and why. They are tried again."""
        self._rates = ReadRates()
        self._leftover = LeftoverState(Path(config.state_dir), config.name, config.state.cleanup_delay.total_seconds())
        self._driver = DriverWatch(self._storage, self._log, self._interval, self._timeout)
        self._coordinator: Coordinator | None = None
        self._wake = threading.Condition()
        self._look = False
        self._stopping = False
        self._problem: str | None = None
        self._membership = self._joined()
        self._beaten = clock.monotonic()
        self._take(self._membership.newest())
        instance.look_at_group = self.look
        self._thread = threading.Thread(target=self._run, name="group", daemon=True)
        self._thread.start()

    def _joined(self) -> Membership:
        member = Member(
            log=self._log,
            id=self._id,
            incarnation=1,
            process=self._instance.process,
            beat=0,
            address=self._instance.address,
            rest=None if self._rest is None else rest_address(self._instance.config, self._rest),
            host=socket.gethostname(),
            pid=os.getpid(),
            tags=self._instance.config.tags,
        )
        return Membership.join(self._storage, member, self._status, self._answers)

    def _answers(self, holder: Member) -> bool:
        """Whether the process that has this id still runs."""
        try:
            with StateClient(holder.address, _ANSWER_SECONDS, credentials=self._instance.credentials) as client:
                status = client.status()
        except NotAuthenticated:
            return True  # it refuses this process, so it runs
        except HoldfastError:
            return False
        return (status.name, status.log, status.process) == (self._id, self._log, holder.process)

    def look(self, number: int) -> None:
        """There is a generation of this number: looks at the log at once."""
        with self._wake:
            if self._generation is None or number > self._generation.number:
                self._look = True
                self._wake.notify_all()

    def drain(self, seconds: float) -> None:
        """Hands the tasks over to others, for at most this long. This instance serves them meanwhile."""
        self._state = MemberState.LEAVING
        until = self._clock.monotonic() + seconds
        with self._wake:
            self._look = True
            self._wake.notify_all()
            while not self._has_handed_over() and self._clock.monotonic() < until and not self._stopping:
                self._wake.wait(_DRAIN_LOOK)

    def _has_handed_over(self) -> bool:
        """Whether this instance is active for no task, or nobody else is there who could be."""
        generation = self._generation
        if generation is None or not generation.members.keys() - {self._id}:
            return True
        return all(place.active != self._id for place in generation.tasks.values())

    def stop(self) -> None:
        """Ends the thread and says that this instance has left."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(self._instance.config.stop_seconds * 0.2)
        try:
            self._membership.leave()
        except HoldfastError as error:
            _LOG.debug("the group isn't told that this instance has left: %s", error)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._look or self._stopping, self._pause())
                if self._stopping:
                    return
                self._look = False
            try:
                self.step(self._clock.monotonic())
                self._problem = None
            except Replaced as replaced:
                self._instance.fail(replaced)
                return
            except HoldfastError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    _LOG.warning("the group can't be followed, and this is tried again: %s", error)
            except Exception as error:  # noqa: BLE001  a thread that ends unnoticed would leave the group
                report_problem(self._instance.events, None, error)

    def _pause(self) -> float:
        members = 1 if self._generation is None else len(self._generation.members)
        return interval_for(members, self._interval, self._timeout)

    def step(self, now: float) -> None:
        """One heartbeat, and what follows from the newest generation."""
        self._leftover.look(now, [hosted.replica.task for hosted in self._instance.hosted()])
        generation = self._membership.step()
        self._beaten = now
        if not self._instance.config.embedded and self._driver.is_gone(now):
            self._instance.app_state = None  # that of a driver that has ended
            generation = self._coordinated(now) or generation
        self._take(generation)
        with self._wake:
            self._wake.notify_all()

    # Hosting

    def _take(self, generation: Generation | None) -> None:
        """Hosts what a generation names for this instance."""
        if generation is None or (generation == self._generation and not self._not_hosted):
            return
        instance, known = self._instance, self._generation
        if known is None or known.number != generation.number:
            _LOG.info("generation %d: %s", generation.number, generation.reason)
        # The driver that has started this instance may use a newer app file than a generation of an earlier driver.
        if instance.config.app_file is None or known is not None:
            instance.use_app(generation.app_file)
        own = {TaskId.parse(task): place for task, place in generation.hosted_by(self._id).items()}
        for hosted in instance.hosted():
            if hosted.replica.task not in own:
                instance.drop(hosted.replica.task)
                self._beat_if_due()
        instance.peers = {task: generation.replicas(task) for task in generation.tasks}
        self._not_hosted = {task: why for task, why in self._not_hosted.items() if task in own}
        for task, place in own.items():
            self._host(task, Role.ACTIVE if place.active == self._id else Role.STANDBY)
            self._beat_if_due()
        self._generation, instance.generation = generation, generation.number

    def _beat_if_due(self) -> None:
        """Many tasks take longer than a session: the others must not take this member for gone meanwhile."""
        if self._clock.monotonic() - self._beaten < self._pause():
            return
        try:
            self._membership.beat()
        except HoldfastError as error:
            _LOG.debug("a heartbeat is missing: %s", error)
        self._beaten = self._clock.monotonic()

    def _host(self, task: TaskId, role: Role) -> None:
        try:
            self._instance.host(task, role)
            self._not_hosted.pop(task, None)
        except HoldfastError as error:
            if self._not_hosted.get(task) != str(error):
                self._not_hosted[task] = str(error)
                report_problem(self._instance.events, task, error)

    def _status(self) -> Status:
        hosted, now = self._instance.hosted(), self._clock.monotonic()
        rates = self._rates.look(now, {each.replica.task: each.reads for each in hosted})
        tasks = {
            str(task): Hosted(version=version, running=False) for task, version in self._leftover.versions().items()
        }
        for each in hosted:
            task = each.replica.task
            tasks[str(task)] = Hosted(
                version=each.replica.version,
                running=each.caught_up,
                bytes=self._instance.disk_bytes(each),
                load=rates[task],
                heavy=each.heavy.heaviest(now, each.replica.specs),
            )
        return Status(state=self._state, generation=self._instance.generation, tasks=tasks)

    # Coordinating without a driver

    def _coordinated(self, now: float) -> Generation | None:
        """The newest generation, which may be one of this member, if it is the one that coordinates."""
        coordinator = self._coordinator = self._coordinator or self._new_coordinator()
        coordinator.look(now)
        coordinator.judge.vouch(self._id)
        # By then every other member that lives has been seen to: a first look knows of none.
        if coordinator.judge.has_looked_for(now) < 2 * self._pause():
            return None
        if min(coordinator.judge.live(), default=self._id) != self._id or (needs := self._needs()) is None:
            return None
        before = self._generation
        after = coordinator.propose(needs)
        if after is not None and (before is None or after.number > before.number):
            self._tell(after)
        return after

    def _new_coordinator(self) -> "Coordinator":
        # Few instances coordinate, and every start of an app waits for the imports of its own.
        from holdfast.group.coordinator import Coordinator
        from holdfast.group.rules import assignor_of, rules_of

        config = self._instance.config
        return Coordinator(
            self._storage,
            self._log,
            self._id,
            Judge(self._interval, self._timeout),
            assignor_of(config.group),
            rules_of(config.group, config.standbys, config.restore.acceptable_lag),
            new_id,
            keeps_rules=True,
        )

    def _needs(self) -> "Needs | None":
        """The tasks of the app file of the newest commit; None if there is no commit yet."""
        from holdfast.group.rules import needs_of

        newest = self._instance.source.newest()
        if newest == NOTHING:
            return None
        return needs_of(self._instance.source.app_of(newest), newest)

    def _tell(self, generation: Generation) -> None:
        """Tells the other members that there is a new generation. One that isn't reached finds it by itself."""

        credentials = self._instance.credentials

        def tell(address: str) -> None:
            try:
                with StateClient(address, _ANSWER_SECONDS, credentials=credentials) as client:
                    client.generation(generation.number)
            except HoldfastError as error:
                _LOG.debug("the instance at %s wasn't told of generation %d: %s", address, generation.number, error)

        others = [member.flight for id, member in generation.members.items() if id != self._id]
        with ThreadPoolExecutor(max(1, min(16, len(others)))) as pool:
            list(pool.map(tell, others))
