"""The steps of members and of the driver: who hands over to whom, who is given up, and who proposes."""

import threading

import pytest

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group import generations
from holdfast.group.candidates import Wanted
from holdfast.group.coordinator import Needs
from holdfast.group.driver_steps import DriverSteps
from holdfast.group.generations import Generation, Generations, Rules
from holdfast.group.members import Members, MemberState
from holdfast.log import documents, names, operator_requests
from holdfast.words import Version
from tests.group.making import LOG, member, new_storage, put
from tests.group.stepping import INTERVAL, NEWEST, TASKS, TIMEOUT, Group, needs, newest, settled
from tests.log.making import Watched

# Many members


def test_heartbeats_are_read_side_by_side() -> None:
    together = threading.Barrier(8, timeout=30)

    def wait(call: str, name: str) -> None:
        if call == "get_range":
            together.wait()

    storage = new_storage()
    put(storage, *(member(f"m{number}") for number in range(8)))
    assert len(Members(Watched(storage, before=wait), LOG).read()) == 8


def test_among_many_members_one_that_is_silent_is_given_up() -> None:
    """With so many the driver looks less often, and reading their heartbeats takes a while."""
    group = Group()
    beats = {f"m{number}": 0 for number in range(100)}
    driver = group.driver()
    for look in range(12):
        for id in beats:
            if id != "m7" or look < 3:
                beats[id] += 1
                put(group.storage, member(id, beats[id]))
        driver.step(needs)
        group.clock.advance(driver.pace + 3.0)
    assert driver.generation is not None and len(driver.generation.members) == 99
    assert "m7" not in driver.generation.members


@pytest.mark.parametrize(("count", "rate"), [(3, 8), (20, 3)])
def test_many_versions_between_two_heartbeats_change_no_roles(count: int, rate: int) -> None:
    """The heartbeat of one member is nearly an interval older than that of another, and both are caught up."""
    group = Group(Rules(standbys=1, acceptable_lag=7))
    driver = group.driver()
    driver.step(group.needs)
    group.join(*(f"m{number}" for number in range(count)))
    made = list[Generation]()
    for look in range(30):
        for id in sorted(group.members, reverse=look % 4 > 1):
            group.members[id].step()
            group.clock.advance(driver.pace / count)
            group.newest = Version(group.newest + max(1, round(rate * driver.pace / count)))
        driver.step(group.needs)
        if look > 10 and driver.generation is not None:
            made.append(driver.generation)
    assert len({each.number for each in made}) == 1, [each.reason for each in made]


def test_the_heartbeat_of_a_replica_that_stays_behind_shows_it() -> None:
    group, driver = settled("a", "b", standbys=1)
    group.hosts["a"].stays_at = group.newest
    for _ in range(4):
        group.newest = Version(group.newest + 10)
        group.round(driver=driver)
    assert {place.active for place in newest(group).tasks.values()} == {"b"}


def test_nobody_of_many_waits_longer_than_an_interval_for_what_a_member_that_leaves_has() -> None:
    """Otherwise it would end before the others have looked often enough."""
    ids = [f"m{number:02}" for number in range(20)]
    group, driver = settled(*ids)
    leaving = next(id for id, active in group.active().items() if active)
    assert driver.pace == group.members[leaving].pace > INTERVAL
    group.members[leaving].start_leaving()
    group.members[leaving].step()
    driver.step(needs)
    assert driver.pace == INTERVAL
    warming = next(id for place in newest(group).tasks.values() for id in place.warming)
    group.members[warming].step()
    assert group.members[warming].pace == INTERVAL
    for _ in range(4):
        group.round(driver=driver)
    assert group.members[leaving].has_handed_over()
    assert group.members[warming].pace > INTERVAL
    group.members[leaving].leave()
    driver.step(needs)
    assert driver.pace > INTERVAL


def test_a_heartbeat_says_when_the_next_one_is_due() -> None:
    group, _ = settled("a", "b")
    steps = group.members["a"]
    steps.step()
    assert steps.member.pace == steps.pace == INTERVAL


def test_a_member_that_a_driver_has_started_waits_for_a_generation_of_its_app_file() -> None:
    """The newest one is of another release, which had a task that the app file of this member lacks."""
    group, before = settled("a")
    assert newest(group).app_file == 1
    group.join("a", app_file=2)
    host = group.hosts["a"]
    group.round(driver=None)
    assert (host.apps, host.roles, host.problems) == ([], {}, [])
    last = [Wanted(task=TASKS[0])]
    for _ in range(3):
        group.clock.advance(INTERVAL)
        before.step(lambda: Needs(app_file=2, tasks=last, newest=NEWEST))
        group.members["a"].step()
    assert set(host.apps) == {2}
    assert host.roles == {TASKS[0]: True}


# Leaving


