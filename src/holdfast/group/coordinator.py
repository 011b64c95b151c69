"""The coordinator: looks at the members, and proposes the next generation when tasks should be elsewhere.

The driver coordinates. Without a live driver the live member with the smallest id does. Two that coordinate at the same
time do no harm: a generation is created if absent, so one of them wins, and placement never affects correctness.

It also deletes old generations, and the heartbeats of members that are long gone. The next start under such an id can't
know how many there were, and must not be taken for older than a process of that id that slept and wakes up. So its
incarnation is above the number of the newest generation (`Membership.join`), and a heartbeat is deleted only if its own
incarnation is not.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.errors import DamagedObject
from holdfast.group import members as heartbeats
from holdfast.group.candidates import Assign, Assigned, Candidate, Presence, Wanted
from holdfast.group.failure_detector import FailureDetector, Liveness
from holdfast.group.generations import LOST, Address, Generation, Generations, Rules
from holdfast.group.members import Member, Members, MemberState
from holdfast.group.reasons import reason_of
from holdfast.group.side_by_side import Map, side_by_side
from holdfast.log import names
from holdfast.log.documents import UnknownFormat
from holdfast.log.objects import Storage
from holdfast.words import NOTHING, TaskId, Version

logger = logging.getLogger(__name__)

FORGET_AFTER = 3600.0
"""After so many seconds the heartbeat of a member that is gone is deleted. Until then people see who is missing."""
_FORGET_AT_ONCE = 16
_AHEAD = 1_000
"""A replica may be so many versions ahead of the newest one that a coordinator knows. It may be a little outdated."""
_HIGHEST = 10**9
"""A group has no generation of a higher number."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What has to be placed: the tasks of an app file, at the newest version."""

    app_file: int
    tasks: Sequence[Wanted]
    newest: Version


