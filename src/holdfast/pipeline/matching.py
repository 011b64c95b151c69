"""Which records of two streams belong together: same key, and times that are near enough. Pure, on whole columns.

    left    ──────────●t──────────────────►
    right   ────├─────┴──────────┤────────►   t - before  to  t + after, both included

Keys are numbers here, the same for equal keys on both sides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinRecords:
    """The records of one stream: the number of each key, and its event time in milliseconds."""

    keys: Numbers
    times: Numbers

    def __len__(self) -> int:
        return len(self.keys)

    def __add__(self, other: "JoinRecords") -> "JoinRecords":
        return JoinRecords(np.concatenate([self.keys, other.keys]), np.concatenate([self.times, other.times]))

    def take(self, chosen: Flags | Numbers) -> "JoinRecords":
        return JoinRecords(self.keys[chosen], self.times[chosen])


NONE = JoinRecords(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class Matches:
    """All pairs of a record on the left and one on the right, as ranges of the right records in order.

    >>> left = JoinRecords(np.array([0, 0, 1]), np.array([10, 50, 10]))
    >>> right = JoinRecords(np.array([1, 0, 0]), np.array([15, 12, 5]))
    >>> found = Matches(left, right, before=5, after=5)
    >>> [(a.tolist(), b.tolist()) for a, b in found.blocks(10)]
    [([0, 0, 2], [2, 1, 0])]
    >>> found.left.tolist(), found.right.tolist()
    ([True, False, True], [True, True, True])
    """

    def __init__(self, left: JoinRecords, right: JoinRecords, before: int, after: int) -> None:
        self._order = np.lexsort((right.times, right.keys))
        # A key and the rank of a time in one number: it has room for any times.
        known = np.unique(right.times)
        width = np.int64(len(known) + 1)
        places = right.keys[self._order] * width + np.searchsorted(known, right.times[self._order])
        earliest = np.searchsorted(known, left.times - np.int64(before), side="left")
        latest = np.searchsorted(known, left.times + np.int64(after), side="right")
        self._first = np.searchsorted(places, left.keys * width + earliest)
        self._stop = np.searchsorted(places, left.keys * width + latest)

    @property
    def counts(self) -> Numbers:
        """How many records on the right each record on the left has."""
        found: Numbers = self._stop - self._first
        return found

    @property
    def left(self) -> Flags:
        """Which records on the left have a match."""
        return self.counts > 0

    @property
    def right(self) -> Flags:
        """Which records on the right have one."""
        rows = len(self._order)
        changes = np.bincount(self._first, minlength=rows + 1) - np.bincount(self._stop, minlength=rows + 1)
        found = np.zeros(rows, dtype=bool)
        found[self._order] = np.cumsum(changes)[:rows] > 0
        return found

    def blocks(self, most: int) -> Iterator[tuple[Numbers, Numbers]]:
        """The pairs as places on the left and on the right, about `most` at a time."""
        counts = self.counts
        ends = np.cumsum(counts)
        rows, at = len(counts), 0
        while at < rows:
            done = ends[at - 1] if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, done + most, side="right")))
            some = counts[at:stop]
            lefts = np.repeat(np.arange(at, stop), some)
            if len(lefts):
                within = np.arange(len(lefts)) - np.repeat(np.cumsum(some) - some, some)
                yield lefts, self._order[np.repeat(self._first[at:stop], some) + within]
            at = stop
