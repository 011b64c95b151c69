"""Generations that are lost, or believed and absurd, strand and end nobody."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.group.driver_steps import DriverSteps
from holdfast.group.generations import Address, Generation, Generations, Place, Rules
from holdfast.group.rebalances import moves, rebalances
from holdfast.log import documents, names
from holdfast.log.objects import Put
from tests.group.making import LOG, member, new_storage, put
from tests.group.stepping import TASKS, Group, newest, settled

# Lost generations


def lose(group: Group, *numbers: int) -> None:
    group.storage.delete([names.generation(number) for number in numbers])


def grown(*ids: str) -> tuple[Group, DriverSteps]:
    """A group with a few generations: its members join one after the other."""
    group, driver = settled(ids[0])
    for id in ids[1:]:
        group.join(id)
        for _ in range(6):
            group.round(driver=driver)
    assert newest(group).number >= 4
    return group, driver


@pytest.mark.parametrize("back", [1, 2])
def test_a_start_finds_the_newest_generation_behind_a_lost_one(back: int) -> None:
    group, _ = grown("a", "b", "c")
    before = newest(group)
    lose(group, before.number - back)
    group.join("d")
    assert group.members["d"].generation == before


def test_a_new_driver_replaces_a_lost_generation_that_members_host() -> None:
    group, _ = grown("a", "b", "c")
    before = newest(group)
    lose(group, before.number)
    driver = group.driver()
    for _ in range(4):
        group.round(driver=driver)
    assert driver.generation is not None and driver.generation.number == before.number + 1
    assert [each.generation for each in group.members.values()] == [driver.generation] * 3


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_lost_generation_strands_nobody_who_starts_later(back: int) -> None:
    group, _ = grown("a", "b", "c")
    before = newest(group)
    lose(group, before.number - back)
    driver = group.driver()
    group.join("d")
    for _ in range(8):
        group.round(driver=driver)
    found = newest(group)
    assert found.number > before.number
    assert {each.generation.number for each in group.members.values() if each.generation} == {found.number}
    assert driver.generation == found


def test_a_generation_that_is_lost_before_anybody_has_read_it_is_made_again() -> None:
    group, driver = settled("a", "b")
    group.join("c")
    before = newest(group)
    while newest(group) == before:
        group.round(driver=driver)
    lose(group, newest(group).number)
    for _ in range(2):
        group.round(driver=driver)
    found = newest(group)
    assert found.number == before.number + 2 and sorted(found.members) == ["a", "b", "c"]
    for _ in range(8):
        group.round(driver=driver)
    assert [each.generation for each in group.members.values()] == [driver.generation] * 3


def test_all_generations_may_be_lost() -> None:
    group, _ = grown("a", "b", "c")
    before = newest(group)
    lose(group, *range(1, before.number + 1))
    driver = group.driver()
    for _ in range(4):
        group.round(driver=driver)
    assert newest(group).number == before.number + 1
    assert [each.generation for each in group.members.values()] == [newest(group)] * 3
    assert driver.generation == newest(group)


def test_who_knows_only_of_a_lost_generation_follows_what_is_stored() -> None:
    group, _ = grown("a", "b", "c")
    late = Generations(group.storage, LOG)
    before = late.follow()
    assert before is not None
    lose(group, before.number)
    looks = 0
    while (found := late.look_again()) == before:
        looks += 1
        assert looks < 3
    assert found == newest(group)


def test_who_is_told_of_a_generation_passes_a_lost_one() -> None:
    storage = new_storage()
    group = Group(storage=storage)
    group.join("a")
    for number in (1, 3):
        made = absurd(number, tasks={"0_0": Place(active="a")})
        storage.create(names.generation(number), documents.encode(made))
        if number == 1:
            group.members["a"].step()
    group.members["a"].step()
    assert (at := group.members["a"].generation) is not None and at.number == 1
    assert group.members["a"].hear(3)
    group.members["a"].step()
    assert (at := group.members["a"].generation) is not None and at.number == 3


def test_a_heartbeat_with_an_absurd_generation_hides_no_lost_one() -> None:
    group, _ = grown("a", "b", "c")
    before = newest(group)
    lose(group, before.number)
    driver = group.driver()
    for beat in range(3):
        put(group.storage, member("liar", beat, generation=2**52))
        group.round(driver=driver)
    assert newest(group).number > before.number


def test_a_heartbeat_with_an_absurd_generation_moves_no_number() -> None:
    group, driver = settled("a", "b")
    before = newest(group).number
    for beat in range(3):
        put(group.storage, member("liar", beat, generation=2**52))
        group.round(driver=driver)
    assert before < newest(group).number <= before + 3


# Generations that are believed and absurd


ids = st.sampled_from(["a", "b", "nobody", "", "x" * 200])
counts = st.sampled_from([0, 1, 2**53])
places = st.builds(
    Place, active=ids, standbys=st.lists(ids, max_size=3).map(tuple), warming=st.lists(ids, max_size=2).map(tuple)
)
addresses = st.builds(
    Address, incarnation=counts, flight=st.sampled_from(["", "nonsense", "grpc://a:1", "grpc://:x"]), rest=st.none()
)
absurd_rules = st.builds(Rules, standbys=counts, acceptable_lag=counts, warmups=counts, spread_by=st.just(("", "zone")))


def absurd(number: int, **fields: object) -> Generation:
    made: dict[str, object] = {"log": LOG, "number": number, "id": f"absurd-{number}", "before": "", "proposer": ""}
    made |= {"reason": "", "app_file": 1, "members": {}, "tasks": {}}
    return Generation(**(made | fields))  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.dictionaries(ids, addresses, max_size=4),
    st.dictionaries(st.sampled_from([*map(str, TASKS), "9_9"]), places, max_size=5),
    absurd_rules,
    counts,
)
def test_an_absurd_generation_ends_nobody_and_is_replaced(
    members: dict[str, Address], tasks: dict[str, Place], rules: Rules, app_file: int
) -> None:
    group, driver = settled("a", "b")
    before = newest(group)
    made = absurd(before.number + 1, members=members, tasks=tasks, rules=rules, app_file=app_file)
    assert group.storage.create(names.generation(made.number), documents.encode(made)) is Put.CREATED
    moves(before, made), rebalances(before, made), rebalances(made, before)
    for _ in range(8):
        group.round(driver=driver)
    found = newest(group)
    assert found.rules == Rules() and sorted(found.members) == ["a", "b"]
    assert {place.active for place in found.tasks.values()} <= {"a", "b"} and len(found.tasks) == len(TASKS)
    assert sum(group.active().values()) == len(TASKS)


@pytest.mark.parametrize("rules", [b'{"standbys":-1}', b'{"warmups":18446744073709551616}'])
def test_a_generation_with_impossible_rules_is_skipped(rules: bytes) -> None:
    group, _ = settled("a", "b")
    before = newest(group)
    body = documents.encode(absurd(before.number + 1))[48:].replace(b'"rules":{', b'"rules":' + rules[:-1] + b",")
    data = b'{"checksum":"' + documents.checksum(body).encode() + b'",' + body
    group.storage.create(names.generation(before.number + 1), data)
    assert newest(group) == before