class Coordinator:
    """Looks and proposes, about once per heartbeat interval, and at once after a report."""

    def __init__(
        self,
        storage: Storage,
        log: str,
        name: str,
        detector: FailureDetector,
        assign: Assign,
        rules: Rules,
        new_id: Callable[[], str],
        *,
        keeps_rules: bool = False,
        check_leads: Callable[[], None] = lambda: None,
        forget_after: float = FORGET_AFTER,
        each: Map = side_by_side,
    ) -> None:
        self._storage = storage
        self._members = Members(storage, log, each)
        self.members: Mapping[str, Member] = {}
        """The heartbeats at the last look."""
        self.generations = Generations(storage, log)
        self._log = log
        self._name = name
        self.detector = detector
        self._assign = assign
        self._rules = rules
        self._keeps_rules = keeps_rules
        """Whether the rules of the generation before go on: a member doesn't know the settings of the app."""
        self._new_id = new_id
        self._check_leads = check_leads
        """Raises if another coordinator is to propose from now on. It is asked before something is written."""
        self._forget_after = forget_after
        self._newest: tuple[Version | None, Version | None] = None, None
        """The newest version at the last proposal but one, and at the last one."""
        self._heartbeats: dict[str, tuple[tuple[int, str, int], Version | None]] = {}
        """By member, which heartbeat was the last one, and a version that was there when it was written."""
        self._unbelieved: dict[str, str] = {}
        """Members that were warned about, and their processes."""

    @property
    def draining(self) -> frozenset[str]:
        """The members that an operator wants to be drained, at the last look."""
        return self._members.draining

    def look(self, now: float, pace: float = 0.0) -> None:
        """Looks at all members. `pace` is the time between two looks, if it is longer than the heartbeat interval."""
        found = dict(self._members.read())
        for id, member in self.members.items():
            # A heartbeat that someone deleted, or that a former process of the id wrote over, says nothing: the member
            # is silent until its session ends.
            outdated = id not in found or found[id].incarnation < member.incarnation
            if outdated and self.detector.liveness(id) is not Liveness.GONE:
                found[id] = member
        self.members = found
        self.detector.look(now, self.members, pace)

    def propose(self, needs: Needs) -> Generation | None:
        """The generation in effect after the last look, which may be a new one of this coordinator."""
        self._note_heartbeats(needs.newest)
        before = self.generations.follow()
        if self._newest_hosted(before) > _number(before):
            before = self.generations.look_again()
        after = self._next(needs, self.members, before, even_if_same=self._skip_lost(before))
        if after is not None:
            self._check_leads()
            self.generations.propose(after)
        return self.generations.newest

    def _note_heartbeats(self, newest: Version) -> None:
        """Takes note of what each heartbeat can know: it was written after the look before the one that has seen it.

        Many versions may be made until the next heartbeat. A replica that is as good as the others must not seem to be
        behind because its heartbeat is older than theirs.
        """
        heartbeats, (early, late) = self._heartbeats, self._newest
        known = late if early is None else early
        self._heartbeats = {}
        for id, member in self.members.items():
            identity = member.incarnation, member.process, member.beat
            before = heartbeats.get(id)
            self._heartbeats[id] = before if before is not None and before[0] == identity else (identity, known)
        self._newest = late, newest

    def _skip_lost(self, newest: Generation | None) -> bool:
        """Whether the object of a generation is lost, so that another one is needed, with a number above it."""
        hosted = self._newest_hosted(newest)
        if hosted > _number(newest):
            # Members host it and nobody else can find it. They look at higher numbers only.
            self.generations.skip_to(hosted + 1)
            return True
        # Some don't host it yet. It is asked for only until they do.
        behind = newest is not None and any(
            member.id in newest.members and member.generation < newest.number for member in self._live()
        )
        return behind and newest is not None and not self.generations.is_stored(newest)

    def _newest_hosted(self, newest: Generation | None) -> int:
        """The highest number that a live member says it hosts, without those that can't be true."""
        highest = _HIGHEST if newest is None else newest.number + LOST
        return max((member.generation for member in self._live() if member.generation <= highest), default=0)

    def _live(self) -> Iterable[Member]:
        return (member for id, member in self.members.items() if self.detector.liveness(id) is Liveness.LIVE)

    def tidy(self, now: float) -> None:
        """Deletes old generations, and the heartbeats of members that nobody waits for any more."""
        if self.generations.newest is not None and self.generations.is_clean_due:
            self._check_leads()
            self.generations.clean()
        gone = [member for id, member in self.members.items() if self._is_forgotten(id, now)]
        unchanged = [names.member(member.id) for member in gone[:_FORGET_AT_ONCE] if self._is_stored(member)]
        if unchanged:
            self._check_leads()
            self._storage.delete(unchanged)

    def _is_forgotten(self, id: str, now: float) -> bool:
        newest = self.generations.newest
        return (
            newest is not None
            and id not in newest.members
            and self.members[id].incarnation <= newest.number
            and self.detector.gone_for(id, now) >= self._forget_after
        )

    def _is_stored(self, member: Member) -> bool:
        """Whether a heartbeat is still the one that the detector has seen: the id may have been started again since."""
        try:
            return heartbeats.read(self._storage, self._log, member.id) == member
        except (DamagedObject, UnknownFormat):
            return False

    def _next(
        self, needs: Needs, members: Mapping[str, Member], before: Generation | None, *, even_if_same: bool
    ) -> Generation | None:
        """The next generation; None if nothing changes, or if nobody could host anything."""
        places = {} if before is None else {TaskId.parse(task): place for task, place in before.tasks.items()}
        known = frozenset() if before is None else frozenset(before.members)
        candidates = [
            candidate
            for id, member in sorted(members.items())
            if (candidate := self._candidate(member, self.detector.liveness(id), known, needs.newest)) is not None
        ]
        if not any(candidate.presence is Presence.HERE for candidate in candidates):
            return None
        rules = before.rules if before is not None and self._keeps_rules else self._rules
        assigned = self._assign(needs.tasks, candidates, places, needs.newest, rules)
        addresses = {candidate.id: _address(members[candidate.id]) for candidate in candidates}
        after = self._generation(needs, addresses, assigned, rules, before)
        if before is not None and _same(before, after) and not even_if_same:
            return None
        left = {id for id, member in members.items() if member.state is MemberState.LEFT}
        reason = reason_of(before, after, candidates, left)
        return msgspec.structs.replace(after, reason=reason)

    def _candidate(
        self, member: Member, liveness: Liveness, known: frozenset[str], newest: Version
    ) -> Candidate | None:
        """A member for the assignor; None if nothing can be placed on it."""
        match liveness:
            case Liveness.GONE:
                return None
            case Liveness.UNKNOWN if member.id not in known:
                return None  # its heartbeat may be years old
            case Liveness.LIVE:
                stops = member.state is MemberState.LEAVING
                stays = Presence.STOPPING if stops else Presence.HERE
                presence = Presence.LEAVING if member.id in self.draining else stays
            case Liveness.UNKNOWN | Liveness.SUSPECTED:
                presence = Presence.AWAY
        replicas = {
            TaskId.parse(task): hosted
            for task, hosted in member.tasks.items()
            if newest == NOTHING or self._can_be(member, task, hosted.version, newest)
        }
        at = None if presence is Presence.AWAY else self._heartbeats[member.id][1]
        return Candidate(id=member.id, presence=presence, tags=member.tags, replicas=replicas, newest=at)

    def _can_be(self, member: Member, task: str, version: int, newest: Version) -> bool:
        """Whether a replica can be at a version. One that can't counts as none, and its member is named once."""
        if version <= newest + _AHEAD:
            return True
        if self._unbelieved.get(member.id) != member.process:
            self._unbelieved[member.id] = member.process
            logger.warning(
                "%s says that its replica of task %s is at version %d, and the newest one of the app is %d. It "
                "isn't counted. Restart that instance; if it says so again, someone else writes its heartbeats to %s.",
                member,
                task,
                version,
                newest,
                self._storage.place,
            )
        return False

    def _generation(
        self, needs: Needs, addresses: dict[str, Address], assigned: Assigned, rules: Rules, before: Generation | None
    ) -> Generation:
        return Generation(
            log=self._log,
            number=self.generations.next_number,
            id=self._new_id(),
            before="" if before is None else before.id,
            proposer=self._name,
            reason="",
            app_file=needs.app_file,
            rules=rules,
            members=addresses,
            tasks={str(task): place for task, place in assigned.places.items()},
            why={str(task): sentence for task, sentence in assigned.why.items()},
        )


def _number(generation: Generation | None) -> int:
    return 0 if generation is None else generation.number


def _address(member: Member) -> Address:
    return Address(incarnation=member.incarnation, flight=member.address, rest=member.rest, tags=member.tags)


def _same(before: Generation, after: Generation) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in ("app_file", "rules", "members", "tasks"))
