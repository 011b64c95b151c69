"""A draft: the places of all tasks while the assignor works on them, with what each member would carry.

It begins with the places of the generation before, without members that are gone. The steps of the assignor change it;
none of them reads anything else. All iteration is in the order of ids, so equal inputs give equal results.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.group.candidates import Candidate, Presence, Wanted
from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.group.weights import Weight, weights
from holdfast.words import NOTHING, TaskId, Version


@dataclass(slots=True)
class Spot:
    """The place of one task, as far as it is decided."""

    task: TaskId
    everywhere: bool
    weight: Weight
    reports: Mapping[str, Hosted]
    """What members say about their replicas of the task."""
    before: Place | None
    active: str | None = None
    standbys: list[str] = field(default_factory=list)
    warming: list[str] = field(default_factory=list)
    reason: str = ""
    """Why the active replica is new where it is; empty if it stays."""
    moving: str = ""
    """Why a replica is being warmed up."""

    @property
    def replicas(self) -> list[str]:
        """The active one first. Those that are warming are not among them."""
        return self.standbys if self.active is None else [self.active, *self.standbys]


class Draft:
    """All spots, and the weight of each member. `loads` and `leads` follow every change made through it."""

    def __init__(
        self,
        tasks: Sequence[Wanted],
        members: Sequence[Candidate],
        before: Mapping[TaskId, Place],
        newest: Version,
        rules: Rules,
    ) -> None:
        ordered = sorted(members, key=lambda member: member.id)
        self.newest = newest
        self.rules = rules
        self.presence = {member.id: member.presence for member in ordered}
        self.here = [member.id for member in ordered if member.presence is Presence.HERE]
        self._known = {member.id: newest if member.newest is None else min(newest, member.newest) for member in ordered}
        """The newest version at the time when each member reported."""
        self.location = {member.id: tuple(member.tags.get(tag, "") for tag in rules.spread_by) for member in ordered}
        self.loads = dict.fromkeys(self.presence, 0.0)
        """What each member carries, as far as data can move: the sum of `share` of its replicas."""
        self.leads = dict.fromkeys(self.presence, 0.0)
        """The sum of `lead` of the active replicas of each member."""
        self.filled = {id for place in before.values() for id in place.warming if id in self.presence}
        """Members that tasks were being moved to already."""
        wanted = sorted(tasks, key=lambda each: (each.task.subtopology, each.task.partition))
        reports: dict[TaskId, dict[str, Hosted]] = {each.task: {} for each in wanted}
        for member in ordered:
            for task, hosted in member.replicas.items():
                if task in reports:
                    reports[task][member.id] = hosted
        weighed = weights(reports, self.presence)
        self.spots = [
            Spot(each.task, each.everywhere, weighed[each.task], reports[each.task], before.get(each.task))
            for each in wanted
        ]
        for spot in self.spots:
            self._keep(spot)

    def _keep(self, spot: Spot) -> None:
        """Everyone who is still in the group keeps what it had."""
        if spot.before is None:
            return
        for id in dict.fromkeys((spot.before.active, *spot.before.standbys)):
            if id in self.presence:
                self.add(spot, id)
        if spot.before.active in self.presence:
            self.lead(spot, spot.before.active)
        # One that is away is waited for until its session ends.
        warming = dict.fromkeys(spot.before.warming)
        spot.warming += [id for id in warming if id in self.presence and id not in spot.replicas]

    # What is known about a replica

    def lag(self, spot: Spot, id: str) -> int | None:
        """Versions that a replica was behind when it reported; None if there is none."""
        hosted = spot.reports.get(id)
        return None if hosted is None else max(0, self._known[id] - hosted.version)

    def is_close(self, spot: Spot, id: str) -> bool:
        """Whether a replica is within the acceptable lag: it is caught up, or will be in a moment."""
        hosted, lag = spot.reports.get(id), self.lag(spot, id)
        if hosted is None or lag is None or lag > self.rules.acceptable_lag:
            return False
        # One that has nothing needs a restore of the whole state, also if that has few versions so far.
        return hosted.version != NOTHING or hosted.running or self._known[id] == NOTHING

    def is_running(self, spot: Spot, id: str) -> bool:
        """Whether a replica can be read, as it says itself."""
        hosted = spot.reports.get(id)
        return hosted is not None and hosted.running

    def answers(self, spot: Spot, id: str) -> bool:
        """Whether a replica is caught up and can be read now, also on a member that leaves."""
        is_away = self.presence[id] is Presence.AWAY
        return not is_away and self.is_running(spot, id) and self.is_close(spot, id)

    def is_ready(self, spot: Spot, id: str) -> bool:
        """Whether a replica is caught up and answers, on a member that stays: a task may move there."""
        return self.is_here(id) and self.answers(spot, id)

    def is_empty(self, spot: Spot) -> bool:
        """Whether no member has begun anything of a task, so that a move costs nothing and fails no read.

        As long as its active replica hasn't reported, nothing is known: the replica may be read already.
        """
        if self.newest != NOTHING:
            active = None if spot.active is None else spot.reports.get(spot.active)
            if active is None or active.running:
                return False
        return all(hosted.version == NOTHING and not hosted.loading for hosted in spot.reports.values())

    def is_here(self, id: str) -> bool:
        return self.presence[id] is Presence.HERE

    def ready(self, spot: Spot) -> list[str]:
        return [id for id in spot.replicas if self.is_ready(spot, id)]

    def lasting(self, spot: Spot) -> list[str]:
        """The replicas on members that aren't drained."""
        return [id for id in spot.replicas if self.presence[id] is not Presence.LEAVING]

    def wanted(self, spot: Spot) -> int:
        """How many replicas it should have: as many as the rules say, if there are as many members."""
        kept = sum(self.presence[id] in (Presence.AWAY, Presence.STOPPING) for id in spot.replicas)
        members = len(self.here) + kept
        return members if spot.everywhere else min(1 + self.rules.standbys, members)

    # What a member carries

    @property
    def is_single(self) -> bool:
        """Without standbys the active role moves only with its data. With them, roles are balanced on their own."""
        return self.rules.standbys == 0

    def share(self, spot: Spot, *, active: bool) -> float:
        """What a replica adds to `loads`. One that is on every member adds nothing, since it can't move."""
        if spot.everywhere:
            return 0.0
        return spot.weight.hold + (spot.weight.lead if active and self.is_single else 0.0)

    def load_without(self, spot: Spot, id: str) -> float:
        """The load of a member that hosts the task, but for that task."""
        return self.loads[id] - self.share(spot, active=id == spot.active)

    # Changes

    def add(self, spot: Spot, id: str) -> None:
        """A standby more."""
        spot.standbys.append(id)
        self.loads[id] += self.share(spot, active=False)
        if id in spot.warming:
            spot.warming.remove(id)

    def drop(self, spot: Spot, id: str) -> None:
        """A standby less."""
        spot.standbys.remove(id)
        self.loads[id] -= self.share(spot, active=False)

    def lead(self, spot: Spot, id: str) -> None:
        """Gives a replica the active role. The one that had it becomes a standby, in the place of the new one."""
        position = spot.standbys.index(id)
        former = spot.active
        if former is None:
            del spot.standbys[position]
        elif self.is_here(former):
            spot.standbys[position] = former
        else:
            del spot.standbys[position]
            spot.standbys.append(former)  # it may not answer, so it is asked last
        if former is not None:
            self._count_role(spot, former, -1)
        spot.active = id
        self._count_role(spot, id, 1)

    def _count_role(self, spot: Spot, id: str, sign: int) -> None:
        self.leads[id] += sign * spot.weight.lead
        self.loads[id] += sign * (self.share(spot, active=True) - self.share(spot, active=False))

    def replace(self, spot: Spot, old: str, new: str) -> None:
        """Another member in place of one, at once: for tasks that have no data yet."""
        if old == spot.active:
            self._count_role(spot, old, -1)
            self._count_role(spot, new, 1)
            spot.active = new
        else:
            spot.standbys[spot.standbys.index(old)] = new
        self.loads[old] -= self.share(spot, active=False)
        self.loads[new] += self.share(spot, active=False)

    # Tags

    def spread(self, ids: Iterable[str]) -> tuple[int, ...]:
        """Per tag, how many different values some members have: larger is better, the first tag first."""
        return tuple(len(set(values)) for values in zip(*(self.location[id] for id in ids), strict=True))
