"""Runs seeds: some trouble, then calm, in which the group has to settle."""

import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.instance.config import Phase
from holdfast.words import TaskId, Version
from tests.simulation.instance import Instance
from tests.simulation.model import Violation
from tests.simulation.weather import CALM
from tests.simulation.world import World

_MEMORY = Path("/dev/shm")
_SETTLES_WITHIN = 60.0
"""Simulated seconds. A session has 4, and a start of a process that failed is repeated within a few."""


class SeedFailed(AssertionError):
    """A seed that breaks an invariant, with its story."""

    def __init__(self, world: World, cause: BaseException) -> None:
        steps = "\n".join(world.story)
        super().__init__(
            f"seed {world.seed}: {cause}\n{steps}\n{type(cause).__name__}: {cause}\n"
            f"Replay it with: python -m tests.simulation --seed {world.seed}"
        )
        self.cause = cause
        self.seed = world.seed


@dataclass(frozen=True)
class Outcome:
    """What one seed did."""

    seed: int
    fingerprint: str
    steps: int
    versions: int
    faults: Counter[str]


def run(seed: int, tell: Callable[[str], None] | None = None) -> Outcome:
    """Runs a seed; raises SeedFailed if it breaks an invariant. `tell` gets every line of its story."""
    memory = str(_MEMORY) if _MEMORY.is_dir() else None
    world = World(seed, Path(tempfile.mkdtemp(prefix="simulation-", dir=memory)), tell)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with world.running():
            for _ in range(world.random.choice((30, 50, 120))):
                world.step()
            settle(world)
    except Exception as error:
        raise SeedFailed(world, error) from error
    finally:
        world.chaos.end()
        logging.disable(before)
    return Outcome(seed, world.fingerprint, world.step_number, world.model.newest, world.counts)


def settle(world: World) -> None:
    """No more faults: the group settles, makes versions, and every replica has them."""
    world.say("calm")
    world.weather, world.outage_until = CALM, 0.0
    world.chaos.end_drains()
    for process in world.processes:
        process.paused_until = 0.0
    goal, until = world.model.newest + 2, world.now + _SETTLES_WITHIN
    while world.now < until:
        if world.model.newest >= goal and world.invariants.delivered_to == world.model.newest:
            world.quiet = True
        if world.quiet and world.step_number % 5 == 0 and not unsettled(world):
            return
        world.step()
    raise Violation(f"the group hasn't settled: {unsettled(world) or 'it has to make more versions'}")


def unsettled(world: World) -> str:
    """What is still missing; empty if nothing is."""
    newest, generation = world.model.newest, world.invariants.group.newest
    if generation is None:
        return "there is no generation"
    if world.invariants.delivered_to != newest:
        return f"the sink got version {world.invariants.delivered_to}, and {newest} is the newest"
    ids = [each.id for each in world.instances]
    if len(ids) != len(set(ids)) or len(ids) != world.members:
        return f"the instances are {ids}"
    if len(world.drivers) != 1:
        return f"there are {len(world.drivers)} drivers"
    by_id = {each.id: each for each in world.instances}
    drained = world.chaos.drained
    for task in world.model.tasks:
        if (place := generation.tasks.get(str(task))) is None:
            return f"{task} has no place"
        wanted = min(world.drivers[0].rules.standbys, world.members - len(drained) - 1)
        if len(place.standbys) != wanted or place.warming or drained & {*place.members}:
            return (
                f"{task} is on {place.active}, has standbys {place.standbys} and warms up {place.warming}; {wanted} "
                f"are possible, and drained are {sorted(drained)}"
            )
        for id in place.members:
            if (missing := _missing(by_id.get(id), task, newest)) is not None:
                return f"{task} on {id} {missing}"
    return ""


def _missing(instance: Instance | None, task: TaskId, newest: Version) -> str | None:
    if instance is None or task not in instance.opened:
        return "isn't there"
    if instance.progress[task].phase is not Phase.RUNNING:
        return f"is {instance.progress[task].phase}: {instance.progress[task].error}"
    found = instance.opened[task].published.version
    return None if found == newest else f"is at {found}, and the newest is {newest}"
