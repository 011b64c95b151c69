"""What happens to the processes from outside: kills, pauses, restarts, overlapping starts, clocks, lost disks."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.chance import new_id
from holdfast.group.generations import Address, Generation, Place
from holdfast.group.members import Hosted, Member
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log import documents, names
from holdfast.log.operator_requests import OperatorRequest
from tests.simulation.driver import DriverProcess
from tests.simulation.instance import Instance
from tests.simulation.processes import Process
from tests.simulation.weather import CALM

if TYPE_CHECKING:
    from tests.simulation.world import World

_HOUR = 3_600_000
_ABSURD_TASKS = {"0_0": Hosted(version=2**50, running=True), "99_99": Hosted(version=0, running=True)}
_ABSURD_PLACES = {
    "0_0": Place(active="nobody", standbys=("i0", "i0", "nobody"), warming=("i0", "")),
    "0_1": Place(active="i1", standbys=("i1",)),
    "7_7": Place(active="i0", standbys=("i1",)),
}


def _nonsense_generation() -> Generation:
    places = {"nonsense": Place(active="i0")}
    return Generation(log="", number=1, id="x", before="", proposer="", reason="", app_file=1, members={}, tasks=places)


class Chaos:
    """The supervisor, which starts what is missing, and the events that make it missing."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._starts = 0
        self._folders: dict[str, int] = {}
        self._absent: dict[str, float] = {}
        """Until when instances aren't started."""
        self.loops: list[tuple[str, float, Callable[[], None]]] = [
            ("supervise", 1.0, self.supervise),
            ("trouble", 1.0, self.trouble),
            ("query", 1.0, self.query),
        ]

    def _number(self) -> int:
        self._starts += 1
        return self._starts

    # The supervisor

    def supervise(self) -> None:
        """Starts the driver and the instances that aren't there; sometimes it takes its time."""
        world = self._world
        hurried = world.random.random() < 0.6
        answering = [each for each in world.drivers if each.answers]
        if not world.drivers and hurried:
            self.start_driver()
        elif not answering and world.random.random() < 0.3:
            world.strikes("overlap", "the driver seems to be dead, and another one is started")
            self.start_driver()
        for number in range(world.members):
            id = f"i{number}"
            away = self._absent.get(id, 0.0) > world.now and world.weather is not CALM
            if hurried and not away and not any(each.id == id for each in world.instances):
                self.start_instance(id)

    def start_driver(self) -> None:
        world = self._world
        if world.random.random() < world.weather.events / 2:
            world.strikes("lost entry", "the last entry of Spark's checkpoint is lost")
            world.checkpoint.forget_last()
        if world.random.random() < world.weather.events / 2:
            self._set_standbys()
        world.launch(DriverProcess(world, self._number()))

    def start_instance(self, id: str, *, elsewhere: bool = False) -> None:
        """On the folder that its last start had, or on a new one: on another host, or after its disk was lost."""
        world = self._world
        if elsewhere or world.random.random() < world.weather.events / 4:
            self._folders[id] = self._folders.get(id, 0) + 1
        number = self._number()
        before = world.folder / f"{id}-{self._folders.get(id, 0)}"
        folder = world.folder / f"{id}-{self._folders.get(id, 0)}-{number}"
        # A dead process may still be on Python's stack, and must not touch the folder of its successor.
        found = sorted(before.parent.glob(f"{before.name}-*"), key=lambda each: int(each.name.rpartition("-")[2]))
        if found and not any(each.folder == found[-1] for each in world.instances):
            found[-1].rename(folder)
        world.launch(Instance(world, id, folder, number))

    # Events

    def trouble(self) -> None:
        world = self._world
        if world.random.random() < world.weather.events:
            events = (
                self._kill,
                self._kill,
                self._pause,
                self._pause,
                self._overlap,
                self._second,
                self._jump,
                self._outage,
                self._damage,
                self._leave,
                self._leave_all,
                self._take_away,
                self._replace,
                self._stop_driver,
                self._release,
                self._drain,
                self._forge_member,
                self._lose_member,
                self._forge_stranger,
                self._forge_driver,
                self._forge_generation,
                self._forge_believable_generation,
                self._lose_generation,
            )
            events[world.random.randrange(len(events))]()

    def _any(self) -> Process | None:
        found = [each for each in self._world.processes if not each.dead]
        return found[self._world.random.randrange(len(found))] if found else None

    def _kill(self) -> None:
        if (process := self._any()) is not None:
            self._world.strikes("kill", f"kill -9 {process}")
            self._world.kill(process, "killed")

    def _pause(self) -> None:
        world = self._world
        if (process := self._any()) is not None:
            seconds = world.random.choice((1.5, 5.0, 12.0))
            world.strikes("freeze", f"{process} is frozen for {seconds} s")
            process.paused_until = world.now + seconds

    def _overlap(self) -> None:
        self._world.strikes("overlap", "another driver is started")
        self.start_driver()

    def _second(self) -> None:
        """Another start under an id that is in use, on another host."""
        world = self._world
        id = f"i{world.random.randrange(world.members)}"
        world.strikes("second", f"{id} is started on another host")
        self.start_instance(id, elsewhere=True)

    def _jump(self) -> None:
        if (process := self._any()) is not None:
            process.clock.wrong = self._world.random.choice((-_HOUR, -2_000, 5_000, _HOUR))
            self._world.strikes("jump", f"the wall clock of {process} is wrong by {process.clock.wrong} ms")

    def _outage(self) -> None:
        world = self._world
        seconds = world.random.choice((1.0, 6.0))
        world.strikes("outage", f"the storage is away for {seconds} s")
        world.outage_until = world.now + seconds

    def _damage(self) -> None:
        found = [(each, task) for each in self._world.instances if each.answers for task in sorted(each.opened)]
        if found:
            instance, task = found[self._world.random.randrange(len(found))]
            self._world.strikes("damage", f"the files of {task} on {instance} are damaged")
            self._world.enter(instance, lambda: instance.damage(task))

    def _leave(self) -> None:
        found = [each for each in self._world.instances if each.answers and each.loops]
        if found:
            instance = found[self._world.random.randrange(len(found))]
            self._world.strikes("leave", f"{instance} gets SIGTERM")
            self._world.enter(instance, instance.terminate)

    def _leave_all(self) -> None:
        self._world.strikes("leave all", "all instances get SIGTERM")
        for instance in self._world.instances:
            if instance.answers and instance.loops:
                self._world.enter(instance, instance.terminate)

    def _take_away(self) -> None:
        """An instance ends, and isn't started again for a while."""
        world = self._world
        if found := [each for each in world.instances if each.answers and each.loops]:
            instance = found[world.random.randrange(len(found))]
            self._absent[instance.id] = world.now + 15.0
            world.strikes("taken away", f"{instance} is ended for a while")
            if world.random.random() < 0.5:
                world.kill(instance, "killed")
            else:
                world.enter(instance, instance.terminate)

    def _replace(self) -> None:
        """An instance is frozen for so long that another host takes its id, and wakes up as a zombie."""
        world = self._world
        if found := [each for each in world.instances if each.answers and each.loops]:
            instance = found[world.random.randrange(len(found))]
            instance.paused_until = world.now + 16.0
            world.strikes("replaced", f"{instance} is frozen, and is started on another host later")
            start = partial(self.start_instance, instance.id, elsewhere=True)
            world.at(13.0, f"{instance.id} is started on another host", start)

    def _stop_driver(self) -> None:
        for driver in self._world.drivers:
            if driver.answers and driver.loops:
                self._world.strikes("stop", f"{driver} is stopped")
                self._world.enter(driver, driver.end)

    def _release(self) -> None:
        """A release with another number of standbys: the driver and an instance start again, at about the same time."""
        world = self._world
        self._set_standbys()
        self._stop_driver()
        if found := [each for each in world.instances if not each.dead]:
            world.kill(found[world.random.randrange(len(found))], "restarted")

    def _set_standbys(self) -> None:
        world = self._world
        standbys = world.random.choice((0, 1, 2))
        world.strikes("standbys", f"someone sets standbys to {standbys}")
        world.rules = msgspec.structs.replace(world.rules, standbys=standbys)

    # Operators

    @property
    def drained(self) -> set[str]:
        """The ids of the members that an operator drains."""
        found = map(names.drained, self._world.objects.listed(names.MEMBERS))
        return {id for id in found if id is not None}

    def _drain(self) -> None:
        """An operator wants a member to be drained, or not any more."""
        world = self._world
        id = f"i{world.random.randrange(world.members)}"
        if id in self.drained:
            world.strikes("drain", f"{id} may host tasks again")
            world.objects.lose(names.drain(id))
        else:
            world.strikes("drain", f"{id} is drained")
            world.objects.forge(names.drain(id), documents.encode(OperatorRequest(log="", by="operator")))

    def end_drains(self) -> None:
        """Someone has to stay: at most one member is drained for good."""
        for place, id in enumerate(sorted(self.drained)):
            if place > 0 or self._world.members == 1 or self._world.random.random() < 0.5:
                self._world.objects.lose(names.drain(id))

    # Forged and lost objects

    def _forge_member(self) -> None:
        """Someone writes nonsense in place of a heartbeat, or beside them."""
        world = self._world
        name = names.member(world.random.choice(("i0", "i1", "stranger")))
        world.strikes("forged member", f"{name} is overwritten")
        world.invariants.group.member_forged()
        world.objects.forge(name, self._nonsense(self._forged_member("i0", 1)))

    def _lose_member(self) -> None:
        """Someone deletes a heartbeat."""
        world = self._world
        name = names.member(f"i{world.random.randrange(world.members)}")
        world.strikes("lost member", f"{name} is lost")
        world.invariants.group.member_forged()
        world.objects.lose(name)

    def _forge_stranger(self) -> None:
        """Someone writes heartbeats of an instance that doesn't exist, and for a while they change."""
        for beat in range(self._world.random.choice((1, 3))):
            self._world.at(beat * 1.0, f"heartbeat {beat} of a stranger", partial(self._write_stranger, beat))

    def _write_stranger(self, beat: int) -> None:
        log = self._log_id()
        self._world.strikes("stranger", f"a stranger writes heartbeat {beat}")
        if log:
            member = msgspec.structs.replace(self._forged_member("stranger", beat), log=log, tasks=_ABSURD_TASKS)
            self._world.objects.forge(names.member("stranger"), documents.encode(member))

    def _forge_driver(self) -> None:
        """The heartbeat of the driver is overwritten or lost."""
        world = self._world
        world.strikes("forged driver", "the heartbeat of the driver is overwritten")
        if world.random.random() < 0.3:
            world.objects.lose(names.DRIVER_HEARTBEAT)
        else:
            world.objects.forge(names.DRIVER_HEARTBEAT, self._nonsense(self._forged_member("driver", 1)))

    def _forge_generation(self) -> None:
        """Someone takes the next number, or one far ahead."""
        world = self._world
        if (newest := world.invariants.group.newest) is not None:
            number = newest.number + world.random.choice((1, 1, 1_000_000))
            world.strikes("forged generation", f"generation {number} is forged")
            world.objects.forge(names.generation(number), self._nonsense(_nonsense_generation()))

    def _forge_believable_generation(self) -> None:
        """Someone writes the next generation, which is as it should be but for what it says."""
        world = self._world
        newest = world.invariants.group.newest
        if newest is None or names.generation(newest.number + 1) in world.objects.stored:
            return
        forged = msgspec.structs.replace(
            newest,
            number=newest.number + 1,
            id=new_id(world.random),
            app_file=world.random.choice((newest.app_file, 0, 77)),
            members=world.random.choice((newest.members, {}, {"nobody": Address(incarnation=0, flight="")})),
            tasks=world.random.choice(({}, _ABSURD_PLACES, newest.tasks | _ABSURD_PLACES)),
        )
        world.strikes("absurd generation", f"generation {forged.number} is absurd")
        world.invariants.group.generation_forged(forged)
        world.objects.forge(names.generation(forged.number), documents.encode(forged))

    def _lose_generation(self) -> None:
        """Someone deletes the newest generation, or one of those before it."""
        world = self._world
        if (newest := world.invariants.group.newest) is not None:
            number = newest.number - world.random.choice((0, 0, 1, 2))
            if world.invariants.group.may_be_lost(number):
                world.strikes("lost generation", f"generation {number} is lost")
                world.invariants.group.generation_lost(number)
                world.objects.lose(names.generation(number))

    def _log_id(self) -> str:
        return next((each.log.id for each in self._world.drivers if hasattr(each, "log")), "")

    def _forged_member(self, id: str, beat: int) -> Member:
        hosted = {"nonsense": Hosted(version=1, running=True)}
        return Member(
            log="", id=id, incarnation=1, process="x", beat=beat, address="grpc://x:1", generation=2**50, tasks=hosted
        )

    def _nonsense(self, made: Member | Generation) -> bytes:
        return self._world.random.choice((b"", b"{}", documents.encode(made), b"\xff" * 100))

    # Readers

    def query(self) -> None:
        """A reader asks for the newest version of a task."""
        world = self._world
        found = [(each, task) for each in world.instances if each.answers for task in sorted(each.opened)]
        if found:
            instance, task = found[world.random.randrange(len(found))]
            try:
                instance.newest(task)
            except VersionNotAvailable:
                world.say(f"{instance} has nothing of {task} yet")

    def end(self) -> None:
        """The run is over."""
        for process in self._world.processes:
            if not process.dead:
                process.stop()
        shutil.rmtree(self._world.folder, ignore_errors=True)
