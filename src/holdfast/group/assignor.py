"""The assignor: where the replicas of every task should be. A pure function of what is known about the members.

    draft.py      everyone keeps what it had
    roles.py      each task gets an active replica; missing standbys are added, surplus ones dropped; roles are balanced
    moving.py     a few replicas are warmed up elsewhere, so that tasks can move there
    explaining.py one sentence per task

A move takes three generations at least: the replica is warmed up next to the others, it takes over when it has caught
up, and the old one is dropped after that. docs/operations.md has the rules, decision 0034 the reasons.
"""

from collections.abc import Mapping, Sequence

from holdfast.group.candidates import Assigned, Candidate, Wanted
from holdfast.group.draft import Draft
from holdfast.group.explaining import explain
from holdfast.group.generations import Place, Rules
from holdfast.group.moving import start_moves
from holdfast.group.picking import Picker
from holdfast.group.roles import choose_actives, fill, level_roles, shed
from holdfast.words import TaskId, Version


def assign(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
) -> Assigned:
    """The next places of all tasks. `before` has their places in the generation before.

    A task has no place in the result only if no member could host it: none is here, and none had it before.

    >>> a, b = Candidate(id="a"), Candidate(id="b")
    >>> tasks = [Wanted(task=TaskId(0, 0)), Wanted(task=TaskId(0, 1))]
    >>> found = assign(tasks, [a, b], {}, Version(0), Rules(standbys=1))
    >>> for task in sorted(found.places): print(task, *found.places[task].members, sep=" ")
    0_0 a b
    0_1 b a
    >>> found.why[TaskId(0, 0)]
    'active on a: the task is new, and this member is the lightest (0.0); standby on b: nothing restored yet'
    """
    draft = Draft(tasks, members, before, newest, rules)
    if draft.here:
        picker = Picker(draft)
        choose_actives(draft, picker)
        fill(draft, picker)
        shed(draft)
        level_roles(draft)
        start_moves(draft)
    placed = {spot.task: spot for spot in draft.spots if spot.active is not None}
    return Assigned(
        places={
            task: Place(active=str(spot.active), standbys=tuple(spot.standbys), warming=tuple(spot.warming))
            for task, spot in placed.items()
        },
        why={task: explain(draft, spot) for task, spot in placed.items()},
    )
