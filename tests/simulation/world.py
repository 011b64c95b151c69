"""The world of one seed: time, the storage, all processes, and a scheduler that picks what happens next.

Everything runs in one thread and is chosen by one random generator, so a seed is a story that can be told again. After
every step the invariants are checked.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest import mock

import xxhash

from holdfast import faults
from holdfast.chance import Random
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group import generations
from holdfast.group.generations import Generation, Rules
from holdfast.group.members import Member
from holdfast.instance.messages import InstanceUnavailable
from holdfast.log.objects import Put
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version
from tests.log.making import app_spec
from tests.simulation import disk
from tests.simulation.assigning import Assigning
from tests.simulation.chaos import Chaos
from tests.simulation.driver import Checkpoint, DriverProcess
from tests.simulation.instance import Instance
from tests.simulation.invariants import Invariants
from tests.simulation.model import STORES, Model, records_of
from tests.simulation.processes import Crash, Loop, Process
from tests.simulation.storage import Fault, Objects, ProcessStorage
from tests.simulation.weather import CALM, Weather

T = TypeVar("T")

_DEEPEST = 3
"""How many processes may be paused inside each other's calls."""
_POINTS = {"commit.before": 20, "apply.middle": 20, "apply.after": 20}
"""Fault points with more than the usual rate: a zombie wakes up there, or a kill leaves half a version."""
_LONG = 200
"""Steps in which another driver can make versions that are cleaned again."""
_RECORDS = 400
_BUG = (ErrorCategory.BUG,)


@dataclass(frozen=True, order=True)
class Later:
    """Something that happens at a time: a notice that arrives, a put that was slow."""

    at: float
    number: int
    what: str
    call: Callable[[], None]


