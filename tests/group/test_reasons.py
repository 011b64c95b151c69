"""Why a generation was made, as the coordinator writes it down."""

from collections.abc import Mapping

from holdfast.chance import new_id
from holdfast.group import members
from holdfast.group.assignor import assign
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.failure_detector import FailureDetector
from holdfast.group.generations import Rules
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.log import names, operator_requests
from holdfast.log.storage import open_storage
from holdfast.words import Version
from tests.group.model import tasks_of

LOG = "l"


class Group:
    """Members whose heartbeats are written here, and a coordinator with a clock of its own."""

    def __init__(self, url: str, standbys: int = 1) -> None:
        self.storage = open_storage(url, fsync=False)
        self.coordinator = Coordinator(
            self.storage, LOG, "driver", FailureDetector(1.0, 10.0), assign, Rules(standbys=standbys), new_id
        )
        self.now = 0.0
        self.beats = 0

    def beat(self, incarnations: Mapping[str, int], *, leaving: str = "") -> None:
        """All of them are caught up with all tasks."""
        self.beats += 1
        tasks = {str(wanted.task): Hosted(version=5, running=True) for wanted in tasks_of(2)}
        for id, incarnation in incarnations.items():
            state = MemberState.LEAVING if id == leaving else MemberState.JOINED
            found = Member(
                log=LOG, id=id, incarnation=incarnation, process=f"{id}{incarnation}", beat=self.beats, state=state,
                address=f"grpc://{id}:1", tasks=tasks,
            )  # fmt: skip
            members.write(self.storage, found)

    def reason(self, *, suspected: str = "") -> str:
        """The reason of the generation after the next look."""
        self.now += 1.0
        self.coordinator.look(self.now)
        if suspected:
            self.coordinator.detector.suspect(suspected)
        found = self.coordinator.propose(Needs(app_file=1, tasks=tasks_of(2), newest=Version(5)))
        return "" if found is None else found.reason


def settled(url: str, *ids: str) -> Group:
    group = Group(url)
    for _ in range(2):
        group.beat(dict.fromkeys(ids, 1))
        group.reason()
    return group


def test_the_first_generation_names_its_members() -> None:
    group = Group("memory://reasons-first")
    group.beat({"a": 1, "b": 1})
    assert group.reason() == ""
    group.beat({"a": 1, "b": 1})
    assert group.reason() == "the first assignment, to a, b"


def test_a_member_that_joins_is_named_with_what_it_gets() -> None:
    group = settled("memory://reasons-joined", "a")
    group.beat({"a": 1, "b": 1})
    group.reason()  # its heartbeat may be years old
    group.beat({"a": 1, "b": 1})
    assert group.reason() == "b joined: 1 task has another active replica, 2 replicas are added"


def test_one_that_does_not_answer_is_named_with_what_moves() -> None:
    group = settled("memory://reasons-away", "a", "b")
    group.beat({"a": 1, "b": 1})
    assert group.reason(suspected="a") == "a doesn't answer: 1 task has another active replica"


def test_one_that_was_started_again_moves_nothing() -> None:
    group = settled("memory://reasons-again", "a", "b")
    group.beat({"a": 2, "b": 1})
    assert group.reason() == "a started again; no task moves"


def test_one_that_has_left_is_told_from_one_that_is_gone() -> None:
    group = settled("memory://reasons-gone", "a", "b")
    group.now += 1.0
    for _ in range(12):
        group.beat({"a": 1})
        reason = group.reason()
    assert reason.startswith("b is gone: "), "its session has ended"
    ended = settled("memory://reasons-left", "a", "b")
    left = Member(
        log=LOG, id="b", incarnation=1, process="b1", beat=9, state=MemberState.LEFT, address="grpc://b:1"
    )  # fmt: skip
    members.write(ended.storage, left)
    ended.beat({"a": 1})
    assert ended.reason().startswith("b left: ")


def test_one_that_leaves_is_told_from_one_that_is_drained() -> None:
    group = settled("memory://reasons-leaves", "a", "b")
    group.beat({"a": 1, "b": 1}, leaving="a")
    assert group.reason().startswith("a leaves: 1 task has another active replica")
    drained = settled("memory://reasons-drained", "a", "b")
    operator_requests.ask(drained.storage, names.drain("b"), LOG, "its disk is replaced")
    drained.beat({"a": 1, "b": 1})
    assert drained.reason().startswith("b is drained: 1 task has another active replica")
