"""Assignors as a user may write them, good ones and bad ones."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.assignors import Assigned, Candidate, Place, Rules, TaskId, Wanted, assign
from holdfast.words import Version


def all_on_one(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
) -> Assigned:
    smallest = min(member.id for member in members)
    return Assigned(
        places={each.task: Place(active=smallest) for each in tasks}, why={each.task: "the smallest" for each in tasks}
    )


HELD = threading.Event()
CALLS: list[str] = []


def hangs(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
) -> Assigned:
    CALLS.append("hangs")
    assert HELD.wait(60)
    return all_on_one(tasks, members, before, newest, rules)


def raises(*given: Any) -> Assigned:
    raise ValueError("no idea")


def exits(*given: Any) -> Assigned:
    raise SystemExit(3)


def returns_nothing(*given: Any) -> None:
    return None


def forgets_a_task(*given: Any) -> Assigned:
    found = assign(*given)
    return replace(found, places={task: place for task, place in found.places.items() if task != TaskId(0, 1)})


def invents_a_task(*given: Any) -> Assigned:
    found = assign(*given)
    return replace(found, places={**found.places, TaskId(9, 9): Place(active="a")})


def invents_a_member(*given: Any) -> Assigned:
    found = assign(*given)
    return replace(found, places={**found.places, TaskId(0, 0): Place(active="zoe")})


def names_one_twice(*given: Any) -> Assigned:
    found = assign(*given)
    return replace(found, places={**found.places, TaskId(0, 0): Place(active="a", warming=("a",))})


def returns_texts(*given: Any) -> Assigned:
    found = assign(*given)
    return replace(found, places=dict.fromkeys(found.places, "a"))  # type: ignore[arg-type]


def gives_numbers_as_reasons(*given: Any) -> Assigned:
    return replace(assign(*given), why={TaskId(0, 0): 3})  # type: ignore[dict-item]


NOT_CALLABLE = 5