class World:
    def __init__(self, seed: int, folder: Path, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self._tell = tell
        self.folder = folder
        self.random = Random(seed)
        self.now = 0.0
        self.step_number = 0
        self.story: deque[str] = deque(maxlen=60)
        self.counts: Counter[str] = Counter()
        self._hash = xxhash.xxh3_128()
        self.stack: list[Process] = []
        self.processes: list[Process] = []
        self.later: list[Later] = []
        self._numbers = 0
        self.outage_until = 0.0
        self.arriving = False
        """Whether a put arrives whose caller has given it up."""
        self.quiet = False
        """Whether drivers make no more batches."""
        self.members = self.random.choice((1, 2, 2, 3, 3, 4))
        self.rules = Rules(
            standbys=self.random.choice((0, 1, 1, 2)),
            spread_by=self.random.choice(((), (), ("zone",), ("zone", "rack"))),
            acceptable_lag=self.random.choice((0, 1, 2)),
            warmups=self.random.choice((1, 2)),
        )
        """The settings with which the next driver starts."""
        self.assigning = Assigning(self)
        stores = (StoreSpec(name=name, key=Schema.of(k="binary"), codec="rows/1", engine=disk.NAME) for name in STORES)
        self.model = Model(records_of(self.random, _RECORDS, self.random.choice((3, 8))), self.random.randint(1, 2))
        self.spec = app_spec(*stores, partitions=self.model.partitions)
        self.checkpoint = Checkpoint()
        self.objects = Objects()
        self.invariants = Invariants(self)
        self.objects.created, self.objects.deleted = self.invariants.created, self.invariants.deleted
        self.weather = Weather.of(self.random)
        self.sizes = {task: self.random.choice((0, 1, 100)) << 20 for task in self.model.tasks}
        self.loads = {task: self.random.choice((0.0, 1.0, 50.0)) for task in self.model.tasks}
        self.chaos = Chaos(self)
        self.chaos_loops: list[Loop] = []
        for name, every, step in self.chaos.loops:
            self.chaos_loops.append(Loop(name, every, step, self.random.uniform(0, every)))

    # Telling

    def say(self, text: str) -> None:
        line = f"{self.now:8.3f} {'  ' * len(self.stack)}{text}"
        self.story.append(line)
        if self._tell is not None:
            self._tell(line)
        self._hash.update(text.encode())

    @property
    def fingerprint(self) -> str:
        """A hash of everything that has happened."""
        return self._hash.hexdigest()

    def strikes(self, fault: str, text: str) -> None:
        self.counts[fault] += 1
        self.say(f"! {text}")

    # Processes

    def storage_of(self, process: Process) -> ProcessStorage:
        return ProcessStorage(self.objects, process)

    @property
    def drivers(self) -> list[DriverProcess]:
        return [each for each in self.processes if isinstance(each, DriverProcess) and not each.dead]

    @property
    def instances(self) -> list[Instance]:
        return [each for each in self.processes if isinstance(each, Instance) and not each.dead]

    def at_address(self, address: str) -> Instance | None:
        found = (each for each in self.processes if isinstance(each, Instance) and each.address == address)
        return next(found, None)

    def launch(self, process: Process) -> None:
        """Starts a process. If its start fails, the supervisor starts it again."""
        self.processes.append(process)
        self.say(f"start {process}")
        self.enter(process, process.start)
        if not process.loops:
            self.kill(process, "its start failed")

    def kill(self, process: Process, why: str) -> None:
        if not process.dead:
            self.say(f"{process} is dead: {why}")
            process.dead = True
            process.loops.clear()
            process.ended()

    def enter(self, process: Process, step: Callable[[], None]) -> None:
        """Runs a step of a process. Errors that pass are those that a loop in production logs."""
        try:
            self.ask(process, step)
        except HoldfastError as error:
            if error.category in _BUG:
                raise
            self.say(f"{process}: {type(error).__name__}")

    def ask(self, process: Process, call: Callable[[], T]) -> T:
        """Runs a call in a process. One that dies meanwhile doesn't answer."""
        self.stack.append(process)
        began, process.step_began = process.step_began, self.step_number
        try:
            answer = call()
        except Crash:
            if not process.dead:
                raise
        else:
            if not process.dead:
                return answer
        finally:
            self.stack.pop()
            process.step_began = began
        raise InstanceUnavailable(f"{process} doesn't answer any more. Ask another one.")

    # Interfering

    def before_call(self, process: Process, call: str, name: str) -> Fault:
        """A call to the storage: it may be slow, fail, or be the last one of its process."""
        if process.dead:
            raise Crash
        self._hash.update(f"{call} {name}".encode())
        weather, weight = self.weather, self.weather.weight(call, name)
        if isinstance(process, Instance):
            self.invariants.check_instance(process)
        if weather is CALM:
            return Fault.NONE
        self._interfere(process, f"{call} {name}", weight)
        if self.outage_until > self.now:
            return Fault.BEFORE
        chance = self.random.random()
        if chance < weather.error:
            self.strikes("error", f"{process}: {call} {name} fails")
            return Fault.BEFORE
        if call in ("create", "replace") and chance < weather.error + weather.uncertain * weight:
            fault = self.random.choice((Fault.AFTER, Fault.REPEATED, Fault.LATE))
            self.strikes("uncertain", f"{process}: {call} {name} {fault.value}")
            return fault
        return Fault.NONE

    def after_call(self, process: Process) -> None:
        if self.weather is not CALM:
            self._interfere(process, "after a put", 3)

    def _interfere(self, process: Process, where: str, weight: int) -> None:
        weather = self.weather
        chance = self.random.random()
        if chance < weather.crash * weight:
            self.strikes("crash", f"{process} crashes at {where}")
            self.kill(process, "a crash")
        elif chance < (weather.crash + weather.pause) * weight and len(self.stack) < _DEEPEST:
            # A driver that sleeps right before its commit is the zombie that others have to be safe from.
            steps = self.random.choice((10, _LONG) if where == "commit.before" else (2, 10, 40))
            self.strikes("pause", f"{process} is slow at {where}: {steps} steps")
            if steps == _LONG:
                self.chaos.start_driver()
            for _ in range(steps):
                self.step()
        if process.dead:
            raise Crash

    def _at_point(self, point: str) -> None:
        """A fault point of the real code is a place to interfere too."""
        if self.stack and self.weather is not CALM:
            if self.stack[-1].dead:
                raise Crash
            self._interfere(self.stack[-1], point, _POINTS.get(point, 2))

    # Scheduling

    def at(self, delay: float, what: str, call: Callable[[], None]) -> None:
        self._numbers += 1
        self.later.append(Later(self.now + delay, self._numbers, what, call))

    def arrives_later(self, what: str, write: Callable[[], Put]) -> None:
        def arrive() -> None:
            self.arriving = True
            write()
            self.arriving = False

        self.at(self.random.choice((0.5, 5.0)), f"{what} arrives", arrive)

    def notify(self, version: Version) -> None:
        for instance in self.instances:
            self._send(instance, f"version {version}", partial(instance.committed, version))

    def step(self) -> None:
        """Something that is due happens, and the invariants are checked."""
        self.step_number += 1
        self.now += self.random.uniform(0, 0.05)
        waiting: list[tuple[float, Process | None, Loop | Later]] = [
            (max(loop.due, process.paused_until), process, loop)
            for process in self.processes
            if process not in self.stack
            for loop in process.loops
        ]
        waiting += [(loop.due, None, loop) for loop in self.chaos_loops]
        waiting += [(late.at, None, late) for late in self.later]
        self.now = max(self.now, min(at for at, *_ in waiting))
        due = [each for each in waiting if each[0] <= self.now]
        _, process, what = due[self.random.randrange(len(due))]
        if isinstance(what, Later):
            self.say(what.what)
            self.later.remove(what)
            what.call()
        else:
            self._loop(process, what)
        self.invariants.check()

    def _loop(self, process: Process | None, loop: Loop) -> None:
        loop.due = self.now + loop.every * self.random.uniform(0.8, 1.2)
        self.say(loop.name if process is None else f"{process} {loop.name}")
        if process is None:
            loop.step()
        else:
            self.enter(process, loop.step)
            self.invariants.group.check_proposed(process)

    # The group

    def is_running(self, member: Member) -> bool:
        """Whether the process that wrote a heartbeat answers, as others find out over the network."""
        found = self.at_address(member.address)
        return found is not None and found.answers and (found.id, found.process) == (member.id, member.process)

    def tell(self, generation: Generation, but: Process | None = None) -> None:
        """A coordinator tells members of a generation."""
        for id, address in sorted(generation.members.items()):
            instance = self.at_address(address.flight)
            if instance is not None and instance is not but and instance.id == id:
                self._send(instance, f"generation {generation.number}", partial(instance.hear, generation.number))

    def _send(self, instance: Instance, what: str, hear: Callable[[], None]) -> None:
        """A notice, which may be lost or late."""

        def arrive() -> None:
            if instance.answers and instance.loops:
                self.enter(instance, hear)

        if self.random.random() >= self.weather.lost_notices:
            self.at(self.random.uniform(0, 1), f"notice of {what} for {instance}", arrive)

    def delivered(self, driver: DriverProcess, version: Version, rows: dict[bytes, int]) -> None:
        self.invariants.delivered(driver, version, rows)

    @contextmanager
    def running(self) -> Iterator[None]:
        few = mock.patch.object(generations, "KEPT", 4)
        with few, faults.active({point: self._handler(point) for point in faults.POINTS}):
            yield

    def _handler(self, point: str) -> Callable[[], None]:
        return lambda: self._at_point(point)
