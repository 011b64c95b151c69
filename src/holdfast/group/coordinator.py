"""The coordinator: looks at the members, and proposes the next generation when tasks should be elsewhere.

The driver coordinates. Without a live driver the live member with the smallest id does. Two that coordinate at the same
time do no harm: a generation is created if absent, so one of them wins, and placement never affects correctness.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.group.candidates import Assign, Assigned, Candidate, Presence, Wanted
from holdfast.group.generations import Address, Generation, Generations, Place, Rules
from holdfast.group.judge import Judge, Standing
from holdfast.group.members import Member, Members, MemberState
from holdfast.log.objects import Storage
from holdfast.words import TaskId, Version


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What has to be placed: the tasks of an app file, at the newest version."""

    app_file: int
    tasks: Sequence[Wanted]
    newest: Version


class Coordinator:
    """Proposes generations. `step` is called about once per heartbeat interval, and at once after a report."""

    def __init__(
        self,
        storage: Storage,
        log: str,
        name: str,
        judge: Judge,
        assign: Assign,
        rules: Rules,
        new_id: Callable[[], str],
        *,
        keeps_rules: bool = False,
    ) -> None:
        self._members = Members(storage, log)
        self.members: Mapping[str, Member] = {}
        """The heartbeats at the last look."""
        self.generations = Generations(storage, log)
        self._log = log
        self._name = name
        self.judge = judge
        self._assign = assign
        self._rules = rules
        self._keeps_rules = keeps_rules
        """Whether the rules of the generation before go on: a member doesn't know the settings of the app."""
        self._new_id = new_id

    def step(self, now: float, needs: Needs) -> Generation | None:
        """Looks at all members; the generation in effect after that, which may be a new one of this coordinator."""
        self.look(now)
        return self.propose(needs)

    def look(self, now: float) -> None:
        """Looks at all members without proposing anything, as a member does while another one coordinates."""
        self.members = self._members.read()
        self.judge.look(now, self.members)

    def propose(self, needs: Needs) -> Generation | None:
        """The generation in effect after the last look, which may be a new one of this coordinator."""
        before = self.generations.follow()
        after = self._next(needs, self.members, before)
        if after is not None:
            self.generations.propose(after)
        return self.generations.newest

    def _next(self, needs: Needs, members: Mapping[str, Member], before: Generation | None) -> Generation | None:
        """The next generation; None if nothing changes, or if nobody could host anything."""
        places = {} if before is None else {TaskId.parse(task): place for task, place in before.tasks.items()}
        known = frozenset() if before is None else frozenset(before.members)
        candidates = [
            candidate
            for id, member in sorted(members.items())
            if (candidate := self._candidate(member, self.judge.standing(id), known)) is not None
        ]
        if not any(candidate.presence is Presence.HERE for candidate in candidates):
            return None
        rules = before.rules if before is not None and self._keeps_rules else self._rules
        assigned = self._assign(needs.tasks, candidates, places, needs.newest, rules)
        addresses = {candidate.id: _address(members[candidate.id]) for candidate in candidates}
        after = self._generation(needs, addresses, assigned, rules, before)
        return None if before is not None and _same(before, after) else after

    def _candidate(self, member: Member, standing: Standing, known: frozenset[str]) -> Candidate | None:
        """A member for the assignor; None if nothing can be placed on it."""
        match standing:
            case Standing.GONE:
                return None
            case Standing.UNKNOWN if member.id not in known:
                return None  # its heartbeat may be years old
            case Standing.LIVE:
                leaves = member.state is MemberState.LEAVING or member.id in self._members.draining
                presence = Presence.LEAVING if leaves else Presence.HERE
            case Standing.UNKNOWN | Standing.SUSPECTED:
                presence = Presence.AWAY
        replicas = {TaskId.parse(task): hosted for task, hosted in member.tasks.items()}
        return Candidate(id=member.id, presence=presence, tags=member.tags, replicas=replicas)

    def _generation(
        self, needs: Needs, addresses: dict[str, Address], assigned: Assigned, rules: Rules, before: Generation | None
    ) -> Generation:
        return Generation(
            log=self._log,
            number=self.generations.next_number,
            id=self._new_id(),
            before="" if before is None else before.id,
            proposer=self._name,
            reason=_reason(before, addresses, assigned.places),
            app_file=needs.app_file,
            rules=rules,
            members=addresses,
            tasks={str(task): place for task, place in assigned.places.items()},
            why={str(task): sentence for task, sentence in assigned.why.items()},
        )


def _address(member: Member) -> Address:
    return Address(incarnation=member.incarnation, flight=member.address, rest=member.rest, tags=member.tags)


def _same(before: Generation, after: Generation) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in ("app_file", "rules", "members", "tasks"))


def _reason(before: Generation | None, members: Mapping[str, Address], places: Mapping[TaskId, Place]) -> str:
    """What is different, for people."""
    if before is None:
        return f"the first assignment, to {', '.join(sorted(members))}"
    joined, left = sorted(members.keys() - before.members.keys()), sorted(before.members.keys() - members.keys())
    restarted = sorted(id for id, address in members.items() if id in before.members and before.members[id] != address)
    parts = [
        f"{', '.join(ids)} {verb}"
        for ids, verb in ((joined, "joined"), (left, "left"), (restarted, "restarted"))
        if ids
    ]
    moved = sum(before.tasks.get(str(task)) != place for task, place in places.items())
    return "; ".join([*parts, f"{moved} tasks have new places"])
