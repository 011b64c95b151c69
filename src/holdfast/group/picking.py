"""Picking a member for one more replica: spread over the tags first, then state that is there already, then lightness.

Members with the same values of all tags are one location. The lightest member of a location comes from a heap, so that
a pick doesn't look at every member: a group of 100 with 10,000 tasks needs 20,000 picks.
"""

import heapq
from collections.abc import Iterable, Sequence

from holdfast.group.draft import Draft, Spot
from holdfast.words import NOTHING

Location = tuple[str, ...]


class Picker:
    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._heaps: dict[Location, list[tuple[float, str]]] = {}
        self._ranks: dict[tuple[Location, ...], list[list[Location]]] = {}
        for id in draft.here:
            heapq.heappush(self._heaps.setdefault(draft.location[id], []), (self.weight(id), id))

    def pick(self, spot: Spot) -> str | None:
        """The member that a replica of the task should be added to; None if all have one."""
        taken = {*spot.replicas, *spot.warming}
        for locations in self._ranked(tuple(sorted(self._draft.location[id] for id in taken))):
            stored = [
                (-hosted.version, self.weight(id), id)
                for id, hosted in spot.reports.items()
                if hosted.version != NOTHING
                and id not in taken
                and self._draft.is_here(id)
                and self._draft.location[id] in locations
            ]
            if stored:
                return min(stored)[2]
            lightest = [found for each in locations if (found := self._lightest(each, taken)) is not None]
            if lightest:
                return min(lightest)[1]
        return None

    def weight(self, id: str) -> float:
        """What a member has: its load and, where that doesn't count active roles, those too."""
        return self._draft.loads[id] + (0.0 if self._draft.is_single else self._draft.leads[id])

    def _lightest(self, location: Location, taken: Iterable[str]) -> tuple[float, str] | None:
        """The weight and id of the lightest member of a location. Entries of former weights are corrected here."""
        heap = self._heaps[location]
        aside: list[tuple[float, str]] = []
        found = None
        while heap and found is None:
            weight, id = heap[0]
            if weight != (now := self.weight(id)):
                heapq.heapreplace(heap, (now, id))
            elif id in taken:
                aside.append(heapq.heappop(heap))
            else:
                found = weight, id
        for entry in aside:
            heapq.heappush(heap, entry)
        return found

    def _ranked(self, used: tuple[Location, ...]) -> Sequence[Sequence[Location]]:
        """All locations in groups, best first, for a task that has replicas in `used`."""
        if used not in self._ranks:
            by_use: dict[tuple[int, ...], list[Location]] = {}
            for location in sorted(self._heaps):
                uses = tuple(sum(other[tag] == value for other in used) for tag, value in enumerate(location))
                by_use.setdefault(uses, []).append(location)
            self._ranks[used] = [by_use[uses] for uses in sorted(by_use)]
        return self._ranks[used]
