"""Weights: what a replica costs the member that hosts it, from the measured size and load of its task.

    hold = 1/2 + size / mean size      for every replica of the task
    lead = 1/2 + load / mean load      for the active one, in addition, since it is asked first

The means are over all tasks, so size and load count the same however they are measured. The halves are a floor: a task
that is empty and never read still counts, or all such tasks would end up on one member.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.group.candidates import Presence
from holdfast.group.members import Hosted
from holdfast.words import TaskId

FLOOR = 0.5
_MOST = 1e15
"""Larger measurements are errors: a heartbeat may hold any number."""


@dataclass(frozen=True, slots=True)
class Weight:
    """What one task costs."""

    hold: float = FLOOR
    lead: float = FLOOR
    bytes: float = 0.0
    load: float = 0.0


def weights(
    reports: Mapping[TaskId, Mapping[str, Hosted]], presence: Mapping[str, Presence]
) -> Mapping[TaskId, Weight]:
    """The weight of every task, from what the members say about their replicas of it.

    >>> a, b = TaskId(0, 0), TaskId(0, 1)
    >>> hosted = Hosted(version=1, running=True, bytes=300, load=0.0)
    >>> found = weights({a: {"x": hosted}, b: {}}, {"x": Presence.HERE})
    >>> (found[a].hold, found[a].lead), (found[b].hold, found[b].lead)
    ((2.5, 0.5), (0.5, 0.5))
    """
    sizes = {task: _size(by_member) for task, by_member in reports.items()}
    loads = {task: _load(by_member, presence) for task, by_member in reports.items()}
    size, load = _mean(sizes), _mean(loads)
    return {
        task: Weight(
            FLOOR + (sizes[task] / size if size else 0.0),
            FLOOR + (loads[task] / load if load else 0.0),
            sizes[task],
            loads[task],
        )
        for task in reports
    }


def _size(by_member: Mapping[str, Hosted]) -> float:
    """A replica that is being restored has only a part of the bytes."""
    return max((_sane(hosted.bytes) for hosted in by_member.values()), default=0.0)


def _load(by_member: Mapping[str, Hosted], presence: Mapping[str, Presence]) -> float:
    """Reads of all replicas together: they go elsewhere with the active role. Those of a silent member are old news."""
    answering = [_sane(hosted.load) for id, hosted in by_member.items() if presence[id] is not Presence.AWAY]
    silent = [_sane(hosted.load) for id, hosted in by_member.items() if presence[id] is Presence.AWAY]
    return math.fsum(answering) or max(silent, default=0.0)


def _sane(measured: float) -> float:
    return min(max(float(measured), 0.0), _MOST) if math.isfinite(measured) else 0.0


def _mean(values: Mapping[TaskId, float]) -> float:
    return math.fsum(values.values()) / len(values) if values else 0.0
