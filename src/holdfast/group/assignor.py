"""The assignor: where the replicas of every task should be. A pure function of what is known about the members.

Your own assignor is a function with the signature of `assign`, named by the setting `group.assignor`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from holdfast.group.generations import Place
from holdfast.group.members import Hosted
from holdfast.words import TaskId, Version


class Presence(Enum):
    """What the assignor may do with a member."""

    HERE = "here"
    LEAVING = "leaving"
    """It keeps what it has until another replica can take over, and gets nothing new."""
    AWAY = "away"
    """It doesn't answer, but its session has not ended: what it has is kept for it, and it isn't asked first."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A member, as the assignor sees it."""

    id: str
    presence: Presence = Presence.HERE
    tags: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[TaskId, Hosted] = field(default_factory=dict)
    """The replicas that it says it has, from local state or from hosting them now."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A task that needs a place."""

    task: TaskId
    everywhere: bool = False
    """Whether every member hosts it: it has a global store."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    standbys: int = 0
    spread_by: tuple[str, ...] = ()
    acceptable_lag: int = 10
    warmups: int = 2


@dataclass(frozen=True, kw_only=True)
class Assigned:
    places: Mapping[TaskId, Place]
    why: Mapping[TaskId, str]
    """Per task one sentence: why it is where it is."""


Assign = Callable[[Sequence[Wanted], Sequence[Candidate], Mapping[TaskId, Place], Version, Rules], Assigned]


def assign(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
) -> Assigned:
    """The next places of all tasks. `before` has their places in the generation before."""
    placed = _Placing(members, newest, rules)
    places = {wanted.task: placed.place(wanted, before.get(wanted.task)) for wanted in tasks}
    return Assigned(places=places, why={})


class _Placing:
    """Places one task after the other, each on the members that have the fewest so far."""

    def __init__(self, members: Sequence[Candidate], newest: Version, rules: Rules) -> None:
        self._members = {member.id: member for member in members}
        self._here = [member.id for member in members if member.presence is Presence.HERE]
        self._newest = newest
        self._rules = rules
        self._active = dict.fromkeys(self._members, 0)
        self._all = dict.fromkeys(self._members, 0)

    def place(self, wanted: Wanted, was: Place | None) -> Place:
        task = wanted.task
        active = self._next_active(task, was)
        standbys = [id for id in (was.members if was else ()) if id != active and id in self._members]
        most = len(self._members) - 1 if wanted.everywhere else min(self._rules.standbys, len(self._members) - 1)
        standbys = [id for id in standbys if self._members[id].presence is not Presence.LEAVING][:most]
        while len(standbys) < most and (more := self._emptiest(task, {active, *standbys})):
            standbys.append(more)
        warming: tuple[str, ...] = ()
        if self._members[active].presence is Presence.LEAVING and not standbys:
            more = self._emptiest(task, {active})
            warming = (more,) if more else ()
        self._active[active] += 1
        for id in (active, *standbys, *warming):
            self._all[id] += 1
        return Place(active=active, standbys=tuple(standbys), warming=warming)

    def _next_active(self, task: TaskId, was: Place | None) -> str:
        """The member that is active, if it is here; otherwise one that is caught up; otherwise any."""
        here = [id for id in (was.members if was else ()) if id in self._here]
        if was is not None and was.active in self._here:
            return was.active
        ready = [id for id in here if self._is_ready(id, task)]
        if ready:
            return ready[0]
        if was is not None and was.active in self._members:
            return was.active
        return here[0] if here else min(self._here, key=lambda id: (-self._version(id, task), self._active[id], id))

    def _emptiest(self, task: TaskId, but: set[str]) -> str | None:
        free = [id for id in self._here if id not in but]
        return min(free, key=lambda id: (-self._version(id, task), self._all[id], id), default=None)

    def _is_ready(self, id: str, task: TaskId) -> bool:
        hosted = self._members[id].replicas.get(task)
        return hosted is not None and hosted.running and hosted.version + self._rules.acceptable_lag >= self._newest

    def _version(self, id: str, task: TaskId) -> int:
        """The version of what it has of the task, or -1: a folder on its disk saves most of a restore."""
        hosted = self._members[id].replicas.get(task)
        return -1 if hosted is None else hosted.version
