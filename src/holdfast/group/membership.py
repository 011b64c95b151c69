"""Membership: the side of an instance in its group. Heartbeats go out, generations come in.

A start under an id is a new incarnation of it. A process that finds a higher incarnation under its own id, or another
process with the same one that was there first, has been replaced and stops.
"""

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


class Membership:
    """One instance as a member. `step` is called about once per heartbeat interval, by one thread."""

    def __init__(self, storage: Storage, member: Member, status: Callable[[], Status]) -> None:
        self._storage = storage
        self._member = member
        self._status = status
        self._generations = Generations(storage, member.log)

    @property
    def member(self) -> Member:
        return self._member

    @classmethod
    def join(
        cls,
        storage: Storage,
        member: Member,
        status: Callable[[], Status],
        answers: Callable[[Member], bool],
    ) -> "Membership":
        """Takes the id of `member`, with the next incarnation. `answers` asks the process that has it whether it runs.

        Raises IdInUse if it does.
        """
        try:
            holder = members.read(storage, member.log, member.id)
        except (DamagedObject, UnknownFormat):
            holder = None  # replaced by this process's own
        if holder is not None:
            if holder.state is not MemberState.LEFT and answers(holder):
                raise IdInUse(
                    f"{holder} answers at {holder.address} and has the id {member.id!r} in this group. Stop it, or "
                    "start this instance with another --id."
                )
            member = msgspec.structs.replace(member, incarnation=holder.incarnation + 1)
        joined = cls(storage, member, status)
        joined.beat()
        return joined

    def newest(self) -> Generation | None:
        """The newest generation there is."""
        return self._generations.follow()

    def step(self) -> Generation | None:
        """Writes a heartbeat and returns the newest generation. Raises Replaced when this process has to stop."""
        self._check_own()
        self.beat()
        return self._generations.follow()

    def beat(self) -> None:
        status = self._status()
        self._member = msgspec.structs.replace(
            self._member,
            beat=self._member.beat + 1,
            state=status.state,
            generation=status.generation,
            tasks=dict(status.tasks),
        )
        members.write(self._storage, self._member)

    def leave(self) -> None:
        """Says that this instance has ended, so that nothing waits for it."""
        self._check_own()
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
