"""Checks of a coordinator: whom it may give up, whom it may use, and that its generation is the one in the storage.

A watch keeps its own account of what one coordinator has seen, by rules written down a second time: a member's session
ends only by time in which the coordinator itself looked and saw no new heartbeat, and only a member whose heartbeat
changed under its eyes, or that was there before, is part of a generation. One that has left may be back until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.group.failure_detector import FailureDetector, Liveness
from holdfast.group.generations import Generation
from holdfast.group.members import Member
from tests.simulation.model import Violation

INTERVAL, TIMEOUT = 1.0, 4.0
FORGET_AFTER = 6.0
_ROUNDING = 1e-6
_GAP = max(3 * INTERVAL, TIMEOUT / 2)


@dataclass
class _Watched:
    identity: tuple[int, str, int]
    silent: float = 0.0
    """Seconds in which the coordinator looked and saw no change."""
    beats: bool = False
    """Whether a change was seen."""
    gone: bool = False
    """Whether its session has ended once, and no heartbeat came since."""
    generation: int = 0
    """The generation that it said it hosts."""


@dataclass
class Watch:
    """What one coordinator has seen so far."""

    name: str
    seen: dict[str, _Watched] = field(default_factory=dict)
    vouched: set[str] = field(default_factory=set)
    last_look: float | None = None

    def looks(self, now: float, found: Mapping[str, Member]) -> None:
        """The coordinator looks at these heartbeats."""
        passed = 0.0 if self.last_look is None else now - self.last_look
        self.last_look = now
        self.seen = {id: each for id, each in self.seen.items() if id in found or not each.gone}
        for id in self.seen.keys() - found.keys():
            # Its heartbeat is missing, which is silence and nothing else.
            self.seen[id].silent = self.seen[id].silent + passed if passed <= _GAP else 0.0
            self.seen[id].gone = self.seen[id].silent >= TIMEOUT - _ROUNDING
        for id, member in found.items():
            identity = member.incarnation, member.process, member.beat
            each = self.seen.get(id)
            if each is None:
                each = self.seen[id] = _Watched(identity)
            elif each.identity != identity:
                each.identity, each.silent, each.beats, each.gone = identity, 0.0, True, False
            else:
                each.silent = each.silent + passed if passed <= _GAP else 0.0
            each.generation = member.generation
            each.gone |= each.silent >= TIMEOUT - _ROUNDING

    def check_detector(self, detector: FailureDetector) -> None:
        for id, each in self.seen.items():
            if detector.liveness(id) is Liveness.GONE and not each.gone:
                raise Violation(
                    f"{self.name} gave {id} up after {each.silent:.2f} s in which it looked; a session has {TIMEOUT} s"
                )

    def check_deleted(self, id: str) -> None:
        """This coordinator deletes the heartbeat of a member."""
        each = self.seen.get(id)
        if each is None or not each.gone or each.silent < FORGET_AFTER - _ROUNDING:
            silent = 0.0 if each is None else each.silent
            raise Violation(f"{self.name} deletes the heartbeat of {id} after {silent:.2f} s in which it looked")

    def is_gone(self, id: str) -> bool:
        """Whether its session has ended, as far as this coordinator has seen."""
        return id in self.seen and self.seen[id].gone

    def identity(self, id: str) -> tuple[int, str, int] | None:
        return None if id not in self.seen else self.seen[id].identity

    def check_number(self, number: int, most: int) -> None:
        """A new generation of this coordinator has a number that the members it knows still look for."""
        for id, each in self.seen.items():
            if each.beats and not each.gone and number <= each.generation <= most:
                raise Violation(f"{self.name} creates generation {number}, and {id} hosts generation {each.generation}")

    def check_generation(self, before: Generation | None, after: Generation) -> None:
        """A new generation of this coordinator."""
        known = {} if before is None else before.members
        for id in known.keys() - after.members.keys():
            each = self.seen.get(id)
            if each is not None and not each.gone:
                raise Violation(f"generation {after.number} of {self.name} leaves out {id}, whose session hasn't ended")
        for id in after.members.keys() - known.keys():
            each = self.seen.get(id)
            if (each is None or not each.beats) and id not in self.vouched:
                raise Violation(
                    f"generation {after.number} of {self.name} has {id}, of which it saw only one heartbeat"
                )


class WatchedJudge(FailureDetector):
    """The real detector, whose looks a watch sees too."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(INTERVAL, TIMEOUT)
        self._watch = watch

    def look(self, now: float, members: Mapping[str, Member], pace: float = 0.0) -> None:
        super().look(now, members, pace)
        self._watch.looks(now, members)
        self._watch.check_detector(self)

    def vouch(self, id: str) -> None:
        super().vouch(id)
        self._watch.vouched.add(id)