def test_a_member_that_leaves_waits_until_others_have_its_tasks() -> None:
    group, driver = settled("a", "b")
    assert group.active() == {"a": 2, "b": 2}
    group.members["a"].start_leaving()
    group.round(driver=driver)
    assert not group.members["a"].has_handed_over(), "b has just been told"
    for _ in range(6):
        group.round(driver=driver)
    assert group.members["a"].has_handed_over() and group.active()["b"] == len(TASKS)


def stopped(group: Group, driver: DriverSteps, id: str) -> list[Generation]:
    """Ends a member as SIGTERM does: it hands over and leaves. The generations that were made meanwhile."""
    reader = Generations(group.storage, LOG)
    made = [newest(group)]
    group.members[id].start_leaving()
    for _ in range(8):
        group.round(driver=driver)
        made += [found] if (found := reader.follow()) is not None and found != made[-1] else []
        if group.members[id].has_handed_over():
            break
    assert group.members[id].has_handed_over()
    group.members.pop(id).leave()
    for _ in range(3):
        group.round(driver=driver)
        made += [found] if (found := reader.follow()) is not None and found != made[-1] else []
    return made


def hosts_of(generation: Generation) -> dict[str, set[str]]:
    return {task: set(place.members) for task, place in generation.tasks.items()}


@pytest.mark.parametrize("ids", ["ab", "abc", "abcd"])
def test_a_planned_restart_within_the_session_moves_no_data(ids: str) -> None:
    group, driver = settled(*ids, standbys=1)
    before = newest(group)
    assert group.active()["a"] > 0
    made = stopped(group, driver, "a")
    assert all(hosts_of(each) == hosts_of(before) for each in made), "each replica stays where it was"
    assert all(place.active != "a" for place in newest(group).tasks.values())
    group.join("a")
    for _ in range(4):
        group.round(driver=driver)
    assert hosts_of(newest(group)) == hosts_of(before)
    assert group.active()["a"] > 0, "it has active roles again"


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_member_that_left_for_good_is_replaced_when_its_session_has_ended(standbys: int) -> None:
    group, driver = settled("a", "b", "c", standbys=standbys)
    stopped(group, driver, "a")
    for _ in range(6):
        group.round(driver=driver)
    after = newest(group)
    assert after.members.keys() == {"b", "c"}
    assert all(len(place.members) == 1 + standbys and "a" not in place.members for place in after.tasks.values())


@pytest.mark.parametrize("returns", [True, False])
def test_all_replicas_of_a_drained_member_move_also_if_another_one_is_restarted(returns: bool) -> None:
    """As long as that one may be back with its replicas, those of the drained member are kept: they can be read."""
    group, driver = settled("a", "b", "c", "d", standbys=1)
    operator_requests.ask(group.storage, names.drain("b"), LOG)
    stopped(group, driver, "a")
    assert all({*place.members} - {"a"} > {place.active} for place in newest(group).tasks.values())
    if returns:
        group.join("a")
    for _ in range(8):
        group.round(driver=driver)
    assert not newest(group).hosted_by("b")
    assert all(len(place.members) == 2 for place in newest(group).tasks.values())


@pytest.mark.parametrize("with_driver", [True, False])
def test_members_that_leave_together_wait_for_nobody(with_driver: bool) -> None:
    group, driver = settled("a", "b", "c")
    if not with_driver:
        driver.end()
        group.round()
    for each in group.members.values():
        each.start_leaving()
    for _ in range(2):
        group.round(driver=driver if with_driver else None)
    assert [each.has_handed_over() for each in group.members.values()] == [True] * 3


def test_a_member_that_is_drained_by_an_operator_is_not_waited_for() -> None:
    group, driver = settled("a", "b")
    operator_requests.ask(group.storage, names.drain("b"), LOG)
    group.members["a"].start_leaving()
    group.round(driver=driver)
    assert group.members["a"].has_handed_over()


def test_a_member_that_died_is_waited_for_until_its_session_ends() -> None:
    group, driver = settled("a", "b")
    group.members["a"].start_leaving()
    waited = 0.0
    while not group.members["a"].has_handed_over():
        group.round("a", driver=driver)
        waited += INTERVAL
        assert waited <= TIMEOUT + 2 * INTERVAL
    assert waited >= TIMEOUT


# Leadership


class NotLeading(HoldfastError):
    category = ErrorCategory.INVALID


def test_a_driver_that_no_longer_leads_proposes_nothing_and_asks_only_if_it_would() -> None:
    asked: list[str] = []
    leads = True

    def check() -> None:
        asked.append("leads")
        if not leads:
            raise NotLeading("another driver leads. Stop this one.")

    group, _ = settled("a", "b")
    driver = group.driver(check)
    for _ in range(4):
        group.round(driver=driver)
    before, asks = newest(group), len(asked)
    for _ in range(4):
        group.round(driver=driver)
    assert len(asked) == asks, "nothing changed"
    leads = False
    group.join("c")
    group.round(driver=driver)  # it sees the first heartbeat of c
    with pytest.raises(NotLeading):
        group.round(driver=driver)
    assert newest(group) == before


