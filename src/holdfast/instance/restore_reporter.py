"""Reports the progress of a restore as events: start, batch, end or suspended, per store.

A reporter belongs to one catch-up of one task. A replica that has nothing to catch up with reports nothing.
"""

from collections.abc import Mapping, Sequence

from holdfast.instance.events import Events, RestoreEvent, RestorePhase
from holdfast.words import TaskId, Version


class RestoreReporter:
    """Turns the progress of one replica into events.

    >>> events = Events()
    >>> report = RestoreReporter(events, TaskId(0, 1), ["scores"])
    >>> report.started(Version(0), Version(5)); report.batch(Version(5), {"scores": 3}); report.ended(Version(5))
    >>> [(e.event.phase.value, e.event.count, e.event.total) for e in events.since(0).events]
    [('start', 0, 0), ('batch', 3, 3), ('end', 0, 3)]
    """

    def __init__(self, events: Events, task: TaskId, stores: Sequence[str]) -> None:
        self._events = events
        self._task = task
        self._totals = dict.fromkeys(stores, 0)
        self._start: Version | None = None
        self.loaded = 0, 0
        """Of the snapshot that is loaded now, how many bytes are here, and how many it has."""

    @property
    def under_way(self) -> bool:
        return self._start is not None

    def started(self, start: Version, target: Version) -> None:
        self._start = start
        self._totals = dict.fromkeys(self._totals, 0)
        for store in self._totals:
            self._append(RestorePhase.START, store, target)

    def batch(self, reached: Version, counts: Mapping[str, int]) -> None:
        self.loaded = 0, 0
        for store in self._totals:
            count = counts.get(store, 0)
            self._totals[store] += count
            self._append(RestorePhase.BATCH, store, reached, count=count)

    def loading(self, version: Version, done: int, total: int, kept: int) -> None:
        """While a snapshot is loaded: how many of its bytes are here, and how many of those were on disk before."""
        self.loaded = done, total
        for store in self._totals:
            self._append(RestorePhase.BATCH, store, version, done=done, of=total, kept=kept)

    def ended(self, reached: Version) -> None:
        self.loaded = 0, 0
        self._close(RestorePhase.END, reached)

    def suspended(self, reached: Version) -> None:
        self._close(RestorePhase.SUSPENDED, reached)

    def _close(self, phase: RestorePhase, reached: Version) -> None:
        for store in self._totals:
            self._append(phase, store, reached)
        self._start = None

    def _append(
        self, phase: RestorePhase, store: str, end: Version, count: int = 0, done: int = 0, of: int = 0, kept: int = 0
    ) -> None:
        if self._start is not None:
            task, total = str(self._task), self._totals[store]
            self._events.append(RestoreEvent(phase, task, store, self._start, end, count, total, done, of, kept))
