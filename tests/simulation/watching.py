"""Checks of a coordinator: whom it may give up, whom it may use, and that its generation is the one in the storage.

A watch keeps its own account of what one coordinator has seen, by rules written down a second time: a member's session
ends only by time in which the coordinator itself looked and saw no new heartbeat, and only a member whose heartbeat
changed under its eyes, or that was there before, is part of a generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.group.generations import Generation
from holdfast.group.judge import Judge, Standing
from holdfast.group.members import Member, MemberState
from tests.simulation.model import Violation

INTERVAL, TIMEOUT = 1.0, 4.0
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
        self.seen = {id: each for id, each in self.seen.items() if id in found}
        for id, member in found.items():
            identity = member.incarnation, member.process, member.beat
            each = self.seen.get(id)
            if each is None:
                each = self.seen[id] = _Watched(identity)
            elif each.identity != identity:
                each.identity, each.silent, each.beats, each.gone = identity, 0.0, True, False
            else:
                each.silent = each.silent + passed if passed <= _GAP else 0.0
            each.gone |= member.state is MemberState.LEFT or each.silent >= TIMEOUT - _ROUNDING

    def check_judge(self, judge: Judge) -> None:
        for id, each in self.seen.items():
            if judge.standing(id) is Standing.GONE and not each.gone:
                raise Violation(
                    f"{self.name} gave {id} up after {each.silent:.2f} s in which it looked; a session has {TIMEOUT} s"
                )

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
