"""What the clinic's app must store and send, by a plain program over the batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.topology.join_windows import JoinWindow, join_window
from tests.pipeline.joined import Oracle, Record

WINDOW_S, GRACE_S, EVERY_S = 10, 5, 10


def within() -> JoinWindow:
    return join_window("15s", grace="5s")


class Beat(NamedTuple):
    patient: str
    n: int
    at: int
    """Milliseconds after the start."""


class Temperature(NamedTuple):
    patient: str
    tenths: int
    at: int


class Truth(NamedTuple):
    final: list[tuple[str, int, int, int]]
    """Patient, start, number of beats and sum of each window that has closed."""
    alerts: list[tuple[str, int, int | None]]
    """Patient, sum of the window and temperature, None without a match."""
    warmest: dict[str, int]
    booked: dict[str, int]
    waiting: dict[str, int]
    fired: dict[tuple[int, int], int]
    """Partition and time of each call of the punctuator."""
    late: int


Batch = tuple[Sequence[Beat], Sequence[Temperature]]


class Clinic:
    """Processes batches in order. `clock` is the event clock of the version before."""

    def __init__(self) -> None:
        self.clock: int | None = None
        self.newest = [0, 0]
        self.windows: dict[tuple[str, int], list[Beat]] = {}
        self.ended: list[tuple[str, int, int, int]] = []
        self.join = Oracle(within(), "left")
        self.alerts: list[tuple[str, Any, Any]] = []
        self.warmest: dict[str, int] = {}
        self.booked: dict[str, int] = {}
        self.clocks: list[int] = []
        self.late = 0

    def batch(self, beats: Sequence[Beat], temperatures: Sequence[Temperature]) -> None:
        self.end(temperatures)
        for each in temperatures:
            self.warmest[each.patient] = max(each.tenths, self.warmest.get(each.patient, each.tenths))
        for beat in beats:
            self.booked[beat.patient] = self.booked.get(beat.patient, 0) + beat.n * self.warmest.get(beat.patient, 1)
            start = beat.at // (WINDOW_S * 1_000) * WINDOW_S * 1_000
            if self._has_closed(start):
                self.late += 1
            else:
                self.windows.setdefault((beat.patient, start), []).append(beat)
        times = ([beat.at for beat in beats], [each.at for each in temperatures])
        self.newest = [max([old, *new]) for old, new in zip(self.newest, times, strict=True)]
        self.clock = min(self.newest)
        self.clocks.append(self.clock)

    def _has_closed(self, start: int) -> bool:
        return self.clock is not None and start + (WINDOW_S + GRACE_S) * 1_000 <= self.clock

    def end(self, temperatures: Sequence[Temperature]) -> None:
        """What ends by the clock of the version before, and the join of it with temperatures."""
        rows = []
        for patient, start in [window for window in self.windows if self._has_closed(window[1])]:
            beats = self.windows.pop((patient, start))
            total = sum(beat.n for beat in beats)
            self.ended.append((patient, start, len(beats), total))
            rows.append(Record(True, patient, max(beat.at for beat in beats), total))
        rows += [Record(False, each.patient, each.at, each.tenths) for each in temperatures]
        self.join.event = self.clock
        self.alerts += [row[:3] for row in self.join.run(rows)]


def truth(batches: Sequence[Batch], start: int, partitions: int) -> Truth:
    """Everything after the last batch, and after the version in which what it has let end is sent."""
    clinic = Clinic()
    for beats, temperatures in batches:
        clinic.batch(beats, temperatures)
    clinic.end([])
    every = EVERY_S * 1_000
    before = [None, *clinic.clocks]
    times = [now for was, now in zip(before, clinic.clocks, strict=False) if was is None or now // every > was // every]
    fired = {(partition, start + now): 1 for partition in range(partitions) for now in times}
    assert times[-1] == clinic.clocks[-1], "the last batch makes a punctuation due, which books what is waiting"
    return Truth(
        final=sorted(clinic.ended),
        alerts=sorted(clinic.alerts, key=repr),
        warmest=clinic.warmest,
        booked=clinic.booked,
        waiting={},
        fired=fired,
        late=clinic.late,
    )
