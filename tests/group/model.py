"""A small model of a group around the real assignor: members restore what they are given, crash, return and leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.group.assignor import assign
from holdfast.group.candidates import Assigned, Candidate, Presence, Wanted
from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.words import TaskId, Version

FIRST = Version(1_000)
AGING = 4
"""How many versions are committed per round: the disk of a member that doesn't run falls behind by as many."""
RESTORE_ROUNDS = 3
"""How many rounds the restore of a replica takes."""


@dataclass
class Machine:
    """A member and its disk."""

    id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    presence: Presence | None = Presence.HERE
    """None: its session has ended."""
    disk: dict[TaskId, int] = field(default_factory=dict)
    """Per replica, how many versions it is behind."""


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
        self.machines[id].presence = Presence.HERE

    def wipe(self, id: str) -> None:
        """It has lost its disk, and runs."""
        self.machines[id].disk.clear()

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
        close = behind <= self.rules.acceptable_lag
        is_active = place is not None and place.active == machine.id
        return Hosted(
            version=max(0, self.newest - behind),
            running=is_hosted and close,
            bytes=self.sizes[task] * (FIRST - min(behind, FIRST)) // FIRST,
            load=self.loads[task] if is_active else 0.0,
        )

    def is_close(self, id: str, task: TaskId) -> bool:
        return self.machines[id].disk.get(task, self.newest) <= self.rules.acceptable_lag

    def plan(self) -> Assigned:
        return assign(self.tasks, self.candidates(), self.places, self.newest, self.rules)

    def round(self) -> bool:
        """One generation, and what the members do about it. Whether anything changed."""
        after = self.plan().places
        self.check(after)
        changed = after != self.places
        self.places = after
        self.story.append(f"{[(m.id, m.presence and m.presence.value) for m in self.machines.values()]} {dict(after)}")
        restored = sum(self._follow(machine) for machine in self.machines.values())
        for id, machine in self.machines.items():
            if machine.presence is Presence.LEAVING and not any(id in place.members for place in after.values()):
                machine.presence = None
                machine.disk.clear()
        return changed or restored > 0

    def _follow(self, machine: Machine) -> bool:
        """A member that runs restores what it was given a bit further, and deletes what it has no longer."""
        if machine.presence not in (Presence.HERE, Presence.LEAVING):
            machine.disk = {task: min(FIRST, behind + AGING) for task, behind in machine.disk.items()}
            return False
        given = {task for task, place in self.places.items() if machine.id in place.members}
        for task in machine.disk.keys() - given:
            del machine.disk[task]
        progress = False
        step = -(-FIRST // RESTORE_ROUNDS)
        for task in sorted(given):
            if task not in machine.disk:
                machine.disk[task] = FIRST
                self.moved += 1
            progress |= machine.disk[task] > 0
            machine.disk[task] = max(0, machine.disk[task] - step)
        return progress

    def check(self, places: Mapping[TaskId, Place]) -> None:
        """What has to hold in every generation, at the moment in which it is made."""
        known = {id for id, machine in self.machines.items() if machine.presence is not None}
        assert places.keys() == {each.task for each in self.tasks}, "a task has no place"
        assert sum(len(place.warming) for place in places.values()) <= self.rules.warmups
        for task, place in places.items():
            assert len(set(place.members)) == len(place.members), f"{task} is twice on one member: {place}"
            assert known.issuperset(place.members), f"{task} is on a member that is gone: {place}"
            caught_up = [id for id in self.here if self.is_close(id, task)]
            assert not caught_up or place.active in caught_up or self._hands_over(task, place), (
                f"{task} is active on {place.active} and not on one of {caught_up}: {place}"
            )

    def _hands_over(self, task: TaskId, place: Place) -> bool:
        """A member that leaves is caught up too, and keeps the role until another one can be read."""
        is_leaving = self.machines[place.active].presence is Presence.LEAVING
        return is_leaving and self.is_close(place.active, task)

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
