"""The assignor as coordinators of the simulation call it: each of its answers is checked, and what it is told."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.group import assignor
from holdfast.group.candidates import Assigned, Candidate, Presence, Wanted
from holdfast.group.coordinator import Coordinator
from holdfast.group.generations import Place, Rules
from holdfast.words import TaskId, Version
from tests.group.assignor_checks import check_assigned
from tests.simulation.model import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

_FIRST = 2
"""At so many calls a coordinator can't know what the heartbeats that it finds can know."""


class Assigning:
    """The real assignor between its checks."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._newest: dict[tuple[str, int], Version] = {}
        """The newest version at the time of each heartbeat, by process and number."""
        self._calls: dict[int, int] = {}
        self._found: set[tuple[int, str, int]] = set()
        """The heartbeats that each coordinator has found at its first calls."""

    def stored(self, process: str, beat: int) -> None:
        """A member has written a heartbeat."""
        self._newest[process, beat] = self._world.model.newest

    def __call__(
        self,
        tasks: Sequence[Wanted],
        members: Sequence[Candidate],
        before: Mapping[TaskId, Place],
        newest: Version,
        rules: Rules,
    ) -> Assigned:
        self._check_told(members, newest)
        try:
            assigned = assignor.assign(tasks, members, before, newest, rules)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Violation(f"the assignor raises {error!r}") from error
        try:
            check_assigned(tasks, members, before, newest, rules, assigned)
        except AssertionError as error:
            raise Violation(str(error)) from error
        return assigned

    def _check_told(self, members: Sequence[Candidate], newest: Version) -> None:
        """A heartbeat isn't compared with versions that were made after it was written."""
        process = self._world.stack[-1]
        coordinator: Coordinator | None = getattr(process, "coordinator", None)
        if coordinator is None:
            return
        number = id(process)
        calls = self._calls[number] = self._calls.get(number, 0) + 1
        for each in members:
            member = coordinator.members[each.id]
            heartbeat = number, member.process, member.beat
            if calls <= _FIRST:
                self._found.add(heartbeat)
            most = self._newest.get((member.process, member.beat))
            told = newest if each.newest is None else min(newest, each.newest)
            if each.presence is not Presence.AWAY and most is not None and told > most and heartbeat not in self._found:
                raise Violation(f"the heartbeat of {each.id} is from version {most}, and is compared with {told}")
