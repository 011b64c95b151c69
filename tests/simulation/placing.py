"""A simple assignor for the simulation: a task stays where it can be read, and its standbys are on other members."""

from collections.abc import Mapping, Sequence

from holdfast.group.candidates import Assigned, Candidate, Presence, Rules, Wanted
from holdfast.group.generations import Place
from holdfast.words import TaskId, Version


def place(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
) -> Assigned:
    here = {member.id: member for member in members if member.presence is Presence.HERE}
    away = {member.id for member in members} - here.keys()
    load = dict.fromkeys(here, 0)
    places: dict[TaskId, Place] = {}
    for wanted in tasks:
        former = before[wanted.task].members if wanted.task in before else ()

        def merit(id: str, task: TaskId = wanted.task, former: tuple[str, ...] = former) -> tuple[bool, int, int, str]:
            hosted = here[id].replicas.get(task)
            readable = hosted is not None and hosted.running
            return (not readable, load[id], former.index(id) if id in former else len(former), id)

        kept = [id for id in former if id in here and (found := here[id].replicas.get(wanted.task)) and found.running]
        active = kept[0] if kept and kept[0] == former[0] else min(here, key=merit)
        load[active] += 1
        others = sorted(here.keys() - {active}, key=lambda id: (id not in former, load[id], id))[: rules.standbys]
        for id in others:
            load[id] += 1
        # What an absent member has is kept for it.
        places[wanted.task] = Place(active=active, standbys=(*others, *(id for id in former if id in away)))
    return Assigned(places=places, why={})
