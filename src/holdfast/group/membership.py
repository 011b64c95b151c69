"""Membership: the side of an instance in its group. Heartbeats go out, generations come in.

A start under an id is a new incarnation of it, above that of the last heartbeat under the id and above the number of
the newest generation: the heartbeat may have been deleted since (see `Coordinator.tidy`). A process that finds a higher
incarnation under its own id, or another process with the same one that was there first, has been replaced and stops.

A load takes minutes to be measured. Until then the last one that was measured under the id counts, so a member that
returns doesn't seem to have lost its load, and nothing is moved to it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.errors import DamagedObject, ErrorCategory, Held, HoldfastError
from holdfast.group import members
from holdfast.group.generations import Generation, Generations
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.log.documents import UnknownFormat
from holdfast.log.objects import Storage


class Replaced(HoldfastError):
    """A newer process runs under this instance's id."""

    category = ErrorCategory.INVALID


class IdInUse(Held):
    """Another live instance has this id."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """What a heartbeat says about the instance."""

    state: MemberState
    generation: int
    tasks: Mapping[str, Hosted]
    pace: float = 0.0


class Membership:
    """One instance as a member. `step` is called about once per heartbeat interval, by one thread."""

    def __init__(self, storage: Storage, member: Member, status: Callable[[], Status]) -> None:
        self._storage = storage
        self._member = member
        self._status = status
        self._former: Mapping[str, Hosted] = {}
        """What the process before said about tasks whose load this one hasn't measured yet."""
        self._generations = Generations(storage, member.log)
        self._writing = threading.Lock()
        self._has_left = False

    @property
    def member(self) -> Member:
        return self._member

    @classmethod
    def join(
        cls,
        storage: Storage,
        member: Member,
        status: Callable[[], Status],
        runs: Callable[[Member], bool],
    ) -> "Membership":
        """Takes the id of `member`, with a higher incarnation. `runs` says whether the process that has it runs.

        Raises IdInUse if it does.
        """
        try:
            holder = members.read(storage, member.log, member.id)
        except (DamagedObject, UnknownFormat):
            holder = None  # replaced by this process's own
        if holder is not None and holder.state is not MemberState.LEFT and runs(holder):
            raise IdInUse(
                f"{holder} runs at {holder.address} and has the id {member.id!r} in this group. Stop it, or "
                "start this instance with another --id."
            )
        joined = cls(storage, member, status)
        joined._former = {} if holder is None else holder.tasks
        joined._start_above(0 if holder is None else holder.incarnation)
        joined.beat()
        return joined

    def _start_above(self, held: int) -> None:
        # After the heartbeat was read: the coordinator that has deleted it since knew a generation of a number not
        # below it.
        self._generations.follow()
        above = max(held, self._generations.next_number - 1)
        self._member = msgspec.structs.replace(self._member, incarnation=min(above + 1, members.LARGEST_COUNT))

    def look_back(self) -> None:
        """The log was set back, and its generations with it."""
        self._generations = Generations(self._storage, self._member.log)

    def newest(self, at_least: int = 0) -> Generation | None:
        """The newest generation there is. Looks more closely if it should have this number at least."""
        found = self._generations.follow()
        if at_least > (0 if found is None else found.number):
            found = self._generations.look_again()
        return found

    def step(self, at_least: int = 0) -> Generation | None:
        """Writes a heartbeat and returns the newest generation. Raises Replaced when this process has to stop."""
        self._check_own()
        self.beat()
        return self.newest(at_least)

    def beat(self) -> None:
        """Writes a heartbeat, unless this instance has left: its steps may still be under way then."""
        status = self._status()
        with self._writing:
            if self._has_left:
                return
            self._member = msgspec.structs.replace(
                self._member,
                beat=self._member.beat + 1,
                pace=status.pace,
                state=status.state,
                generation=status.generation,
                tasks=self._with_former_loads(status.tasks),
            )
            members.write(self._storage, self._member)

    def beat_again(self) -> None:
        """Writes a heartbeat that says what the last one said. Raises Replaced when this process has to stop."""
        self._check_own()
        with self._writing:
            if not self._has_left:
                self._member = msgspec.structs.replace(self._member, beat=self._member.beat + 1)
                members.write(self._storage, self._member)

    def _with_former_loads(self, tasks: Mapping[str, Hosted]) -> dict[str, Hosted]:
        unmeasured = {task for task, hosted in tasks.items() if hosted.load is None}
        self._former = {task: hosted for task, hosted in self._former.items() if task in unmeasured}
        loads = {task: hosted.load for task, hosted in self._former.items()}
        return {
            task: msgspec.structs.replace(hosted, load=loads[task]) if task in loads else hosted
            for task, hosted in tasks.items()
        }

    def leave(self) -> None:
        """Says that this instance has ended, so that nobody asks it."""
        self._check_own()
        with self._writing:
            self._has_left = True
            left = msgspec.structs.replace(self._member, beat=self._member.beat + 1, state=MemberState.LEFT, tasks={})
            members.write(self._storage, left)

    def _check_own(self) -> None:
        own = self._member
        try:
            found = members.read(self._storage, own.log, own.id)
        except (DamagedObject, UnknownFormat):
            return  # the next heartbeat replaces it
        if found is None or found.process == own.process:
            return
        # Two that started at the same moment may have the same incarnation: then the smaller id of a process wins.
        if (found.incarnation, own.process) > (own.incarnation, found.process):
            raise Replaced(
                f"{found} was started later under the id {own.id!r}, so this one, process {own.pid} on {own.host}, "
                "stops. Give each instance an id of its own."
            )
