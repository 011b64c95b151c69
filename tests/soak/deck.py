"""What is done to the app of a soak, in a random order: each card once, then all of them again."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """What ends the running process, and what the next one has more or less."""

    how: str
    change: str = ""

    def __str__(self) -> str:
        return f"{self.how}, change {self.change}" if self.change else self.how


CARDS = (
    Card("kill driver"),
    Card("kill starting driver"),
    Card("kill jvm"),
    Card("kill instance"),
    Card("kill instance"),
    Card("kill worker"),
    Card("stop"),
    Card("overlap"),
    # `levels` is thus added, removed and brought back, each time in another way.
    Card("stop", "levels"),
    Card("overlap", "levels"),
    Card("kill driver", "levels"),
    Card("overlap", "best"),
    Card("kill driver", "best"),
    Card("kill driver", "copy"),
    Card("stop", "copy"),
)
HOW = sorted({card.how for card in CARDS})
CHANGES = ("store added", "store removed", "store back", "column added", "sink added")


def dealt(dice: random.Random) -> Iterator[Card]:
    """Cards without end. Of the first ones every card comes once, in any order."""
    while True:
        cards = list(CARDS)
        dice.shuffle(cards)
        yield from cards
