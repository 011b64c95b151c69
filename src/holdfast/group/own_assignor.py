"""A user's own assignor: imported by its place, and checked each time it answers.

It may raise, or name members that don't exist. Then the user is alerted and the built-in assignor decides, since an app
must go on without an answer; nothing here ends a coordinator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import USER_ERRORS, ErrorCategory, HoldfastError, cut
from holdfast.group.assignor import assign
from holdfast.group.candidates import Assign, Assigned, Candidate, Presence, Wanted
from holdfast.group.generations import Place, Rules
from holdfast.stores.places import imported
from holdfast.words import TaskId, Version

_LISTED = 5


class BadAssignment(HoldfastError):
    """A user's own assignor raised, or its answer can't be used."""

    category = ErrorCategory.INVALID

    def __init__(self, place: str, faults: Sequence[str]) -> None:
        more = f" (and {len(faults) - _LISTED} more)" if len(faults) > _LISTED else ""
        super().__init__(
            f"group.assignor = {place!r}: {'; '.join(faults[:_LISTED])}{more}. The built-in assignor was used instead. "
            "Fix the function, or remove the setting."
        )


def load_assign(place: str | None, alert: Callable[[HoldfastError], None]) -> Assign:
    """The assignor that the setting `group.assignor` names. Raises TopologyError if it can't be imported.

    >>> load_assign(None, print) is assign
    True
    """
    if place is None:
        return assign
    own: Callable[..., Any] = imported(place, "group.assignor")

    def checked(
        tasks: Sequence[Wanted],
        members: Sequence[Candidate],
        before: Mapping[TaskId, Place],
        newest: Version,
        rules: Rules,
    ) -> Assigned:
        try:
            answer = own(tasks, members, before, newest, rules)
            faults = _faults(answer, tasks, members)
        except USER_ERRORS as error:
            faults = [f"it raised {type(error).__name__}: {cut(str(error), 300)}"]
        if not faults:
            accepted: Assigned = answer
            return accepted
        alert(BadAssignment(place, faults))
        return assign(tasks, members, before, newest, rules)

    return checked


def _faults(answer: object, tasks: Sequence[Wanted], members: Sequence[Candidate]) -> list[str]:
    """What is wrong with an answer."""
    if not isinstance(answer, Assigned):
        return [f"it returned a {type(answer).__name__} and not an Assigned"]
    known = {member.id for member in members}
    wanted = {each.task for each in tasks}
    faults = [f"task {task} is not one of the app's" for task in answer.places if task not in wanted]
    if any(member.presence is Presence.HERE for member in members):
        faults += [f"task {task} has no place" for task in sorted(wanted - answer.places.keys())]
    places: Mapping[TaskId, object] = answer.places
    for task, place in places.items():
        if not isinstance(place, Place):
            faults.append(f"task {task} has a {type(place).__name__} and not a Place")
            continue
        ids = place.members
        faults += [f"task {task} is on {id!r}, which is not a member" for id in sorted({*ids} - known, key=repr)]
        if len({*ids}) < len(ids):
            faults.append(f"task {task} is twice on one member: {', '.join(map(str, ids))}")
    faults += [f"the reason for task {task} is not a text" for task, why in answer.why.items() if type(why) is not str]
    return faults
