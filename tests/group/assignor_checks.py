"""What has to hold of every answer of the assignor, whatever it is asked. Tests of all kinds check it."""

from collections.abc import Mapping, Sequence

from holdfast.group.candidates import Assigned, Candidate, Presence, Wanted
from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.words import NOTHING, TaskId, Version

SMALL = 1 << 30
"""As many bytes can be restored elsewhere before a member that ends has ended."""


def check_assigned(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
    assigned: Assigned,
) -> None:
    """Raises AssertionError for an answer that breaks a rule."""
    if any(each.presence is Presence.HERE for each in members):
        by_id = {each.id: each for each in members}
        for each in tasks:
            assert each.task in assigned.places, f"{each.task} has no place"
            checks = _Checks(each.task, by_id, before.get(each.task), newest, rules)
            checks.check(assigned.places[each.task], assigned.why[each.task].partition(";")[0])


class _Checks:
    """The checks of one task."""

    def __init__(
        self, task: TaskId, members: Mapping[str, Candidate], before: Place | None, newest: Version, rules: Rules
    ) -> None:
        self._task = task
        self._members = members
        self._before = before
        self._newest = newest
        self._rules = rules
        self._here = {id for id, member in members.items() if member.presence is Presence.HERE}
        self._hosted = {id: member.replicas[task] for id, member in members.items() if task in member.replicas}
        self._answering = {id for id in self._hosted if members[id].presence is not Presence.AWAY and self._runs(id)}

    def _is_close(self, id: str) -> bool:
        known, hosted = self._members[id].newest, self._hosted.get(id)
        newest = self._newest if known is None else min(known, self._newest)
        has_data = hosted is not None and (hosted.version != NOTHING or hosted.running or newest == NOTHING)
        return hosted is not None and has_data and newest - hosted.version <= self._rules.acceptable_lag

    def _runs(self, id: str) -> bool:
        return self._hosted[id].running and self._is_close(id)

    def check(self, place: Place, reason: str) -> None:
        told = f"{self._task}: {self._before} -> {place} ({reason}), where {self._hosted} and here are {self._here}"
        assert len({*place.members}) == len(place.members), f"a member is named twice; {told}"
        assert {*place.members} <= self._members.keys(), f"a member is gone; {told}"
        self._check_active(place, told)
        if self._before is not None:
            self._check_role(self._before, place, reason, told)
            self._check_dropped(self._before, place, told)
        self._check_ending(place, told)

    def _check_active(self, place: Place, told: str) -> None:
        """The active replica is one that answers, if any does. One that restarts is waited for."""
        if self._newest == NOTHING or self._before is None:
            return  # nothing has to be restored
        answering = self._answering & {*self._before.members}
        close = {id for id in self._here if self._is_close(id)}
        if answering & self._here & {*place.members}:
            right = self._here & (self._answering | close)
            assert place.active in right, f"the active replica can't be read, and another one can; {told}"
        elif answering:
            running = {id for id, hosted in self._hosted.items() if hosted.running}
            assert place.active in close | running, f"who leaves has the only copy, and isn't active; {told}"

    def _check_role(self, before: Place, place: Place, reason: str, told: str) -> None:
        """A replica that can be read gives its role away to no other one than one that can be read too."""
        was = before.active
        if self._newest == NOTHING:
            return  # what isn't needed to answer moves at once
        if place.active != was and was in self._here and was in self._hosted and self._hosted[was].running:
            assert place.active in self._answering & self._here, f"the role went to one that can't be read; {told}"
            assert was not in self._answering or "behind" not in reason, f"it was not behind; {told}"

    def _check_dropped(self, before: Place, place: Place, told: str) -> None:
        wanted = min(1 + self._rules.standbys, len(self._here))
        dropped, left = {*before.members} - {*place.members}, self._here & {*place.members}
        if any(id in self._answering and self._hosted[id].version != NOTHING for id in dropped):
            assert len(left & self._answering) >= wanted, f"one that answers was dropped too early; {told}"
        begun = {id for id, hosted in self._hosted.items() if hosted.version != NOTHING or hosted.loading}
        if any(id in self._here & begun and id not in before.warming for id in dropped):
            # One that runs lacks so little that it has begun, also where the app has few versions.
            kept = left & (begun | self._answering)
            assert len(kept) >= wanted, f"one that was being restored was dropped; {told}"

    def _check_ending(self, place: Place, told: str) -> None:
        """What only a member that ends has is restored elsewhere, unless there is too much of it."""
        if self._members[place.active].presence is Presence.STOPPING and not self._here & {*place.members}:
            sizes = (sum(map(_size, member.replicas.values())) for member in self._members.values())
            assert sum(sizes) >= SMALL, f"nobody takes over; {told}"


def _size(hosted: Hosted) -> int:
    return max(hosted.bytes, hosted.loading)
