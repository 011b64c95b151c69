"""The instances that didn't answer a moment ago: they are asked last, so that few readers wait for them."""

from collections.abc import Sequence

from holdfast.clock import SYSTEM_CLOCK, Clock

AVOIDED_SECONDS = 5.0
"""How long an instance is asked last, at least."""

_WAITS = 4
"""A reader that has waited long for an instance keeps others from it for this many times as long."""


class Unanswering:
    """Addresses of instances, each for a while.

    >>> from holdfast.clock import ManualClock
    >>> clock = ManualClock()
    >>> unanswering = Unanswering(clock)
    >>> unanswering.add("a", waited=0.1)
    >>> unanswering.last(["a", "b"])
    ['b', 'a']
    >>> clock.advance(6)
    >>> unanswering.last(["a", "b"])
    ['a', 'b']
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def add(self, address: str, *, waited: float) -> None:
        """Notes that an instance didn't answer a reader that has waited this many seconds for it."""
        now = self._clock.monotonic()
        avoided = {each: until for each, until in self._until.items() if until > now}  # none that is gone for long
        self._until = {**avoided, address: now + max(AVOIDED_SECONDS, _WAITS * waited)}

    def __contains__(self, address: str) -> bool:
        return self._until.get(address, 0.0) > self._clock.monotonic()

    def last(self, addresses: Sequence[str]) -> list[str]:
        """The addresses in their order, with those of these instances at the end."""
        return sorted(addresses, key=self.__contains__)
