"""The heartbeats of members that are long gone are deleted, and nobody is mistaken for another one by that."""

import pytest

from holdfast.group.driver_steps import DriverSteps
from holdfast.group.membership import Replaced
from holdfast.log import names
from tests.group.stepping import INTERVAL, NEEDS, Group, needs, newest, settled


def forgetting(group: Group, after: float = 30.0) -> DriverSteps:
    driver = group.driver(forget_after=after)
    for _ in range(4):
        group.round(driver=driver)
    return driver


def stored(group: Group, id: str) -> bool:
    return group.storage.exists(names.member(id))


@pytest.mark.parametrize("leaves", [True, False])
def test_the_heartbeat_of_a_member_that_is_long_gone_is_deleted(leaves: bool) -> None:
    group, _ = settled("a", "b")
    driver = forgetting(group)
    if leaves:
        group.members["b"].leave()
    gone = 0.0
    while stored(group, "b"):
        group.round("a", driver=driver)
        gone += INTERVAL
        assert gone <= 30 + 2 * INTERVAL
    assert gone >= 30
    assert stored(group, "a") and list(newest(group).members) == ["a"]


def test_a_member_that_is_silent_for_less_time_finds_its_heartbeat() -> None:
    group, _ = settled("a", "b")
    driver = forgetting(group)
    for _ in range(14):
        group.round("a", driver=driver)
    group.members["b"].step()
    for _ in range(14):
        group.round("a", driver=driver)
    assert stored(group, "b")


def test_a_start_under_an_id_whose_heartbeat_was_deleted_replaces_a_zombie() -> None:
    group, _ = settled("a", "b")
    zombie, first = group.members["b"], group.members["b"].member
    driver = forgetting(group)
    for _ in range(20):
        group.round("a", driver=driver)
    assert not stored(group, "b")
    group.join("b")
    assert group.members["b"].member.incarnation > first.incarnation
    with pytest.raises(Replaced):
        zombie.step()
    group.round(driver=driver)
    group.round(driver=driver)
    assert sorted(newest(group).members) == ["a", "b"]


def test_a_zombie_whose_heartbeat_was_deleted_is_a_member_again() -> None:
    group, _ = settled("a", "b")
    driver = forgetting(group)
    for _ in range(20):
        group.round("a", driver=driver)
    for _ in range(3):
        group.round(driver=driver)
    assert sorted(newest(group).members) == ["a", "b"]


def test_a_heartbeat_that_was_written_since_the_look_is_not_deleted() -> None:
    group, _ = settled("a", "b")
    coordinator = group.coordinator("driver", forget_after=30.0)
    for _ in range(20):
        group.clock.advance(INTERVAL)
        group.members["a"].step()
        coordinator.look(group.clock.monotonic())
        coordinator.propose(NEEDS)
    group.members["b"].step()
    coordinator.tidy(group.clock.monotonic())
    assert stored(group, "b")


def test_a_heartbeat_that_someone_deletes_moves_nothing() -> None:
    group, driver = settled("a", "b")
    before = newest(group)
    group.storage.delete([names.member("b")])
    driver.step(needs)
    assert newest(group) == before
    for _ in range(3):
        group.round(driver=driver)
    assert newest(group) == before
