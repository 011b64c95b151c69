"""A small model of a group around the real assignor: members restore what they are given, crash, return and leave.

Each answer of the assignor is checked (`assignor_checks.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.group.assignor import assign
from holdfast.group.candidates import Assigned, Candidate, Presence, Wanted
from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.words import TaskId, Version
from tests.group.assignor_checks import check_assigned

FIRST = Version(1_000)
AGING = 4
"""How many versions are committed per round: the disk of a member that doesn't run falls behind by as many."""
RESTORE_ROUNDS = 3
"""How many rounds the restore of a replica takes, on a member that isn't slow."""
OPENING_ROUNDS = 2
"""For how many rounds a replica can't be read after a start of its member."""


@dataclass
class Machine:
    """A member and its disk."""

    id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    presence: Presence | None = Presence.HERE
    """None: its session has ended."""
    disk: dict[TaskId, int] = field(default_factory=dict)
    """Per replica, how many versions it is behind."""
    opening: dict[TaskId, int] = field(default_factory=dict)
    """Per replica, for how many rounds it can't be read yet."""
    loading: set[TaskId] = field(default_factory=set)
    """The replicas that load a snapshot: they have no version before all of it is there."""
    slow: int = 1
    """How many times as long its restores take."""

    @property
    def runs(self) -> bool:
        return self.presence in (Presence.HERE, Presence.LEAVING, Presence.STOPPING)


@dataclass
class Group:
    """All machines, the tasks, and the generation in effect."""

    tasks: Sequence[Wanted]
    rules: Rules
    sizes: dict[TaskId, int]
    loads: dict[TaskId, float]
    machines: dict[str, Machine] = field(default_factory=dict)
    places: Mapping[TaskId, Place] = field(default_factory=dict)
    newest: Version = FIRST
    snapshots: bool = False
    """Whether replicas are restored from snapshots."""
    moved: int = 0
    """How many replicas had to be restored."""
    story: list[str] = field(default_factory=list)

    def join(self, id: str, tags: Mapping[str, str] = {}) -> None:
        self.machines[id] = Machine(id, tags)

    def crash(self, id: str) -> None:
        self.machines[id].presence = Presence.AWAY

    def expire(self, id: str) -> None:
        self.machines[id].presence = None

    def leave(self, id: str) -> None:
        self.machines[id].presence = Presence.LEAVING

    def give_back(self, id: str) -> None:
        """It starts again with the disk it had."""
        machine = self.machines[id]
        machine.presence = Presence.HERE
        machine.opening = dict.fromkeys(machine.disk, OPENING_ROUNDS)

    def stop(self, id: str) -> None:
        """It gets SIGTERM."""
        self.machines[id].presence = Presence.STOPPING

    def keep(self, id: str) -> None:
        """It isn't drained any more."""
        self.machines[id].presence = Presence.HERE

    def wipe(self, id: str) -> None:
        """It has lost its disk, and runs."""
        self.machines[id].disk.clear()
        self.machines[id].loading.clear()

    def end(self) -> None:
        """All members that are silent, or that end, are gone for good."""
        for id, machine in self.machines.items():
            if machine.presence in (Presence.AWAY, Presence.STOPPING):
                self.expire(id)
        if not self.here:
            self.give_back(next(iter(self.machines)))

    @property
    def here(self) -> list[str]:
        return [id for id, machine in self.machines.items() if machine.presence is Presence.HERE]

    def candidates(self) -> list[Candidate]:
        return [self._candidate(each) for each in self.machines.values() if each.presence is not None]

    def _candidate(self, machine: Machine) -> Candidate:
        assert machine.presence is not None
        return Candidate(
            id=machine.id,
            presence=machine.presence,
            tags=machine.tags,
            replicas={task: self._hosted(machine, task, behind) for task, behind in machine.disk.items()},
        )

    def _hosted(self, machine: Machine, task: TaskId, behind: int) -> Hosted:
        place = self.places.get(task)
        is_hosted = place is not None and machine.id in place.members and machine.presence is not Presence.AWAY
        close = behind <= self.rules.acceptable_lag and not machine.opening.get(task)
        is_active = place is not None and place.active == machine.id
        loads, size = task in machine.loading, self.sizes[task]
        return Hosted(
            version=0 if loads else max(0, self.newest - behind),
            running=is_hosted and close and not loads,
            bytes=size * (FIRST - min(behind, FIRST)) // FIRST,
            loading=max(1, size) if loads and behind < FIRST else 0,
            load=self.loads[task] if is_active else 0.0,
        )

    def is_close(self, id: str, task: TaskId) -> bool:
        machine = self.machines[id]
        has_all = task in machine.disk and task not in machine.loading and not machine.opening.get(task)
        return has_all and machine.disk[task] <= self.rules.acceptable_lag

    def plan(self) -> Assigned:
        return assign(self.tasks, self.candidates(), self.places, self.newest, self.rules)

    def round(self) -> bool:
        """One generation, and what the members do about it. Whether anything changed."""
        planned = self.plan()
        check_assigned(self.tasks, self.candidates(), self.places, self.newest, self.rules, planned)
        after = planned.places if self.here else self.places
        self.check(after)
        changed = after != self.places
        self.places = after
        self.story.append(f"{[(m.id, m.presence and m.presence.value) for m in self.machines.values()]} {dict(after)}")
        restored = sum(self._follow(machine) for machine in self.machines.values())
        for id, machine in self.machines.items():
            if machine.presence is Presence.LEAVING and not any(id in place.members for place in after.values()):
                machine.presence = None
                self.wipe(id)
        return changed or restored > 0

    def _follow(self, machine: Machine) -> bool:
        """A member that runs restores what it was given a bit further, and deletes what it has no longer."""
        if not machine.runs:
            machine.disk = {task: min(FIRST, behind + AGING) for task, behind in machine.disk.items()}
            return False
        given = {task for task, place in self.places.items() if machine.id in place.members}
        for task in machine.disk.keys() - given:
            del machine.disk[task]
        machine.loading &= given
        progress = any(machine.opening.values())
        machine.opening = {task: rounds - 1 for task, rounds in machine.opening.items() if rounds > 1}
        step = -(-FIRST // (RESTORE_ROUNDS * machine.slow))
        for task in sorted(given):
            if task not in machine.disk:
                machine.disk[task] = FIRST
                self.moved += 1
                if self.snapshots:
                    machine.loading.add(task)
            progress |= machine.disk[task] > 0
            machine.disk[task] = max(0, machine.disk[task] - step)
            if not machine.disk[task]:
                machine.loading.discard(task)
        return progress

    def check(self, places: Mapping[TaskId, Place]) -> None:
        """What has to hold in every generation, at the moment in which it is made."""
        warming = {task: place.warming for task, place in places.items() if not self._hurries(place)}
        if any(set(ids) - set(self.places[task].warming) for task, ids in warming.items() if task in self.places):
            assert sum(map(len, warming.values())) <= self.rules.warmups, "too many replicas are warming"

    def _hurries(self, place: Place) -> bool:
        """What is active on a member that ends is warmed up in addition."""
        return self.machines[place.active].presence is Presence.STOPPING

    def settle(self, limit: int) -> int:
        """Rounds until nothing changes any more."""
        for number in range(limit):
            if not self.round():
                return number
        raise AssertionError(f"not settled after {limit} rounds:\n" + "\n".join(self.story[-12:]))


def tasks_of(count: int, everywhere: int = 0) -> list[Wanted]:
    return [
        *(Wanted(task=TaskId(0, number)) for number in range(count)),
        *(Wanted(task=TaskId(1, number), everywhere=True) for number in range(everywhere)),
    ]
