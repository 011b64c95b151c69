"""Members and a driver whose steps a test takes itself, on a log in memory and a clock that it moves."""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError
from holdfast.group.assignor import assign
from holdfast.group.candidates import Wanted
from holdfast.group.coordinator import FORGET_AFTER, Coordinator, Needs
from holdfast.group.driver_heartbeat import DriverHeartbeat
from holdfast.group.driver_steps import DriverSteps
from holdfast.group.failure_detector import FailureDetector
from holdfast.group.generations import Generation, Generations, Rules
from holdfast.group.member_steps import MemberSteps
from holdfast.group.members import Hosted, Member
from holdfast.log.objects import Storage
from holdfast.words import TaskId, Version
from tests.group.making import LOG, member, new_storage

INTERVAL, TIMEOUT = 2.0, 10.0
TASKS = [TaskId(0, number) for number in range(4)]
NEWEST = Version(1)
NEEDS = Needs(app_file=1, tasks=[Wanted(task=task) for task in TASKS], newest=NEWEST)
_numbers = itertools.count()


class StepHost:
    """An instance that has every task at once."""

    def __init__(self, group: "Group") -> None:
        self._group = group
        self.roles: dict[TaskId, bool] = {}
        self.apps: list[int] = []
        self.problems: list[str] = []
        self.stays_at: Version | None = None
        """The version of its replicas, if it isn't the newest one."""

    def replicas(self, now: float) -> Mapping[str, Hosted]:
        version = self._group.newest if self.stays_at is None else self.stays_at
        return {str(task): Hosted(version=version, running=True) for task in self.roles}

    def hosted(self) -> Collection[TaskId]:
        return sorted(self.roles)

    def use_app(self, number: int) -> None:
        self.apps.append(number)

    def drop(self, task: TaskId) -> None:
        del self.roles[task]

    def host(self, task: TaskId, *, active: bool) -> None:
        self.roles[task] = active

    def not_hosted(self, task: TaskId, error: HoldfastError) -> None:
        self.problems.append(str(error))

    def ask_peers(self, generation: Generation) -> None:
        assert all(isinstance(generation.replicas(task), tuple) for task in generation.tasks)

    def took(self, generation: Generation) -> None:
        """Nobody asks for it."""

    def is_running(self, holder: Member) -> bool:
        return False

    def look_at_driver(self, *, gone: bool) -> None:
        """Nobody asks for the state of the app."""

    def needs(self) -> Needs | None:
        return self._group.needs()

    def tell(self, generation: Generation) -> None:
        self._group.tell(generation)


@dataclass
class Group:
    rules: Rules = Rules()
    storage: Storage = field(default_factory=new_storage)
    clock: ManualClock = field(default_factory=ManualClock)
    members: dict[str, MemberSteps] = field(default_factory=dict)
    hosts: dict[str, StepHost] = field(default_factory=dict)
    newest: Version = NEWEST

    def needs(self) -> Needs:
        return Needs(app_file=1, tasks=[Wanted(task=task) for task in TASKS], newest=self.newest)

    def coordinator(self, name: str, **settings: object) -> Coordinator:
        return Coordinator(
            self.storage,
            LOG,
            name,
            FailureDetector(INTERVAL, TIMEOUT),
            assign,
            self.rules,
            lambda: f"id-{next(_numbers)}",
            **({"forget_after": FORGET_AFTER} | settings),  # type: ignore[arg-type]
        )

    def join(self, *ids: str, app_file: int | None = None) -> None:
        for id in ids:
            host = self.hosts[id] = StepHost(self)
            self.members[id] = MemberSteps(
                self.storage,
                member(id, 0, process=f"process-{next(_numbers)}"),
                host,
                self.clock,
                interval=INTERVAL,
                timeout=TIMEOUT,
                new_coordinator=(lambda id=id: self.coordinator(id)) if app_file is None else None,  # type: ignore[misc]
                app_file=app_file,
            )

    def driver(self, check_leads: Callable[[], None] = lambda: None, **settings: object) -> DriverSteps:
        return DriverSteps(
            self.coordinator("driver", check_leads=check_leads, **settings),
            DriverHeartbeat(self.storage, LOG, process=f"driver-{next(_numbers)}", host="", pid=0),
            self.clock,
            interval=INTERVAL,
            timeout=TIMEOUT,
            ask=lambda members: [False] * len(members),
            on_generation=self.tell,
        )

    def tell(self, generation: Generation) -> None:
        for steps in self.members.values():
            steps.hear(generation.number)

    def round(self, *ids: str, driver: DriverSteps | None = None) -> None:
        """An interval passes, in which these members (all, if none is named) and the driver take a step."""
        self.clock.advance(INTERVAL)
        for id in ids or tuple(self.members):
            self.members[id].step()
        if driver is not None:
            driver.step(self.needs)

    def active(self) -> dict[str, int]:
        """How many tasks each member is active for, as it says itself."""
        return {id: sum(host.roles.values()) for id, host in self.hosts.items()}


def needs() -> Needs:
    return NEEDS


def settled(*ids: str, standbys: int = 0) -> tuple[Group, DriverSteps]:
    group = Group(Rules(standbys=standbys))
    driver = group.driver()
    driver.step(needs)
    group.join(*ids)
    for _ in range(8):
        group.round(driver=driver)
    return group, driver


def newest(group: Group) -> Generation:
    found = Generations(group.storage, LOG).follow()
    assert found is not None
    return found
