"""Weights: what a replica costs the member that hosts it, from the measured size and load of its task.

    hold = 1/2 + size / mean size      for every replica of the task
    lead = 1/2 + load / mean load      for the active one, in addition, since it is asked first

The means are over all tasks, so size and load count the same however they are measured. The halves are a floor: a task
that is empty and never read still counts, or all such tasks would end up on one member. A task whose load or size isn't
known yet, as after a start or while it is restored, counts as one with the mean: as none it would attract others.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.group.candidates import Presence
from holdfast.group.members import Hosted
from holdfast.words import NOTHING, TaskId

FLOOR = 0.5
_MOST = 1e15
"""Larger measurements are errors: a heartbeat may hold any number."""


@dataclass(frozen=True, slots=True)
class Weight:
    """What one task costs."""

    hold: float = FLOOR
    lead: float = FLOOR
    bytes: float = 0.0
    """Its size, as far as members say."""
    load: float = 0.0


def weights(
    reports: Mapping[TaskId, Mapping[str, Hosted]], presence: Mapping[str, Presence]
) -> Mapping[TaskId, Weight]:
    """The weight of every task, from what the members say about their replicas of it.

    >>> a, b = TaskId(0, 0), TaskId(0, 1)
    >>> hosted = Hosted(version=1, running=True, bytes=300, load=0.0)
    >>> small = Hosted(version=1, running=True, bytes=100, load=0.0)
    >>> found = weights({a: {"x": hosted}, b: {"x": small}}, {"x": Presence.HERE})
    >>> (found[a].hold, found[a].lead), (found[b].hold, found[b].lead)
    ((2.0, 0.5), (1.0, 0.5))
    """
    sizes = {task: _size(by_member) for task, by_member in reports.items()}
    estimated = _estimated(sizes, reports)
    loads = {task: _load(by_member, presence) for task, by_member in reports.items()}
    size, load = _mean(estimated.values()), _mean(known for known in loads.values() if known is not None)
    return {
        task: Weight(
            FLOOR + (estimated[task] / size if size else 0.0),
            FLOOR + _ratio(loads[task], load),
            sizes[task],
            loads[task] or 0.0,
        )
        for task in reports
    }


def _size(by_member: Mapping[str, Hosted]) -> float:
    """A replica that is being restored has only a part of the bytes, and knows the size of the snapshot it loads."""
    return max((_sane(max(hosted.bytes, hosted.loading)) for hosted in by_member.values()), default=0.0)


def _estimated(sizes: Mapping[TaskId, float], reports: Mapping[TaskId, Mapping[str, Hosted]]) -> Mapping[TaskId, float]:
    """The sizes, with the mean of those that are known for tasks of which nobody has anything yet."""
    known = {
        task
        for task, by_member in reports.items()
        if sizes[task] or any(each.running or each.version != NOTHING for each in by_member.values())
    }
    mean = _mean(sizes[task] for task in known)
    return {task: size if task in known else mean for task, size in sizes.items()}


def _load(by_member: Mapping[str, Hosted], presence: Mapping[str, Presence]) -> float | None:
    """Reads of all replicas together: they go elsewhere with the active role.

    What is said by a replica that doesn't answer, on a silent member or while it catches up, is old. It counts only if
    no other one is read: otherwise a member that returns would seem to have lost its load, and would be given tasks.

    None if a replica that is read hasn't been measured for long enough, or nobody has measured anything.
    """
    answering = {id for id, hosted in by_member.items() if presence[id] is not Presence.AWAY and hosted.running}
    if any(by_member[id].load is None for id in answering):
        return None
    read = math.fsum(_sane(by_member[id].load or 0.0) for id in answering)
    old = [_sane(hosted.load) for id, hosted in by_member.items() if id not in answering and hosted.load is not None]
    if by_member and not answering and not old:
        return None
    return read or max(old, default=0.0)


def _ratio(load: float | None, mean: float) -> float:
    """A load as a part of the mean; what isn't known is the mean, and nothing where no task is read."""
    if not mean:
        return 0.0
    return 1.0 if load is None else load / mean


def _sane(measured: float) -> float:
    return min(max(float(measured), 0.0), _MOST) if math.isfinite(measured) else 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else 0.0
