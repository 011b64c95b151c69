"""Join windows: how far apart in event time two records of different streams may be to belong together.

    before   how much earlier the record on the right may be
    after    how much later it may be
    grace    how late records are expected

Both ends are included, as in Kafka Streams. A record takes matches until its window has closed: when the event clock is
past the end of its window by more than the grace.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import TopologyError
from holdfast.stores.options import Length, millis, words


@dataclass(frozen=True)
class JoinWindow:
    """The times at which a record on the right belongs to one on the left: from `before` to `after` around it."""

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    def __str__(self) -> str:
        if self.before_ms == self.after_ms:
            span = words(self.before_ms)
        else:
            span = f"{words(self.before_ms)} before to {words(self.after_ms)} after"
        return f"within {span}, grace {words(self.grace_ms)}"

    @property
    def length_ms(self) -> int:
        return self.before_ms + self.after_ms

    def mirrored(self) -> JoinWindow:
        """The same window, seen from the record on the right.

        >>> join_window(before="1s", after="5s").mirrored()
        JoinWindow(before_ms=5000, after_ms=1000, grace_ms=0)
        """
        return JoinWindow(self.after_ms, self.before_ms, self.grace_ms)

    def open_from(self, event: int) -> int:
        """The earliest time of a record whose window is open at this event clock.

        >>> join_window("10s", grace="1s").open_from(60_000)
        49000
        """
        return event - self.after_ms - self.grace_ms


def join_window(
    difference: Length | None = None,
    *,
    before: Length | None = None,
    after: Length | None = None,
    grace: Length = "0s",
) -> JoinWindow:
    """How far apart two records may be: `join_window("10m")`, or `join_window(before="1m", after="10m")`.

    A side that isn't given is `difference`, or nothing.

    >>> str(join_window("10m", before="1m", grace="30s"))
    'within 1m before to 10m after, grace 30s'
    """
    where = "hf.join_window()"
    if difference is None and before is None and after is None:
        raise TopologyError(f'{where}: how far apart may two records be? Such as hf.join_window("10m").')
    both = "0s" if difference is None else difference

    def side(option: str, given: Length | None) -> int:
        return millis(both if given is None else given, "difference" if given is None else option, where, shortest=0)

    return JoinWindow(side("before", before), side("after", after), millis(grace, "grace", where, shortest=0))
