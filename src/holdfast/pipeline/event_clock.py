"""The event clock of an app: the slowest of its sources that aren't idle. Pure functions.

    games  ──────●────●──────●─────►  at 12:00
    chats  ──●───┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄►  at 11:05, silent for `idle_after`: it no longer holds the clock back

Each source has a clock of its own, the largest event time read from it. A source that has had no record yet holds
the app's clock where it is, until it is idle too. Idleness is measured by the wall clock of the commits, so it is the
same for every reader of the log. After a start every source has that long to send a record, since records that arrived
while the app was down come with one of the next batches. No clock goes back: records of a source that was idle may be
late.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.log.commits import Clocks, Commit
from holdfast.words import Millis


@dataclass(frozen=True)
class EventClock:
    """How the clocks of an app's sources move. `sources` are those with event times."""

    sources: Collection[str]
    idle_after_millis: int
    since: int = 0
    """When this driver started, by the wall clock. While no driver ran, no record was read."""

    def next(
        self, previous: Commit | None, wall: Millis, seen: Iterable[Mapping[str, int]], arrived: Collection[str]
    ) -> Clocks:
        """The clocks of the next commit. `seen` are the largest event times by source, per task.

        `arrived` are the sources that had records. A source that the app no longer has doesn't hold others back.
        """
        before = previous.clocks if previous else Clocks(wall=wall, event=None, sources={})
        clocks = {name: time for name, time in before.sources.items() if name in self.sources}
        for times in seen:
            for source, time in times.items():
                clocks[source] = max(clocks.get(source, time), time)
        last = {name: wall if name in arrived else before.last_records.get(name, wall) for name in self.sources}
        event = self._slowest(clocks, last, wall)
        if before.event is not None:
            event = before.event if event is None else max(event, before.event)
        several = len(self.sources) > 1
        return Clocks(wall=wall, event=event, sources=clocks, last_records=last if several else {})

    def moves_at(self, newest: Clocks) -> Millis | None:
        """When the app's clock moves although no record arrives, because a source becomes idle."""
        times = sorted({max(time, self.since) + self.idle_after_millis + 1 for time in newest.last_records.values()})
        later = (time for time in times if time > newest.wall)
        behind = -(2**63) if newest.event is None else newest.event
        for time in later:
            slowest = self._slowest(newest.sources, newest.last_records, time)
            if slowest is not None and slowest > behind:
                return Millis(time)
        return None

    def _slowest(self, clocks: Mapping[str, int], last: Mapping[str, int], wall: int) -> int | None:
        """None if no source has a clock yet, or if one that isn't idle has none.

        If every source is idle, those count that had records last: whether they became idle just before this version or
        right after it is chance.
        """
        several = len(self.sources) > 1
        waits_from = wall - self.idle_after_millis
        active = [name for name in self.sources if not several or max(last.get(name, wall), self.since) >= waits_from]
        if not active:
            known = [name for name in self.sources if name in clocks]
            active = [name for name in known if last[name] == max(last[each] for each in known)]
        if not active or any(name not in clocks for name in active):
            return None
        return min(clocks[name] for name in active)
