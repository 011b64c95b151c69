"""One id, one process: who has it, who gets it, and who stops."""

import pytest

from holdfast.group.members import MemberState
from holdfast.group.membership import IdInUse, Membership, Replaced, Status
from holdfast.log import documents, names
from holdfast.log.objects import Storage
from tests.group.making import Member, member, new_storage, put


def status() -> Status:
    return Status(state=MemberState.JOINED, generation=0, tasks={})


def joined(storage: Storage, process: str, *, answers: bool = False) -> Membership:
    own = member("a", 0, process=process)
    return Membership.join(storage, own, status, lambda holder: answers)


def stored(storage: Storage) -> Member:
    return documents.decode(storage.get(names.member("a")), Member, name="", place="", known=1)


def test_an_id_whose_process_answers_is_refused_with_its_name() -> None:
    storage = new_storage()
    put(storage, member("a", process="first", host="host-7", pid=41))
    with pytest.raises(IdInUse, match="process 41 on host-7"):
        joined(storage, "second", answers=True)
    assert stored(storage).process == "first"


def test_the_next_start_is_a_new_incarnation_and_the_former_process_stops() -> None:
    storage = new_storage()
    zombie = joined(storage, "first")
    successor = joined(storage, "second")
    assert successor.member.incarnation == 2
    with pytest.raises(Replaced):
        zombie.step()
    successor.step()


def test_a_zombies_late_heartbeat_stops_nobody() -> None:
    storage = new_storage()
    zombie = joined(storage, "first")
    successor = joined(storage, "second")
    put(storage, zombie.member)
    successor.step()
    assert stored(storage).process == "second"


def test_of_two_that_started_at_the_same_moment_one_goes_on() -> None:
    storage = new_storage()
    one = Membership(storage, member("a", 0, process="one"), status)
    two = Membership(storage, member("a", 0, process="two"), status)
    one.beat()
    two.beat()
    one.step()
    with pytest.raises(Replaced):
        two.step()
    one.step()


@pytest.mark.parametrize(
    "data", [b"", b"\xff", documents.encode(member("a", format=99)), documents.encode(member("b"))]
)
def test_a_heartbeat_that_cant_be_believed_keeps_nobody_from_its_id(data: bytes) -> None:
    storage = new_storage()
    storage.replace(names.member("a"), data)
    own = joined(storage, "own")
    storage.replace(names.member("a"), data)
    own.step()
    assert stored(storage).process == "own"
