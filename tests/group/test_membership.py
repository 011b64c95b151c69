"""One id, one process: who has it, who gets it, and who stops."""

import pytest

from holdfast.group.generations import Generation
from holdfast.group.members import Hosted, MemberState
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


def test_a_step_that_is_still_under_way_does_not_overwrite_that_a_member_has_left() -> None:
    storage = new_storage()
    leaving = joined(storage, "first")
    leaving.leave()
    leaving.step()
    assert stored(storage).state is MemberState.LEFT


def test_a_heartbeat_during_a_step_is_one_of_the_same_process() -> None:
    storage = new_storage()
    zombie = joined(storage, "first")
    zombie.beat_again()
    assert stored(storage) == zombie.member
    assert zombie.member.beat == 2
    joined(storage, "second")
    with pytest.raises(Replaced):
        zombie.beat_again()
    assert stored(storage).process == "second"


def test_a_heartbeat_during_a_step_does_not_overwrite_that_a_member_has_left() -> None:
    storage = new_storage()
    leaving = joined(storage, "first")
    leaving.leave()
    leaving.beat_again()
    assert stored(storage).state is MemberState.LEFT


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


def test_the_loads_of_the_process_before_count_until_they_are_measured_again() -> None:
    storage = new_storage()
    measured = Hosted(version=7, running=True, load=50.0)
    put(storage, member("a", tasks={"0_0": measured, "0_1": measured, "0_2": measured}))
    now: dict[str, float | None] = {"0_0": None, "0_1": None, "0_3": None}

    def hosts() -> Status:
        tasks = {task: Hosted(version=8, running=False, load=load) for task, load in now.items()}
        return Status(state=MemberState.JOINED, generation=0, tasks=tasks)

    own = Membership.join(storage, member("a", 0, process="own"), hosts, lambda holder: False)
    assert loads(storage) == {"0_0": 50.0, "0_1": 50.0, "0_3": None}
    now = {"0_0": 20.0, "0_1": None}
    own.step()
    assert loads(storage) == {"0_0": 20.0, "0_1": 50.0}
    now = {"0_0": None, "0_1": None}
    own.step()
    assert loads(storage) == {"0_0": None, "0_1": 50.0}, "a task that was measured here has forgotten the load before"


def loads(storage: Storage) -> dict[str, float | None]:
    return {task: hosted.load for task, hosted in stored(storage).tasks.items()}


def test_a_member_takes_the_generation_of_a_log_that_was_set_back_whatever_its_number() -> None:
    storage = new_storage()
    log = member("a").log

    def proposed(number: int, id: str) -> None:
        made = Generation(
            log=log, number=number, id=id, before="", proposer="", reason="", app_file=1, members={}, tasks={}
        )
        storage.create(names.generation(number), documents.encode(made))

    proposed(1, "first")
    proposed(2, "abandoned")
    membership = joined(storage, "first")
    assert (found := membership.step()) is not None
    assert found.id == "abandoned"
    storage.delete([names.generation(2)])
    proposed(2, "new")
    assert (found := membership.step()) is not None
    assert found.id == "abandoned", "nobody has told it"
    membership.look_back()
    assert (found := membership.step()) is not None
    assert found.id == "new"
