"""Which generations start a rebalance, and what they move."""

import msgspec

from holdfast.group.generations import Address, Generation, Place
from holdfast.group.rebalances import Move, moves, rebalances


def generation(**places: Place) -> Generation:
    members = {id: Address(incarnation=1, flight=f"grpc://{id}:1") for id in "ab"}
    tasks = {task.removeprefix("t"): place for task, place in places.items()}
    return Generation(
        log="log", number=1, id="x", before="", proposer="a", reason="", app_file=1, members=members, tasks=tasks
    )


BEFORE = generation(t0_0=Place(active="a", standbys=("b",)), t0_1=Place(active="b"))


def test_an_active_task_elsewhere_is_a_move() -> None:
    after = generation(t0_0=Place(active="b", standbys=("a",)), t0_1=Place(active="b"), t0_2=Place(active="a"))
    assert moves(BEFORE, after) == (
        Move(task="0_0", source="a", target="b"),
        Move(task="0_2", source=None, target="a"),
    )
    assert rebalances(BEFORE, after)


def test_a_standby_more_or_less_is_none() -> None:
    assert not rebalances(BEFORE, generation(t0_0=Place(active="a"), t0_1=Place(active="b", warming=("a",))))


def test_an_active_member_that_was_started_again_restores() -> None:
    again = {**BEFORE.members, "b": Address(incarnation=2, flight="grpc://b:1")}
    assert rebalances(BEFORE, msgspec.structs.replace(BEFORE, members=again))
    only_a = generation(t0_0=Place(active="a", standbys=("b",)))
    assert not rebalances(only_a, msgspec.structs.replace(only_a, members=again)), "b is a standby"


def test_other_stores_are_opened_again() -> None:
    assert rebalances(BEFORE, msgspec.structs.replace(BEFORE, app_file=2))
    assert rebalances(None, BEFORE)
