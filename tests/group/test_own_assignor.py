"""A user's own assignor: used if its answer can be, and otherwise replaced by the built-in one."""

import pytest

from holdfast.errors import HoldfastError, TopologyError
from holdfast.group.assignor import assign
from holdfast.group.candidates import Candidate
from holdfast.group.generations import Place, Rules
from holdfast.group.own_assignor import BadAssignment, load_assign
from holdfast.group.rules import assignor_of
from holdfast.settings.group import GroupSettings
from holdfast.words import TaskId, Version
from tests.group import own_assignors
from tests.group.model import tasks_of
from tests.group.stepping import TASKS, Group, needs
from tests.instance.processes import until

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


def test_one_that_hangs_is_an_alert_and_is_asked_again_when_its_call_has_ended() -> None:
    alerts: list[HoldfastError] = []
    own_assignors.CALLS.clear()
    own_assignors.HELD.clear()
    checked = load_assign(f"{MODULE}:hangs", alerts.append, 0.2)
    try:
        for _ in range(3):
            assert checked(*GIVEN) == assign(*GIVEN)
        assert own_assignors.CALLS == ["hangs"], "the others didn't pile up behind it"
    finally:
        own_assignors.HELD.set()
    assert {str(alert).partition(". ")[0] for alert in alerts} == {
        f"group.assignor = '{MODULE}:hangs': it doesn't answer within 0.2 s"
    }
    until(lambda: {place.active for place in checked(*GIVEN).places.values()} == {"a"}, "it decides again")


def test_a_group_whose_assignor_hangs_places_its_tasks_and_keeps_its_heartbeats() -> None:
    alerts: list[HoldfastError] = []
    settings = GroupSettings(assignor=f"{MODULE}:hangs", session_timeout="1s")
    own_assignors.HELD.clear()
    group = Group()
    driver = group.driver()
    driver._coordinator._assign = assignor_of(settings, alerts.append)
    try:
        driver.step(needs)
        group.join("a", "b")
        for _ in range(4):
            group.round(driver=driver)
        assert sum(group.active().values()) == len(TASKS)
        assert [type(alert) for alert in alerts] == [BadAssignment]
    finally:
        own_assignors.HELD.set()


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
