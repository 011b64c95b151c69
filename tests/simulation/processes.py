"""Processes of the simulation: each has clocks, a storage and loops, and can be killed or paused between any two calls.

All processes run in one thread. A call to the storage, and every fault point of the real code, is a place where the
scheduler may run other processes before this one goes on (it was slow, or paused and wakes up as a zombie) or end it.
So a process that is paused is further down on Python's stack, and is not run again before it has returned.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.words import Millis

if TYPE_CHECKING:
    from tests.simulation.world import World

START = Millis(1_700_000_000_000)


class Crash(BaseException):
    """The end of a process. Nothing of the real code handles it; nothing that runs after it has an effect."""


class ProcessClock(Clock):
    """The clocks of one process. They go on while it is paused; the wall clock may be set by someone."""

    def __init__(self, world: "World", offset: float) -> None:
        self._world = world
        self._offset = offset
        self.wrong = 0
        """By how many milliseconds the wall clock is wrong."""

    def now(self) -> Millis:
        return Millis(START + round(self._world.now * 1000) + self.wrong)

    def monotonic(self) -> float:
        return self._world.now + self._offset

    def uptime(self) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"the simulated code sleeps for {seconds} s. Its time has to come from the scheduler.")


@dataclass
class Loop:
    """Something that a process does again and again."""

    name: str
    every: float
    step: Callable[[], None]
    due: float


class Process:
    """One process: what it does is in its loops, and `ended` is what is left to do when it was killed."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.paused_until = 0.0
        self.clock = ProcessClock(world, offset=world.random.uniform(0, 1000))
        self.storage = world.storage_of(self)
        self.loops: list[Loop] = []
        self.step_began = 0
        """The number of the step in which it runs."""

    def __str__(self) -> str:
        return self.name

    def loop(self, name: str, every: float, step: Callable[[], None]) -> None:
        self.loops.append(Loop(name, every, step, self.world.now + self.world.random.uniform(0, every)))

    def due_now(self, name: str) -> None:
        """Has a loop run as soon as the scheduler can."""
        for loop in self.loops:
            if loop.name == name:
                loop.due = self.world.now

    def start(self) -> None:
        """The first step."""

    def ended(self) -> None:
        """The process is dead: only what is on its disk is left."""

    def stop(self) -> None:
        """Ends without a crash, from within one of its steps."""
        self.dead = True
        self.loops.clear()
        self.ended()

    @property
    def answers(self) -> bool:
        """Whether a call from another process gets an answer."""
        return not self.dead and self.world.now >= self.paused_until and self not in self.world.stack
