"""The failure detector: which members are alive. Each process that looks at them has its own, with its monotonic clock.

A member is alive while its heartbeat changes. The detector remembers when it last saw a change, and counts only time in
which it looked itself: after a gap in its own looks (it slept, or the storage didn't answer) every timer starts over.
No timestamp of another machine is used. A detector may be wrong, which costs a move of a task and never a wrong answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.group.members import Member, MemberState


class Liveness(Enum):
    """Whether a member is alive, as far as a detector knows."""

    UNKNOWN = "unknown"
    """Its heartbeat was there and hasn't changed since: the instance may have ended long ago."""
    LIVE = "live"
    SUSPECTED = "suspected"
    """It has left, refused a connection, or hangs. It may be back before its session ends. Heartbeats alone don't
    clear it."""
    GONE = "gone"
    """It was silent for longer than the session timeout."""


@dataclass
class _Seen:
    identity: tuple[int, str, int]
    since: float
    """When the heartbeat changed, or the timers started over."""
    liveness: Liveness


class FailureDetector:
    """Which members are alive, as far as one process knows.

    >>> detector = FailureDetector(interval=1.0, timeout=3.0)
    >>> beat = lambda n: {"a": Member(log="l", id="a", incarnation=1, process="p", beat=n, address="grpc://a:1")}
    >>> detector.look(0.0, beat(1)); detector.liveness("a")
    <Liveness.UNKNOWN: 'unknown'>
    >>> detector.look(1.0, beat(2)); detector.liveness("a")
    <Liveness.LIVE: 'live'>
    >>> for now in (2.0, 3.0, 4.0): detector.look(now, beat(2))
    >>> detector.liveness("a")
    <Liveness.GONE: 'gone'>
    """

    def __init__(self, interval: float, timeout: float) -> None:
        self._interval = interval
        self._timeout = timeout
        self._seen: dict[str, _Seen] = {}
        self._last_look: float | None = None
        self._looking_since: float | None = None

    def look(self, now: float, members: Mapping[str, Member], pace: float = 0.0) -> None:
        """Takes note of all heartbeats there are now. `pace` is the time between two looks, if it is longer now."""
        slept = self._last_look is not None and now - self._last_look > max(self._gap, 2 * pace)
        self._last_look = now
        if slept or self._looking_since is None:
            self._looking_since = now
        for id in self._seen.keys() - members.keys():
            del self._seen[id]
        for member in members.values():
            self._look_at(now, member, slept)

    def has_looked_for(self, now: float) -> float:
        """For how many seconds this process has looked without a gap."""
        return 0.0 if self._looking_since is None else now - self._looking_since

    @property
    def _gap(self) -> float:
        """A longer time between two looks means that this process wasn't looking. So do two looks that are missing."""
        return max(3 * self._interval, self._timeout / 2)

    def _look_at(self, now: float, member: Member, slept: bool) -> None:
        identity = member.incarnation, member.process, member.beat
        seen = self._seen.get(member.id)
        if seen is None:
            seen = self._seen[member.id] = _Seen(identity, now, Liveness.UNKNOWN)
        elif identity != seen.identity:
            # One that writes heartbeats and can't be reached would be suspected and trusted again and again.
            reached = seen.liveness is not Liveness.SUSPECTED or identity[:2] != seen.identity[:2]
            seen.identity, seen.since = identity, now
            seen.liveness = Liveness.LIVE if reached else Liveness.SUSPECTED
        elif slept:
            seen.since = now
        elif now - seen.since >= self._timeout:
            seen.liveness = Liveness.GONE
        if member.state is MemberState.LEFT and seen.liveness is Liveness.LIVE:
            seen.liveness = Liveness.SUSPECTED  # it may be restarted, and then it has its replicas as before

    def vouch(self, id: str) -> None:
        """Someone has just talked to this member."""
        if (seen := self._seen.get(id)) is not None and seen.liveness in (Liveness.UNKNOWN, Liveness.SUSPECTED):
            seen.liveness = Liveness.LIVE

    def suspect(self, id: str) -> None:
        """This member can't be reached, or hangs. It counts until the member was reached or started again."""
        if (seen := self._seen.get(id)) is not None and seen.liveness is Liveness.LIVE:
            seen.liveness = Liveness.SUSPECTED

    def silent_for(self, id: str, now: float) -> float:
        """For how many seconds this process has looked and seen no change of a member's heartbeat."""
        seen = self._seen.get(id)
        return 0.0 if seen is None else now - seen.since

    def gone_for(self, id: str, now: float) -> float:
        """For how many seconds this process has seen no change of a member that is gone; 0 for one that isn't."""
        return self.silent_for(id, now) if self.liveness(id) is Liveness.GONE else 0.0

    def liveness(self, id: str) -> Liveness:
        seen = self._seen.get(id)
        return Liveness.GONE if seen is None else seen.liveness

    def live(self) -> Iterable[str]:
        """The members that are alive, in order."""
        return sorted(id for id, seen in self._seen.items() if seen.liveness is Liveness.LIVE)
