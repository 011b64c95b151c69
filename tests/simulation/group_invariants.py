"""What has to be true of generations, heartbeats and drains, checked as they are stored, deleted and completed."""

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.group.generations import Generation
from holdfast.group.members import Member, MemberState
from holdfast.log import names
from tests.simulation.driver import DriverProcess
from tests.simulation.instance import Instance
from tests.simulation.model import Violation
from tests.simulation.processes import Process
from tests.simulation.watching import INTERVAL, TIMEOUT

if TYPE_CHECKING:
    from tests.simulation.world import World

_GENERATIONS = msgspec.json.Decoder(Generation)
_MEMBERS = msgspec.json.Decoder(Member)


class _Heartbeat(msgspec.Struct):
    process: str
    beat: int


_HEARTBEATS = msgspec.json.Decoder(_Heartbeat)


class GroupInvariants:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.newest: Generation | None = None
        """The newest generation, also if its object is lost."""
        self._made: dict[str, Generation] = {}
        """All generations that were created, by id."""
        self._forged: set[int] = set()
        """The numbers of those that no coordinator has created."""
        self._stray: set[str] = set()
        """The ids of those that were created under a number that was cleaned or lost."""
        self._lost: set[int] = set()
        """The numbers of generations that someone deleted."""
        self._stored: dict[str, int] = {}
        """By name, the step in which a heartbeat was stored."""
        self._deleted: dict[str, int] = {}
        """By id, the highest incarnation whose heartbeat a coordinator has deleted."""
        self._forged_at = -TIMEOUT
        self._forged_in = 0
        """The last step in which someone overwrote a heartbeat."""
        self._driver_beats: deque[tuple[int, float]] = deque(maxlen=8)
        """The steps and times of the last heartbeats of drivers."""

    # Generations

    def generation_created(self, data: bytes, process: Process | None) -> None:
        made = _GENERATIONS.decode(data)
        self._world.say(f"generation {made.number}: {made.reason}")
        before = self.newest
        self._made[made.id] = made
        if before is not None and made.number < before.number and before.number not in self._lost:
            # A coordinator that slept created a number that was cleaned or lost. It must not believe in it.
            self._stray.add(made.id)
            return
        follows = before is None or (made.number > before.number and made.before == before.id)
        if before is not None and before.number not in self._lost and not follows:
            raise Violation(f"generation {made.number} doesn't follow generation {before.number}")
        self.newest = made
        if isinstance(process, Instance):
            self._check_driverless(process)
        if isinstance(process, Instance | DriverProcess):
            process.watch.check_generation(self._made.get(made.before), made)
            process.watch.check_number(made.number, 0 if before is None else before.number)

    def driver_beats(self, data: bytes) -> None:
        """A driver stores its heartbeat; one that ends says so in it."""
        if _MEMBERS.decode(data).state is MemberState.LEFT:
            self._driver_beats.clear()
        else:
            self._driver_beats.append((self._world.step_number, self._world.now))

    def _check_driverless(self, instance: Instance) -> None:
        """A member coordinates only if it can't have seen a heartbeat of a driver for a session.

        Two of them, since someone may have overwritten one at once.
        """
        known = [at for step, at in self._driver_beats if step < instance.step_began]
        if len(known) > 1 and self._world.now - known[-2] < TIMEOUT - INTERVAL:
            raise Violation(f"{instance} coordinates, and a driver beat {self._world.now - known[-2]:.2f} s ago")

    def generation_forged(self, made: Generation) -> None:
        """Someone wrote a generation that everybody believes."""
        self._made[made.id] = made
        self._forged.add(made.number)
        self.newest = made

    def may_be_lost(self, number: int) -> bool:
        """A forged one that is lost before anyone has read it is as if it had never been."""
        return number not in self._forged

    def generation_lost(self, number: int) -> None:
        self._lost.add(number)
        self._stray.clear()  # one of them may be the newest that is left
        self._deleted.clear()  # numbers may start over, and incarnations with them

    def check_proposed(self, process: Process) -> None:
        """What a coordinator believes after a step of its own is what is stored."""
        coordinator = process.coordinator if isinstance(process, Instance | DriverProcess) else None
        newest = None if coordinator is None else coordinator.generations.newest
        if newest is None or process.dead:
            return
        made = self._made.get(newest.id)
        if newest.id in self._stray or made is None or made.number != newest.number:
            raise Violation(f"{process} believes in a generation {newest.number} that isn't the stored one")

    # Heartbeats

    def member_stored(self, name: str, data: bytes) -> None:
        self._stored[name] = self._world.step_number
        with suppress(msgspec.MsgspecError):
            member = _HEARTBEATS.decode(data)
            self._world.assigning.stored(member.process, member.beat)

    def member_forged(self) -> None:
        self._forged_at, self._forged_in = self._world.now, self._world.step_number

    def member_deleted(self, name: str, data: bytes, process: Process | None) -> None:
        """Only the heartbeat of a member that is long gone, and that no later start could be taken for."""
        if not isinstance(process, Instance | DriverProcess):
            return
        self._world.counts["forgotten"] += 1
        try:
            member = _MEMBERS.decode(data)
        except msgspec.MsgspecError:
            if self._forged_in >= process.step_began:
                return  # while it was being deleted
            raise Violation(f"{process} deletes {name}, which can't be believed") from None
        process.watch.check_deleted(member.id)
        identity = member.incarnation, member.process, member.beat
        if self._stored.get(name, 0) < process.step_began and process.watch.identity(member.id) != identity:
            raise Violation(f"{process} deletes the heartbeat of {member.id} that it has not looked at")
        self._deleted[member.id] = max(self._deleted.get(member.id, 0), member.incarnation)

    def incarnation_below(self, id: str) -> int:
        """What the incarnation of a start under this id has to be above."""
        stored = self._member(id)
        return max(self._deleted.get(id, 0), 0 if stored is None else stored.incarnation)

    def _member(self, id: str) -> Member | None:
        """The stored heartbeat of a member, if it can be read."""
        try:
            found = _MEMBERS.decode(self._world.objects.stored.get(names.member(id), b""))
        except msgspec.MsgspecError:
            return None
        return found if found.id == id and found.log else None

    # Drains

    def _is_staying(self, id: str) -> bool:
        found = self._member(id)
        return found is None or (
            found.state is MemberState.JOINED and names.drain(id) not in self._world.objects.stored
        )

    def nobody_stays_but(self, instance: Instance) -> bool:
        if self._world.now - self._forged_at < 2 * TIMEOUT:
            return False  # it may know a heartbeat that isn't there any more
        listed = self._world.objects.listed(names.MEMBERS)
        coordinator = instance.coordinator
        if coordinator is not None and any(names.member(id) not in listed for id in coordinator.members):
            return False  # nor is one that a coordinator has deleted
        others = [id for name in listed if (id := names.member_of(name)) is not None and id != instance.id]
        return not any(map(self._is_staying, others))

    def check_handed_over(self, instance: Instance) -> None:
        """An instance ends its drain: nobody it could have waited for is there, or others have its tasks."""
        generation = None if instance.steps is None else instance.steps.generation
        if generation is None or all(place.active != instance.id for place in generation.tasks.values()):
            return
        if self._world.now - self._forged_at < 2 * TIMEOUT:
            return  # of a forged heartbeat it may not have known another one
        for other in self._world.instances:
            is_other = other.id != instance.id and other.id in generation.members
            # Its heartbeats before the last step of the instance were seen in that step.
            is_seen = other.answers and other.beats[0] >= 0 and other.beats[1] < instance.looked
            is_seen = is_seen and not instance.watch.is_gone(other.id)
            stays = other.drained_by is None and self._member(other.id) is not None and self._is_staying(other.id)
            if is_other and is_seen and stays:
                raise Violation(f"{instance} ends its drain with tasks that {other} could have taken over")
