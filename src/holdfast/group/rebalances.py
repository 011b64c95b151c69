"""Rebalances: a generation that moves active tasks, or whose active replicas have to be restored, until they are ready.

Which generation starts one is a comparison of two generations, without I/O.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.group.generations import Generation


class RebalancePhase(StrEnum):
    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, kw_only=True)
class Move:
    """An active task that has another place. `source` is None for a task that had none."""

    task: str
    source: str | None
    target: str


@dataclass(frozen=True, kw_only=True)
class RebalanceEvent:
    """A rebalance was started or completed. `seconds` is 0 for one that has just started."""

    phase: RebalancePhase
    generation: int
    reason: str
    moves: tuple[Move, ...]
    seconds: float = 0.0

    def __str__(self) -> str:
        took = f" after {self.seconds:.1f} s" if self.phase is RebalancePhase.COMPLETED else ""
        return f"rebalance to generation {self.generation} {self.phase}{took}: {self.reason}; {len(self.moves)} moves"


def moves(before: Generation | None, after: Generation) -> tuple[Move, ...]:
    """The active tasks that are on another member than before."""
    former = {} if before is None else before.tasks
    return tuple(
        Move(task=task, source=former[task].active if task in former else None, target=place.active)
        for task, place in sorted(after.tasks.items())
        if task not in former or former[task].active != place.active
    )


def rebalances(before: Generation | None, after: Generation) -> bool:
    """Whether active tasks move or restore: another member has them, or it was started again, or has other stores."""
    if before is None or before.app_file != after.app_file:
        return True
    actives = {place.active for place in after.tasks.values()}
    started = any(
        id not in before.members or before.members[id].incarnation != after.members[id].incarnation
        for id in actives & after.members.keys()
    )
    return started or bool(moves(before, after))
