"""Candidates: what an assignor is told about tasks and members, and what it answers.

Your own assignor is a function with the signature of `Assign`, named by the setting `group.assignor`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.words import TaskId, Version


class Presence(Enum):
    """What the assignor may do with a member."""

    HERE = "here"
    LEAVING = "leaving"
    """An operator drains it: it keeps what it has until another replica can take over, and gets nothing new."""
    STOPPING = "stopping"
    """It ends in a moment and may be back: its active tasks go to others, and what else it has is kept for it."""
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
    newest: Version | None = None
    """A version that was there when it said so: it isn't behind for lack of those that came later. None if that isn't
    known; then its replicas are compared with the newest version there is now."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A task that needs a place."""

    task: TaskId
    everywhere: bool = False
    """Whether every member hosts it: it has a global store."""


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """The answer of an assignor."""

    places: Mapping[TaskId, Place]
    why: Mapping[TaskId, str]
    """Per task one sentence: why it is where it is."""


Assign = Callable[[Sequence[Wanted], Sequence[Candidate], Mapping[TaskId, Place], Version, Rules], Assigned]
