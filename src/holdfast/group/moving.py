"""Moving replicas: which are warmed up elsewhere, a few at a time, so that tasks can move there.

Three reasons, in this order: a member is drained, or ends and nobody else has its task; the replicas of a task could be
spread better over the tags; a member carries too much (`roles.starts`). A member that is being filled goes on getting
replicas until it has its share (`roles.improves`), and gives none away meanwhile. Tasks without any data move at once.

A member that gets SIGTERM ends in half a minute at most. What only it has is warmed up elsewhere in addition to the few
at a time: all of it, if it can be restored in that time.
"""

from collections.abc import Iterator

from holdfast.group.candidates import Presence
from holdfast.group.draft import Draft, Spot
from holdfast.group.picking import Location, Picker
from holdfast.group.roles import improves, least_useful, starts
from holdfast.group.weights import FLOOR
from holdfast.words import NOTHING

_HURRY_BYTES = 1 << 30
"""Replacements for members that end may together have so many bytes. Two dozen seconds restore them at 50 MB/s. Of
larger states only a few tasks are done in time, and to begin all of them would make those few wait."""


def start_moves(draft: Draft) -> None:
    """Starts as many moves as the rules allow in addition to those under way."""
    moves = _Moves(draft)
    moves.replace_leaving()
    moves.spread()
    moves.balance()


