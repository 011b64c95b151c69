"""What happens to the processes from outside: kills, pauses, restarts, overlapping starts, clocks, lost disks."""

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.group.generations import Generation, Place
from holdfast.group.members import Hosted, Member
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log import documents, names
from tests.simulation.driver import DriverProcess
from tests.simulation.instance import Instance
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_HOUR = 3_600_000


class Chaos:
    """The supervisor, which starts what is missing, and the events that make it missing."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._starts = 0
        self._folders: dict[str, int] = {}
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
            if hurried and not any(each.id == id for each in world.instances):
                self.start_instance(id)

    def start_driver(self) -> None:
        world = self._world
        if world.random.random() < world.weather.events / 2:
            world.strikes("lost entry", "the last entry of Spark's checkpoint is lost")
            world.checkpoint.forget_last()
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
                self._forge_member,
                self._forge_generation,
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
        found = [(each, task) for each in self._world.instances if each.answers for task in sorted(each.replicas)]
        if found:
            instance, task = found[self._world.random.randrange(len(found))]
            self._world.strikes("damage", f"the files of {task} on {instance} are damaged")
            self._world.enter(instance, lambda: instance.damage(task))

    def _leave(self) -> None:
        found = [each for each in self._world.instances if each.answers]
        if found:
            instance = found[self._world.random.randrange(len(found))]
            self._world.strikes("leave", f"{instance} is stopped")
            self._world.enter(instance, instance.leave)

    def _forge_member(self) -> None:
        """Someone writes nonsense in place of a heartbeat, or beside them."""
        world = self._world
        name = names.member(world.random.choice(("i0", "i1", "stranger")))
        world.strikes("forged member", f"{name} is overwritten")
        world.objects.forge(name, self._forged(Member))

    def _forge_generation(self) -> None:
        """Someone takes the next number, or one far ahead."""
        world = self._world
        if (newest := world.invariants.generation) is not None:
            number = newest.number + world.random.choice((1, 1, 1_000_000))
            world.strikes("forged generation", f"generation {number} is forged")
            world.objects.forge(names.generation(number), self._forged(Generation))

    def _forged(self, kind: type[Member] | type[Generation]) -> bytes:
        made: Member | Generation
        if kind is Member:
            hosted = {"nonsense": Hosted(version=1, running=True)}
            made = Member(log="", id="i0", incarnation=9, process="x", beat=1, address="", tasks=hosted)
        else:
            places = {"nonsense": Place(active="i0")}
            made = Generation(
                log="", number=1, id="x", before="", proposer="", reason="", app_file=1, members={}, tasks=places
            )
        return self._world.random.choice((b"", b"{}", documents.encode(made), b"\xff" * 100))

    # Readers

    def query(self) -> None:
        """A reader asks for the newest version of a task."""
        world = self._world
        found = [(each, task) for each in world.instances if each.answers for task in sorted(each.replicas)]
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
