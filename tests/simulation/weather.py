"""The weather of a run: how often each fault comes, drawn from the seed, so that runs differ in kind.

Rates are per call to the storage or per fault point. Puts that decide something (commits, epochs, generations) and
deletions get more than their share: they are few, and the faults around them are those that matter.
"""

from dataclasses import dataclass

from holdfast.chance import Random
from holdfast.log import names

DECIDING = (names.COMMITS, names.LEADERS, names.GENERATIONS)
_MORE = 10


@dataclass(frozen=True, kw_only=True)
class Weather:
    crash: float = 0.0
    pause: float = 0.0
    """Other processes run before this one goes on."""
    error: float = 0.0
    uncertain: float = 0.0
    """A put is stored and fails, is repeated, or arrives late."""
    lost_notices: float = 0.0
    events: float = 0.0
    """How likely something happens each time that the chaos loop looks."""

    @classmethod
    def of(cls, random: Random) -> "Weather":
        strength = random.choice((0.3, 1.0, 1.0, 2.0))
        return cls(
            crash=strength * random.choice((0.0, 0.0005, 0.002)),
            pause=strength * random.choice((0.0, 0.001, 0.004)),
            error=strength * random.choice((0.0, 0.003, 0.01)),
            uncertain=strength * random.choice((0.0, 0.01, 0.03)),
            lost_notices=random.choice((0.0, 0.2, 1.0)),
            events=strength * random.choice((0.0, 0.2, 0.4)),
        )

    def weight(self, call: str, name: str) -> int:
        """How many times the usual rate a call has."""
        if call == "create" and name.startswith(DECIDING):
            return 3 * _MORE if name.startswith(names.GENERATIONS) else _MORE
        return _MORE if call == "delete" else 1


CALM = Weather()
