"""A user's own assignor: used if its answer can be, and otherwise replaced by the built-in one."""

import pytest

from holdfast.errors import HoldfastError, TopologyError
from holdfast.group.assignor import assign
from holdfast.group.candidates import Candidate
from holdfast.group.generations import Place, Rules
from holdfast.group.own_assignor import load_assign
from holdfast.words import TaskId, Version
from tests.group.model import tasks_of

MODULE = "tests.group.own_assignors"
BEFORE: dict[TaskId, Place] = {}
GIVEN = (tasks_of(2), [Candidate(id="a"), Candidate(id="b")], BEFORE, Version(0), Rules())


def test_an_own_assignor_decides() -> None:
    alerts: list[HoldfastError] = []
    found = load_assign(f"{MODULE}:all_on_one", alerts.append)(*GIVEN)
    assert {place.active for place in found.places.values()} == {"a"}
    assert set(found.why.values()) == {"the smallest"}
    assert alerts == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "it raised ValueError: no idea"),
        ("exits", "it raised SystemExit: 3"),
        ("returns_nothing", "it returned a NoneType and not an Assigned"),
        ("forgets_a_task", "task 0_1 has no place"),
        ("invents_a_task", "task 9_9 is not one of the app's"),
        ("invents_a_member", "task 0_0 is on 'zoe', which is not a member"),
        ("names_one_twice", "task 0_0 is twice on one member: a, a"),
        ("returns_texts", "task 0_0 has a str and not a Place"),
        ("gives_numbers_as_reasons", "the reason for task 0_0 is not a text"),
    ],
)
def test_a_bad_answer_is_an_alert_and_the_built_in_one_decides(name: str, says: str) -> None:
    alerts: list[HoldfastError] = []
    assert load_assign(f"{MODULE}:{name}", alerts.append)(*GIVEN) == assign(*GIVEN)
    (alert,) = alerts
    assert f"group.assignor = '{MODULE}:{name}': " in str(alert)
    assert says in str(alert)
    assert "The built-in assignor was used instead. Fix the function, or remove the setting." in str(alert)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("no_such_module:place", "No module named 'no_such_module'"),
        (f"{MODULE}:missing", "missing"),
        ("nowhere", "is not a place. Write 'module:name'."),
        (f"{MODULE}:NOT_CALLABLE", "is a int and can't be called"),
    ],
)
def test_an_assignor_that_cant_be_imported_is_an_error(place: str, says: str) -> None:
    with pytest.raises(TopologyError, match="group.assignor") as error:
        load_assign(place, print)
    assert says in str(error.value)
