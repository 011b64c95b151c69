"""A user's own assignor: imported by its place, and checked each time it answers.

It may raise, hang, or name members that don't exist. Then the user is alerted and the built-in assignor decides, since
an app must go on without an answer; nothing here ends a coordinator, or keeps it from its heartbeats.
"""

import queue
import threading
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


class _TooSlow(HoldfastError):
    """A call has not ended in its time."""

    category = ErrorCategory.INVALID

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it doesn't answer within {seconds:.1f} s")


class _Bounded:
    """Calls a function on threads of its own. While a call hangs, no other one is made."""

    def __init__(self, call: Callable[..., Any], seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._last: threading.Thread | None = None

    def __call__(self, *given: object) -> Any:
        """The answer, or what the function raised. Raises _TooSlow when its time has passed."""
        if self._last is not None and self._last.is_alive():
            raise _TooSlow(self._seconds)
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((self._call(*given), None))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                answers.put((None, error))

        self._last = threading.Thread(target=run, name="holdfast-assignor", daemon=True)
        self._last.start()
        try:
            answer, error = answers.get(timeout=self._seconds)
        except queue.Empty:
            raise _TooSlow(self._seconds) from None
        if error is not None:
            raise error
        return answer


def load_assign(place: str | None, alert: Callable[[HoldfastError], None], seconds: float = 2.0) -> Assign:
    """The assignor that the setting `group.assignor` names. Raises TopologyError if it can't be imported.

    A user's own has so many seconds for an answer.

    >>> load_assign(None, print) is assign
    True
    """
    if place is None:
        return assign
    own = _Bounded(imported(place, "group.assignor"), seconds)

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
        except _TooSlow as error:
            faults = [str(error)]
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