# The driver's heartbeat


@pytest.mark.parametrize("data", [b"", b"\xff", documents.encode(member("x")), None])
def test_a_forged_or_lost_heartbeat_of_the_driver_does_not_end_it(data: bytes | None) -> None:
    group, driver = settled("a", "b")
    before = newest(group)
    group.storage.delete([names.DRIVER_HEARTBEAT])
    if data is not None:
        group.storage.create(names.DRIVER_HEARTBEAT, data)
    group.round()
    group.round()
    assert all(each.coordinator is None for each in group.members.values()), "they still wait for the driver"
    group.round(driver=driver)
    assert newest(group) == before


def test_without_a_driver_the_member_with_the_smallest_id_coordinates() -> None:
    group, driver = settled("a", "b")
    driver.end()
    group.join("c")
    for _ in range(4):
        group.round()
    found = newest(group)
    assert found.proposer == "a" and sorted(found.members) == ["a", "b", "c"]


def coordinates(group: Group, id: str) -> bool:
    return group.members[id].coordinator is not None


def test_a_member_that_coordinates_again_believes_in_nobody_who_has_died_since() -> None:
    group, driver = settled("a", "b", "c", "d", standbys=1)
    driver.end()
    for _ in range(5):
        group.round()
    assert coordinates(group, "a")
    driver = group.driver()
    for _ in range(3):
        group.round(driver=driver)
    assert not coordinates(group, "a")
    del group.members["d"]
    for _ in range(10):
        group.round(driver=driver)
    driver.end()
    before = newest(group)
    assert sorted(before.members) == ["a", "b", "c"]
    for _ in range(10):
        group.round()
    assert newest(group) == before, "the heartbeat of d is an old one"


def test_a_report_that_a_process_has_ended_counts_in_the_next_step() -> None:
    group, driver = settled("a", "b", standbys=1)
    incarnation = newest(group).members["b"].incarnation
    assert not driver.lost("nobody")
    assert driver.lost("b", incarnation)
    driver.step(needs)
    assert {place.active for place in newest(group).tasks.values()} == {"a"} and driver.suspected == {"b"}
    driver.started("b")
    driver.step(needs)
    assert not driver.suspected


def test_a_member_that_answers_nothing_is_suspected_when_its_heartbeats_are_missing_too() -> None:
    group, driver = settled("a", "b", standbys=1)
    before, incarnation = newest(group), newest(group).members["b"].incarnation
    group.round(driver=driver)
    assert driver.hangs("b", incarnation)
    group.round("a", driver=driver)
    assert not driver.suspected, "one heartbeat is missing: it may be late"
    waited = INTERVAL
    while not driver.suspected:
        assert driver.hangs("b", incarnation), "as long as it lasts"
        group.round("a", driver=driver)
        waited += INTERVAL
    assert waited < TIMEOUT
    assert {place.active for place in newest(group).tasks.values()} == {"a"}
    assert newest(group).members == before.members, "its session hasn't ended"
    assert not driver.hangs("b", incarnation), "nothing new"


def test_a_member_that_answers_nothing_and_beats_keeps_its_roles() -> None:
    group, driver = settled("a", "b", standbys=1)
    before = newest(group)
    for _ in range(8):
        driver.hangs("b", before.members["b"].incarnation)
        group.round(driver=driver)
    assert newest(group) == before and not driver.suspected


def test_a_process_that_hung_is_not_taken_for_its_successor() -> None:
    group, driver = settled("a", "b", standbys=1)
    incarnation = newest(group).members["b"].incarnation
    group.join("b")
    driver.step(needs)
    for _ in range(2):
        driver.hangs("b", incarnation)
        group.round("a", driver=driver)
    assert not driver.suspected


def test_a_report_is_kept_if_the_look_fails() -> None:
    group, driver = settled("a", "b")
    driver.lost("b")
    inner, failing = group.storage, [True]

    def fail(call: str, name: str) -> None:
        if failing and call == "list_flat" and name == names.MEMBERS:
            failing.clear()
            raise NotLeading("no answer. Try again.")

    driver._coordinator._members._storage = Watched(inner, before=fail)
    with pytest.raises(NotLeading):
        driver.step(needs)
    driver.step(needs)
    assert driver.suspected == {"b"}


def test_state_left_is_told_by_leave() -> None:
    group, _ = settled("a")
    group.members["a"].leave()
    assert Members(group.storage, LOG).read()["a"].state is MemberState.LEFT


def test_old_generations_are_cleaned_also_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "KEPT", 2)
    group, driver = settled("a", "b")
    driver.end()
    for number in range(8):
        group.join(f"x{number}")
        group.round()
        group.round()
    stored = group.storage.list_flat(names.GENERATIONS)
    assert newest(group).number > 4 and len(list(stored)) <= 5
