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
    here = [member.id for member in members if member.presence is Presence.HERE]
    places = {
        wanted.task: before.get(wanted.task, Place(active=here[number % len(here)]))
        for number, wanted in enumerate(tasks)
    }
    return Assigned(places=places, why={})
