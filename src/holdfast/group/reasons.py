"""Why a generation was made, as one line for people: what has happened to members, and what that changes."""

from collections.abc import Collection, Iterable, Mapping

from holdfast.group.candidates import Candidate, Presence
from holdfast.group.generations import Generation, Place


def reason_of(
    before: Generation | None,
    after: Generation,
    candidates: Iterable[Candidate],
    left: Collection[str] = (),
) -> str:
    """The reason for `after`. `left` are the members that say they have ended.

    >>> from holdfast.group.generations import Address
    >>> a, b = Address(incarnation=1, flight="grpc://a:1"), Address(incarnation=1, flight="grpc://b:1")
    >>> def made(number, members, **tasks):
    ...     places = {"0_0": Place(active=tasks["active"], standbys=tasks.get("standbys", ()))}
    ...     return Generation(log="l", number=number, id="i", before="", proposer="driver", reason="", app_file=1,
    ...                       members=members, tasks=places)
    >>> first, second = made(1, {"a": a}, active="a"), made(2, {"a": a, "b": b}, active="a", standbys=("b",))
    >>> third = made(3, {"a": a, "b": b}, active="b", standbys=("a",))
    >>> reason_of(None, first, [])
    'the first assignment, to a'
    >>> reason_of(first, second, [])
    'b joined: 1 replica is added'
    >>> reason_of(second, third, [Candidate(id="a", presence=Presence.AWAY)])
    "a doesn't answer: 1 task has another active replica"
    """
    if before is None:
        return f"the first assignment, to {', '.join(sorted(after.members))}"
    causes = [*_happened(before, after, left), *_absent(candidates, left)]
    effects = [*_moved(before.tasks, after.tasks)]
    if not causes:
        return ", ".join(effects) or "members have other addresses or tags"
    return ", ".join(causes) + (f": {', '.join(effects)}" if effects else "; no task moves")


def _happened(before: Generation, after: Generation, left: Collection[str]) -> Iterable[str]:
    known, now = before.members, after.members
    happened = {
        "joined": now.keys() - known,
        "left": {id for id in known if id not in now and id in left},
        "is gone": {id for id in known if id not in now and id not in left},
        "started again": {id for id in now if id in known and now[id].incarnation != known[id].incarnation},
    }
    for verb, ids in happened.items():
        if ids:
            yield f"{', '.join(sorted(ids))} {'are gone' if verb == 'is gone' and len(ids) > 1 else verb}"
    if after.app_file != before.app_file:
        yield f"the app changed (app file {after.app_file})"
    if after.rules != before.rules:
        yield "the settings of the group changed"


def _absent(candidates: Iterable[Candidate], left: Collection[str]) -> Iterable[str]:
    for candidate in candidates:
        if candidate.presence is Presence.AWAY:
            yield f"{candidate.id} left" if candidate.id in left else f"{candidate.id} doesn't answer"
        elif candidate.presence is Presence.LEAVING:
            yield f"{candidate.id} is drained"
        elif candidate.presence is Presence.STOPPING:
            yield f"{candidate.id} leaves"


def _moved(before: Mapping[str, Place], after: Mapping[str, Place]) -> Iterable[str]:
    both = before.keys() & after.keys()
    hosted, hosts = _replicas(before), _replicas(after)
    counts = (
        (len(after.keys() - before), "task is new", "tasks are new"),
        (sum(before[task].active != after[task].active for task in both), *_ACTIVE),
        (len(hosts - hosted), "replica is added", "replicas are added"),
        (len(hosted - hosts), "replica is dropped", "replicas are dropped"),
    )
    for number, one, several in counts:
        if number:
            yield f"{number} {one if number == 1 else several}"


_ACTIVE = "task has another active replica", "tasks have another active replica"


def _replicas(places: Mapping[str, Place]) -> set[tuple[str, str]]:
    return {(task, id) for task, place in places.items() for id in place.members}
