"""The coordinator: what it makes of members that are silent, forged or absent."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.group.candidates import Assigned, Candidate, Presence, Wanted
from holdfast.group.coordinator import Coordinator, Needs
from holdfast.group.failure_detector import FailureDetector
from holdfast.group.generations import Generation, Place, Rules
from holdfast.log import names, operator_requests
from holdfast.log.objects import Storage
from holdfast.words import TaskId, Version
from tests.group.making import LOG, Hosted, member, new_storage, put

TASK = TaskId(0, 0)


def on_the_first(
    tasks: Sequence[Wanted],
    members: Sequence[Candidate],
    before: Mapping[TaskId, Place],
    newest: Version,
    rules: Rules,
) -> Assigned:
    """The task stays with a member that is known, and otherwise goes to the first that is here."""
    ids = [each.id for each in members]
    here = [each.id for each in members if each.presence is Presence.HERE]
    active = before[TASK].active if TASK in before and before[TASK].active in ids else here[0]
    return Assigned(places={TASK: Place(active=active)}, why={})


class Group:
    """Members that beat or don't, and a coordinator that looks."""

    def __init__(self, *ids: str) -> None:
        self.storage: Storage = new_storage()
        self.now = 0.0
        self.beat = dict.fromkeys(ids, 0)
        numbers = itertools.count()
        self.coordinator = Coordinator(
            self.storage, LOG, "driver", FailureDetector(1.0, 4.0), on_the_first, Rules(), lambda: f"id-{next(numbers)}"
        )

    def second(self, *beating: str) -> Generation | None:
        """A second passes, in which these members write a heartbeat and the coordinator looks."""
        self.now += 1
        for id in beating:
            self.beat[id] += 1
            put(self.storage, member(id, self.beat[id]))
        needs = Needs(app_file=1, tasks=[Wanted(task=TASK)], newest=Version(1))
        self.coordinator.look(self.now)
        found = self.coordinator.propose(needs)
        self.coordinator.tidy(self.now)
        return found


def members_of(generation: Generation | None) -> list[str]:
    return [] if generation is None else sorted(generation.members)


def test_a_member_counts_once_its_heartbeat_changed() -> None:
    group = Group("a", "b")
    assert group.second("a", "b") is None
    assert members_of(group.second("a")) == ["a"]
    assert members_of(group.second("a", "b")) == ["a", "b"]


def test_a_replica_that_claims_a_version_far_ahead_of_the_app_is_not_counted_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group("a")
    told: list[Sequence[Candidate]] = []

    def listening(tasks: Sequence[Wanted], members: Sequence[Candidate], *others: Any) -> Assigned:
        told.append(members)
        return on_the_first(tasks, members, *others)

    group.coordinator._assign = listening
    for beat in range(1, 4):
        put(group.storage, member("forged", beat, tasks={"0_0": Hosted(version=2**50, running=True)}))
        put(group.storage, member("true", beat, tasks={"0_0": Hosted(version=2, running=True)}))
        group.second()
    replicas = {each.id: each.replicas for each in told[-1]}
    assert replicas["forged"] == {} and replicas["true"][TASK].version == 2
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "instance 'forged'" in warning and str(2**50) in warning and "Restart" in warning


def test_a_silent_member_keeps_its_task_until_its_session_ends() -> None:
    group = Group("a", "b")
    group.second("a", "b")
    found = group.second("a", "b")
    assert found is not None and found.tasks["0_0"].active == "a"
    for _ in range(3):
        assert members_of(group.second("b")) == ["a", "b"]
    found = group.second("b")
    assert members_of(found) == ["b"] and found is not None and found.tasks["0_0"].active == "b"


def test_nonsense_in_place_of_a_heartbeat_moves_nothing() -> None:
    group = Group("a", "b")
    group.second("a", "b")
    before = group.second("a", "b")
    group.storage.replace(names.member("a"), b"nonsense")
    assert group.second("b") == before
    assert group.second("a", "b") == before


def test_a_forged_generation_is_passed() -> None:
    group = Group("a", "b")
    group.second("a", "b")
    before = group.second("a", "b")
    assert before is not None
    group.storage.create(names.generation(before.number + 1), b"nonsense")
    assert group.second("a", "b") == before
    for _ in range(4):
        after = group.second("b")
    assert after is not None and after.number == before.number + 2 and after.before == before.id


def test_when_nobody_is_here_the_generation_stays() -> None:
    group = Group("a")
    group.second("a")
    before = group.second("a")
    for _ in range(6):
        assert group.second() == before


def presences(group: Group) -> dict[str, Presence]:
    """How the assignor sees the members at the next look."""
    seen: dict[str, Presence] = {}

    def looks(tasks: object, members: Sequence[Candidate], *_: object) -> Assigned:
        seen.update({each.id: each.presence for each in members})
        return Assigned(places={TASK: Place(active="a")}, why={})

    group.coordinator._assign = looks
    group.second("a", "b")
    return seen


def test_a_member_that_an_operator_drains_counts_as_one_that_leaves() -> None:
    group = Group("a", "b")
    group.second("a", "b")
    assert presences(group) == {"a": Presence.HERE, "b": Presence.HERE}
    operator_requests.ask(group.storage, names.drain("a"), LOG, "its disk is replaced")
    assert presences(group) == {"a": Presence.LEAVING, "b": Presence.HERE}
    operator_requests.withdraw(group.storage, names.drain("a"))
    assert presences(group) == {"a": Presence.HERE, "b": Presence.HERE}


def test_a_drain_of_an_unknown_member_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    group = Group("a", "b")
    group.second("a", "b")
    operator_requests.ask(group.storage, names.drain("c"), LOG)
    assert presences(group) == {"a": Presence.HERE, "b": Presence.HERE}
    assert caplog.text == ""


def test_a_member_that_coordinates_goes_by_the_rules_of_the_driver() -> None:
    group = Group("a", "b")
    group.coordinator._rules = Rules(standbys=1, spread_by=("zone",))
    group.second("a", "b")
    made = group.second("a", "b")
    assert made is not None and made.rules == Rules(standbys=1, spread_by=("zone",))
    own = Coordinator(
        group.storage, LOG, "a", group.coordinator.detector, on_the_first, Rules(), lambda: "own", keeps_rules=True
    )
    group.coordinator = own
    for _ in range(5):
        found = group.second("a")
    assert found is not None and found.proposer == "a" and members_of(found) == ["a"]
    assert found.rules == made.rules


def test_a_late_heartbeat_of_a_former_process_is_not_believed() -> None:
    group = Group("a")
    group.second("a")
    put(group.storage, member("a", 1, incarnation=2, address="grpc://new:1"))
    found = group.second()
    assert found is not None
    assert found.members["a"].flight == "grpc://new:1"
    for _ in range(3):  # its session, in which the process that was started last is silent
        found = group.second("a")
        assert found is not None
        assert (found.members["a"].incarnation, found.members["a"].flight) == (2, "grpc://new:1")
        assert group.coordinator.detector.silent_for("a", group.now) > 0
    for _ in range(3):
        found = group.second("a")
    assert found is not None
    assert found.members["a"].incarnation == 1, "nobody else has the id"