class _Moves:
    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._picker = Picker(draft)
        self._hurried = [spot.weight.bytes for spot in draft.spots if spot.warming and self._ends(spot)]
        """The sizes of tasks that are restored because the member that has them ends."""
        under_way = sum(len(spot.warming) for spot in draft.spots if not self._ends(spot))
        self._room = draft.rules.warmups - under_way
        self._better: dict[tuple[tuple[Location, ...], int], bool] = {}

    def replace_leaving(self) -> None:
        draft = self._draft
        waiting = [
            spot
            for spot in draft.spots
            if self._loses_active(spot)
            or (
                len(lasting := draft.lasting(spot)) < len(spot.replicas)
                and len(lasting) + len(spot.warming) < draft.wanted(spot)
            )
        ]
        # Active ones first, and small ones before large ones: they are done sooner.
        waiting.sort(key=lambda spot: (spot.active in draft.lasting(spot), spot.weight.hold))
        for spot in waiting:
            ends = self._loses_active(spot)
            if (self._may_hurry(spot) if ends else self._may_start(spot)) and (
                id := self._picker.pick(spot)
            ) is not None:
                goes = Presence.STOPPING if ends else Presence.LEAVING
                leaving = next(id for id in spot.replicas if draft.presence[id] is goes)
                if draft.newest == NOTHING:  # later, a replica that says it has nothing may be caught up by now
                    draft.replace(spot, leaving, id)
                else:
                    self._warm(spot, id, f"so that it can take over from {leaving}, which leaves")

    def _loses_active(self, spot: Spot) -> bool:
        """Whether its active replica ends in a moment, and nobody who is here could take over."""
        return self._ends(spot) and not any(map(self._draft.is_here, spot.warming))

    def _ends(self, spot: Spot) -> bool:
        """Whether its active replica ends in a moment, and none of the others is on a member that is here."""
        draft = self._draft
        return (
            spot.active is not None
            and draft.presence[spot.active] is Presence.STOPPING
            and not any(map(draft.is_here, spot.replicas))
        )

    def spread(self) -> None:
        draft = self._draft
        if not draft.rules.spread_by:
            return
        for spot in draft.spots:
            if self._may_start(spot) and self._is_movable(spot) and (found := self._better_spread(spot)) is not None:
                old, new = found
                if draft.is_empty(spot):
                    draft.replace(spot, old, new)
                else:
                    self._warm(
                        spot, new, f"so that its replicas are spread better over {' and '.join(draft.rules.spread_by)}"
                    )

    def _better_spread(self, spot: Spot) -> tuple[str, str] | None:
        """A replica and the member that it should move to, if that spreads the task better over the tags."""
        draft = self._draft
        locations = tuple(sorted(draft.location[id] for id in spot.replicas))
        able = sum(draft.is_here(id) for id in spot.replicas)
        if self._better.get((locations, able)) is False:
            return None
        best, found = draft.spread(spot.replicas), None
        for old in spot.replicas:
            if draft.is_here(old):
                rest = [id for id in spot.replicas if id != old]
                for new in sorted(draft.here, key=lambda id: (draft.loads[id], id)):
                    if new not in spot.replicas and (score := draft.spread([*rest, new])) > best:
                        best, found = score, (old, new)
        if found is None and able == len(spot.replicas):
            self._better[locations, able] = False
        return found

    def balance(self) -> None:
        """Moves replicas from the heaviest to the lightest members."""
        draft = self._draft
        if self._room <= 0 and not any(map(draft.is_empty, draft.spots)):
            return
        loads, hosted, mean = self._goal()
        filled = set(draft.filled)
        while (move := self._next_move(loads, hosted, mean, filled)) is not None:
            spot, old, new = move
            share = draft.share(spot, active=old == spot.active)
            if draft.is_empty(spot):
                draft.replace(spot, old, new)
                hosted[new].append(spot)
            else:
                reason = f"to move there from {old}, which carries {loads[old]:.1f} where the mean is {mean:.1f}"
                self._warm(spot, new, reason)
            hosted[old].remove(spot)
            loads[old] -= share
            loads[new] += share
            filled.add(new)

    def _goal(self) -> tuple[dict[str, float], dict[str, list[Spot]], float]:
        """What each member will carry when the moves under way are done, and the replicas that could move from it.

        The mean is over all members that stay. One that is silent counts with what it has: if it returns, nothing has
        changed, so nothing may have moved meanwhile.
        """
        draft = self._draft
        loads = {id: 0.0 for id, presence in draft.presence.items() if presence is not Presence.LEAVING}
        hosted: dict[str, list[Spot]] = {id: [] for id in draft.here}
        for spot in draft.spots:
            goal = [*draft.lasting(spot), *spot.warming]
            while len(goal) > draft.wanted(spot) and (least := self._leaves_last(spot, goal)) is not None:
                goal.remove(least)
            active = spot.active if spot.active in goal else next(iter(goal), None)
            for id in goal:
                if id in loads:
                    loads[id] += draft.share(spot, active=id == active)
            if self._is_movable(spot):
                for id in goal:
                    if id in hosted:
                        hosted[id].append(spot)
        mean = sum(loads.values()) / len(loads)
        return {id: loads[id] for id in hosted}, hosted, mean

    def _leaves_last(self, spot: Spot, goal: list[str]) -> str | None:
        """The replica that will be dropped when those that are warming are caught up."""
        draft = self._draft
        others = {*draft.ready(spot), *spot.warming} - {spot.active}
        return least_useful(draft, spot, goal, [id for id in goal if id != spot.active or others])

    def _is_movable(self, spot: Spot) -> bool:
        """Whether a move can begin: the task is where it should be now, and the replica that is read is caught up."""
        draft = self._draft
        return (
            not spot.everywhere
            and not spot.warming
            and spot.active is not None
            and len(spot.replicas) == draft.wanted(spot)
            and len(draft.lasting(spot)) == len(spot.replicas)
            and (draft.is_empty(spot) or draft.is_ready(spot, spot.active))
        )

    def _next_move(
        self, loads: dict[str, float], hosted: dict[str, list[Spot]], mean: float, filled: set[str]
    ) -> tuple[Spot, str, str] | None:
        floor = FLOOR * (2 if self._draft.is_single else 1)
        light = sorted(loads, key=lambda id: (loads[id], id))
        for old in reversed(light):
            if not improves(loads[old] - floor, loads[light[0]], mean):
                return None  # nor does any move from a lighter member
            for new in light:
                if not improves(loads[old] - floor, loads[new], mean):
                    break
                may_fill = new in filled and old not in filled
                if not may_fill and not starts(loads[old] - floor, loads[new], mean):
                    continue
                if (spot := self._best(hosted[old], old, new, loads, mean, may_fill)) is not None:
                    return spot, old, new
        return None

    def _best(
        self, spots: list[Spot], old: str, new: str, loads: dict[str, float], mean: float, may_fill: bool
    ) -> Spot | None:
        """The task to move: one that `new` has state of, or one whose weight comes closest to half of the gap."""
        half = (loads[old] - loads[new]) / 2
        able = list(self._able(spots, old, new, loads, mean))
        if not may_fill:
            least = min((share for share, _ in able), default=0.0)
            if not starts(loads[old] - least, loads[new], mean):
                return None

        def key(option: tuple[float, Spot]) -> tuple[int, float, tuple[int, int]]:
            share, spot = option
            state = spot.reports.get(new)
            number = spot.task.subtopology, spot.task.partition
            return 0 if state is None else -state.version, abs(share - half), number

        return min(able, key=key, default=(0.0, None))[1]

    def _able(
        self, spots: list[Spot], old: str, new: str, loads: dict[str, float], mean: float
    ) -> Iterator[tuple[float, Spot]]:
        draft = self._draft
        for spot in spots:
            share = draft.share(spot, active=old == spot.active)
            if (
                self._may_start(spot)
                and not spot.warming
                and new not in spot.replicas
                and improves(loads[old] - share, loads[new], mean)
                and draft.spread(new if id == old else id for id in spot.replicas) >= draft.spread(spot.replicas)
            ):
                yield share, spot

    def _may_start(self, spot: Spot) -> bool:
        return self._room > 0 or self._draft.is_empty(spot)

    def _may_hurry(self, spot: Spot) -> bool:
        few = len(self._hurried) < self._draft.rules.warmups
        return few or sum(self._hurried) + spot.weight.bytes <= _HURRY_BYTES

    def _warm(self, spot: Spot, id: str, reason: str) -> None:
        spot.warming.append(id)
        spot.moving = reason
        if self._ends(spot):
            self._hurried.append(spot.weight.bytes)
        else:
            self._room -= 1
