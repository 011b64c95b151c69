"""The assignor: properties over histories of joins, crashes, returns and leaves, and single cases."""

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.group.assignor import assign
from holdfast.group.candidates import Candidate, Presence
from holdfast.group.generations import Place, Rules
from holdfast.group.members import Hosted
from holdfast.group.roles import START_EXTRA, START_RATIO
from holdfast.group.weights import Weight, weights
from holdfast.words import TaskId, Version
from tests.group.model import RESTORE_ROUNDS, Group, tasks_of

IDS = "abcdef"
ZONES = ("x", "y", "z")
RACKS = ("1", "2")


class Event(NamedTuple):
    what: str
    member: str
    rounds: int
    values: tuple[int, ...]


events = st.builds(
    Event,
    st.sampled_from(
        ["join", "crash", "expire", "return", "restart", "stop", "leave", "keep", "loads", "wipe", "standbys", "slow"]
    ),
    st.sampled_from(IDS),
    st.integers(0, 4),
    st.tuples(*[st.integers(0, 50)] * 3),
)


@st.composite
def groups(draw: st.DrawFn, *, tags: bool = True, standbys: int = 2) -> Group:
    tasks = tasks_of(draw(st.integers(1, 12)), everywhere=draw(st.integers(0, 1)))
    spread_by = draw(st.sampled_from([(), ("zone",), ("zone", "rack")])) if tags else ()
    rules = Rules(
        standbys=draw(st.integers(0, standbys)), spread_by=spread_by, warmups=draw(st.integers(1, 3)), acceptable_lag=10
    )
    measured = st.integers(0, 1_000)
    group = Group(
        tasks,
        rules,
        sizes={each.task: draw(measured) << 20 for each in tasks},
        loads={each.task: float(draw(measured)) for each in tasks},
        snapshots=draw(st.booleans()),
    )
    for id in IDS[: draw(st.integers(1, 5))]:
        group.join(id, tags_of(id))
    return group


def tags_of(id: str) -> Mapping[str, str]:
    number = IDS.index(id)
    return {"zone": ZONES[number % 3], "rack": RACKS[number // 3]}


def happen(group: Group, event: Event) -> None:
    machine = group.machines.get(event.member)
    match event.what, None if machine is None else machine.presence:
        case "join", None if machine is None:
            group.join(event.member, tags_of(event.member))
        case ("return", None | Presence.AWAY | Presence.STOPPING) if machine is not None:
            group.give_back(event.member)
        case "restart", Presence.HERE:
            group.give_back(event.member)
        case "stop", Presence.HERE:
            group.stop(event.member)
        case "keep", Presence.LEAVING:
            group.keep(event.member)
        case "standbys", _:
            group.rules = msgspec.structs.replace(group.rules, standbys=event.values[0] % 3)
        case ("slow", _) if machine is not None:
            machine.slow = 1 + event.values[0] % 3
        case ("crash", Presence.HERE) if len(group.here) > 1:
            group.crash(event.member)
        case "expire", Presence.AWAY | Presence.STOPPING:
            group.expire(event.member)
        case ("leave", Presence.HERE) if len(group.here) > 1:
            group.leave(event.member)
        case "wipe", Presence.HERE:
            group.wipe(event.member)
        case "loads", _:
            for number, each in enumerate(group.tasks):
                group.loads[each.task] = float(event.values[number % 3])


def replay(group: Group, history: list[Event]) -> None:
    for event in history:
        happen(group, event)
        for _ in range(event.rounds):
            group.round()


def limit(group: Group) -> int:
    """Each replica moves once or is restored again, a few at a time; and a few rounds for roles and drops."""
    replicas = len(group.tasks) * (1 + group.rules.standbys)
    slowest = max(machine.slow for machine in group.machines.values())
    return 10 + (slowest * RESTORE_ROUNDS + 3) * (2 * replicas // group.rules.warmups + 2)


def wanted_replicas(group: Group, everywhere: bool) -> int:
    here = len(group.here)
    return here if everywhere else min(1 + group.rules.standbys, here)


@settings(max_examples=100)
@given(groups(), st.lists(events, max_size=12))
def test_a_group_settles_after_any_history_and_then_stays(group: Group, history: list[Event]) -> None:
    replay(group, history)
    group.end()
    group.settle(limit(group))
    settled = group.places
    group.round()
    assert group.places == settled
    for each in group.tasks:
        place = settled[each.task]
        assert not place.warming
        assert set(place.members) <= set(group.here), "what leaves has handed everything over"
        assert len(place.members) == wanted_replicas(group, each.everywhere)
        assert group.is_close(place.active, each.task)


def carried(group: Group) -> Mapping[str, float]:
    """What data moves balance: everything without standbys, otherwise what each member holds."""
    found = weights_of(group)
    loads = dict.fromkeys(group.here, 0.0)
    for each in group.tasks:
        for id in () if each.everywhere else group.places[each.task].members:
            loads[id] += found[each.task].hold + (found[each.task].lead if group.rules.standbys == 0 else 0.0)
    return loads


def weights_of(group: Group) -> Mapping[TaskId, Weight]:
    candidates = group.candidates()
    reports: dict[TaskId, dict[str, Hosted]] = {each.task: {} for each in group.tasks}
    for candidate in candidates:
        for task, hosted in candidate.replicas.items():
            reports[task][candidate.id] = hosted
    return weights(reports, {each.id: each.presence for each in candidates})


@given(groups(tags=False), st.lists(events, max_size=8))
def test_a_settled_group_is_balanced(group: Group, history: list[Event]) -> None:
    """No member carries more than 1.5 times another one, but for one task and 15% of the mean."""
    replay(group, history)
    group.end()
    group.settle(limit(group))
    loads, found = carried(group), weights_of(group)
    mean = sum(loads.values()) / len(loads)
    for heavy in loads:
        for light in loads:
            shares = [
                found[each.task].hold + (found[each.task].lead if group.rules.standbys == 0 else 0.0)
                for each in group.tasks
                if not each.everywhere
                and heavy in group.places[each.task].members
                and light not in group.places[each.task].members
            ]
            if shares:
                assert loads[heavy] - min(shares) <= START_RATIO * loads[light] + START_EXTRA * mean + 1e-6


@given(groups(tags=False))
def test_active_roles_are_balanced_among_replicas(group: Group) -> None:
    group.settle(limit(group))
    found = weights_of(group)
    leads = dict.fromkeys(group.here, 0.0)
    for task, place in group.places.items():
        leads[place.active] += found[task].lead
    mean = sum(leads.values()) / len(leads)
    for task, place in group.places.items():
        for other in place.standbys:
            heavy = leads[place.active] - found[task].lead
            assert heavy <= START_RATIO * leads[other] + START_EXTRA * mean + 1e-6


@given(groups(), st.lists(events, max_size=8))
def test_replicas_are_spread_over_the_first_tag_whenever_possible(group: Group, history: list[Event]) -> None:
    replay(group, history)
    group.end()
    group.settle(limit(group))
    for tag in group.rules.spread_by[:1]:
        values = {group.machines[id].tags[tag] for id in group.here}
        for place in group.places.values():
            used = {group.machines[id].tags[tag] for id in place.members}
            assert len(used) == min(len(place.members), len(values)), (place, values)


@given(groups(), st.sampled_from(IDS), st.integers(0, 3))
def test_a_member_that_returns_within_its_session_causes_no_data_move(group: Group, id: str, rounds: int) -> None:
    group.settle(limit(group))
    if id not in group.here or len(group.here) == 1:
        return
    moved, hosts = group.moved, {task: set(place.members) for task, place in group.places.items()}
    group.crash(id)
    for _ in range(rounds):
        group.round()
        for task, place in group.places.items():
            ready = [each for each in place.members if each != id and group.is_close(each, task)]
            assert place.active != id or not ready, "a caught-up standby takes over at once"
    group.give_back(id)
    group.settle(limit(group))
    assert group.moved == moved
    assert {task: set(place.members) for task, place in group.places.items()} == hosts


def test_a_member_with_the_only_task_that_is_read_gets_no_other_one_when_it_returns() -> None:
    """It reports its load before it has caught up, and the others carry nothing that would outweigh it."""
    tasks = tasks_of(4)
    loads = {each.task: float(each.task.partition == 3) for each in tasks}
    group = Group(tasks, Rules(warmups=1, acceptable_lag=10), sizes=dict.fromkeys(loads, 0), loads=loads)
    for id in "ab":
        group.join(id)
    group.settle(limit(group))
    moved, places, hot = group.moved, group.places, group.places[TaskId(0, 3)].active
    assert [place.active for place in places.values()].count(hot) == 1
    group.crash(hot)
    for _ in range(RESTORE_ROUNDS):
        group.round()
    group.give_back(hot)
    group.settle(limit(group))
    assert (group.moved, group.places) == (moved, places)


@given(groups(tags=False, standbys=0))
def test_a_member_that_joins_moves_no_more_than_its_share(group: Group) -> None:
    """The share of one of n + 1, one task, and the tenth of a share that balancing leaves."""
    group.settle(limit(group))
    new, before, share_of = IDS[len(group.here)], group.places, weights_of(group)
    group.join(new)
    group.settle(limit(group))
    weighed = ((each.task, share_of[each.task]) for each in group.tasks if not each.everywhere)
    shares = {task: weight.hold + weight.lead for task, weight in weighed}
    moved = [task for task in shares if group.places[task].active != before[task].active]
    fair = sum(shares.values()) / len(group.here)
    assert sum(shares[task] for task in moved) <= 1.1 * fair + max(shares.values(), default=0.0)


@given(st.integers(2, 6), st.integers(2, 30), st.data())
def test_loads_that_wobble_by_20_percent_move_nothing(count: int, tasks: int, data: st.DataObject) -> None:
    """Around any placement that is balanced to within one task."""
    wanted = tasks_of(tasks)
    base = {each.task: float(data.draw(st.integers(0, 100))) for each in wanted}
    mean = sum(base.values()) / tasks
    weight = {task: 1 + (load / mean if mean else 0.0) for task, load in base.items()}
    loads = dict.fromkeys(IDS[:count], 0.0)
    places = {}
    for task in sorted(base, key=lambda task: (-weight[task], task)):
        id = min(loads, key=lambda id: (loads[id], id))
        loads[id] += weight[task]
        places[task] = Place(active=id)
    factors = {task: data.draw(st.sampled_from([0.8, 0.9, 1.0, 1.1, 1.2])) for task in base}
    members = [
        Candidate(
            id=id,
            replicas={
                task: Hosted(version=5, running=True, load=base[task] * factors[task])
                for task, place in places.items()
                if place.active == id
            },
        )
        for id in IDS[:count]
    ]
    assert assign(wanted, members, places, Version(5), Rules()).places == places


@given(groups(), st.lists(events, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_inputs_makes_no_difference(group: Group, history: list[Event], random: Random) -> None:
    replay(group, history)
    first = group.plan()
    tasks, members, places = list(group.tasks), group.candidates(), list(group.places.items())
    for each in (tasks, members, places):
        random.shuffle(each)
    members = [
        Candidate(id=m.id, presence=m.presence, tags=m.tags, replicas=dict(reversed(list(m.replicas.items()))))
        for m in members
    ]
    assert assign(tasks, members, dict(places), group.newest, group.rules) == first


@given(groups(), st.lists(events, max_size=6))
def test_every_task_is_explained_with_every_member_that_has_it(group: Group, history: list[Event]) -> None:
    replay(group, history)
    planned = group.plan()
    assert planned.why.keys() == planned.places.keys()
    for task, sentence in planned.why.items():
        place = planned.places[task]
        assert f"active on {place.active}: " in sentence
        assert all(f"standby on {id}" in sentence for id in place.standbys)
        assert all(f"warming on {id}: " in sentence for id in place.warming)
        assert "None" not in sentence


# Single cases

T = TaskId(0, 0)


def caught_up(size: int = 0) -> Hosted:
    return Hosted(version=100, running=True, bytes=size)


def behind(version: int = 40) -> Hosted:
    return Hosted(version=version, running=False)


def member(id: str, hosted: Hosted | None = None, presence: Presence = Presence.HERE) -> Candidate:
    return Candidate(id=id, presence=presence, replicas={} if hosted is None else {T: hosted})


def placed(before: Place | None, *members: Candidate, standbys: int = 0, newest: int = 100) -> tuple[Place, str]:
    known = {} if before is None else {T: before}
    found = assign(tasks_of(1), members, known, Version(newest), Rules(standbys=standbys))
    return found.places[T], found.why[T]


AWAY, LEAVING, STOPPING = Presence.AWAY, Presence.LEAVING, Presence.STOPPING
RESTARTING = Hosted(version=95, running=False)
"""It has its state, and can't be read for a moment."""


def test_with_fewer_standbys_than_before_the_replica_that_answers_stays() -> None:
    """Although something is warming: it is no reason to drop the active one."""
    before = {T: Place(active="a", standbys=("b",), warming=("c",)), TaskId(0, 1): Place(active="a")}
    heavy = Candidate(id="a", replicas=dict.fromkeys(before, caught_up()))
    after = assign(
        tasks_of(2), [heavy, member("b", RESTARTING), member("c", behind())], before, Version(100), Rules(standbys=0)
    )
    assert after.places[T] == Place(active="a", warming=("c",))


def test_a_replica_that_restarts_is_no_reason_to_drop_one_that_answers() -> None:
    before = Place(active="b", standbys=("a",))
    drained = member("a", caught_up(), LEAVING)
    assert placed(before, drained, member("b", RESTARTING), standbys=1)[0] == before
    assert placed(before, drained, member("b", caught_up()), standbys=1)[0] == Place(active="b")


def test_a_silent_replica_is_no_reason_to_drop_one_that_answers() -> None:
    before = Place(active="a", standbys=("b", "c"))
    members = member("a", caught_up()), member("b", behind(), AWAY), member("c", caught_up())
    assert placed(before, *members, standbys=1)[0] == before


def test_of_replicas_that_are_restored_the_most_advanced_one_stays() -> None:
    before = Place(active="a", standbys=("b",))
    assert placed(before, member("a", behind(10)), member("b", behind(60)))[0].members == ("a", "b")
    assert placed(before, member("a", behind(60)), member("b", behind(10)))[0].members == ("a",)


def test_a_replica_without_anything_is_not_caught_up_though_there_are_few_versions() -> None:
    before, lost = Place(active="b", standbys=("a",)), member("b", behind(0))
    place, why = placed(before, member("a", Hosted(version=5, running=True)), lost, standbys=1, newest=5)
    assert place == Place(active="a", standbys=("b",))
    assert "b is 5 versions behind" in why
    leaves = member("a", Hosted(version=5, running=True), LEAVING)
    assert placed(before, leaves, lost, standbys=1, newest=5)[0] == Place(active="a", standbys=("b",))


@pytest.mark.parametrize("presence", [LEAVING, STOPPING])
def test_the_only_copy_is_used_though_it_was_warming_on_a_member_that_leaves(presence: Presence) -> None:
    before = Place(active="gone", warming=("d",))
    place, _ = placed(before, member("a"), member("d", caught_up(), presence))
    assert place == Place(active="d", warming=("a",))


def test_a_task_whose_only_member_has_begun_to_warm_it_up_is_active_there() -> None:
    place, why = placed(Place(active="gone", warming=("a",)), member("a"))
    assert place == Place(active="a")
    assert "gone has left the group, and it was to be restored here before" in why


def test_a_drained_member_takes_over_from_one_that_ends_if_nobody_else_can() -> None:
    members = member("a", caught_up(), STOPPING), member("b", caught_up(), LEAVING), member("c")
    assert placed(Place(active="a", warming=("b",)), *members)[0].active == "b"


def test_what_is_warming_on_a_drained_member_is_given_up() -> None:
    before = Place(active="a", warming=("d",))
    assert placed(before, member("a", caught_up()), member("d", behind(), LEAVING))[0] == Place(active="a")
    assert placed(before, member("a", caught_up()), member("d", caught_up(), LEAVING))[0] == Place(active="a")


def test_a_replica_is_behind_only_what_was_there_when_it_reported() -> None:
    """Otherwise the member with the older heartbeat would lose its roles, in turns."""
    before = Place(active="a", standbys=("b",))
    running = Hosted(version=80, running=True)
    a, b = Candidate(id="a", replicas={T: running}, newest=Version(80)), member("b", caught_up())
    assert placed(before, a, b, standbys=1)[0] == before
    late = Candidate(id="a", replicas={T: running}, newest=Version(91))
    assert placed(before, late, b, standbys=1)[0] == Place(active="b", standbys=("a",))


def test_a_replica_that_can_be_read_keeps_its_role_beside_one_that_can_not() -> None:
    leftover = member("a", RESTARTING)
    assert placed(Place(active="b"), leftover, member("b", Hosted(version=89, running=True)))[0] == Place(active="b")


def test_a_task_that_is_being_restored_is_not_moved_at_once() -> None:
    """Nor because those that are done are measured already: the others are about as large."""
    before = {TaskId(0, n): Place(active="ab"[n % 2]) for n in range(8)}
    done, loading = Hosted(version=100, running=True, bytes=1 << 30), Hosted(version=0, running=False, loading=1 << 30)
    begun = {TaskId(0, n): loading for n in range(1, 5)}
    waiting = {TaskId(0, n): Hosted(version=0, running=False) for n in range(5, 8)}
    replicas = {TaskId(0, 0): done} | begun | waiting
    members = [
        Candidate(id=id, replicas={task: replicas[task] for task, place in before.items() if place.active == id})
        for id in "ab"
    ]
    assert assign(tasks_of(8), members, before, Version(100), Rules()).places == before
    after = assign(tasks_of(8), [*members, member("c")], before, Version(100), Rules()).places
    moved = {task for task, place in after.items() if place.active == "c"}
    assert moved, "what nobody has begun is moved"
    assert not moved & begun.keys()


def stopping(count: int, size: int) -> int:
    """How many tasks are warmed up if the only member that has them ends."""
    before = {TaskId(0, n): Place(active="a") for n in range(count)}
    ends = Candidate(id="a", presence=STOPPING, replicas=dict.fromkeys(before, caught_up(size)))
    after = assign(tasks_of(count), [ends, member("b"), member("c")], before, Version(100), Rules(warmups=2)).places
    assert all(place.active == "a" for place in after.values())
    return sum(len(place.warming) for place in after.values())


def test_what_only_a_member_that_ends_has_is_replaced_as_far_as_there_is_time() -> None:
    assert stopping(30, 1 << 20) == 30
    assert stopping(30, 100 << 20) == 10
    assert stopping(30, 100 << 30) == 2, "as many as always"


def test_replacements_for_a_member_that_ends_leave_room_for_others() -> None:
    tasks = [TaskId(0, n) for n in range(6)]
    before = {task: Place(active="a" if task.partition < 4 else "d") for task in tasks}
    ends = Candidate(id="a", presence=STOPPING, replicas=dict.fromkeys(tasks[:4], caught_up()))
    drained = Candidate(id="d", presence=LEAVING, replicas=dict.fromkeys(tasks[4:], caught_up()))
    after = assign(tasks_of(6), [ends, drained, member("b")], before, Version(100), Rules(warmups=1)).places
    assert [len(after[task].warming) for task in tasks] == [1, 1, 1, 1, 1, 0]


def test_a_silent_member_without_a_caught_up_standby_keeps_its_task() -> None:
    before = Place(active="a", standbys=("b",))
    place, why = placed(before, member("a", caught_up(), Presence.AWAY), member("b", behind()), standbys=1)
    assert place == before
    assert "active on a: it is silent, no other replica is caught up, and its session has not ended" in why


def test_a_silent_members_task_goes_to_its_caught_up_standby_at_once() -> None:
    before = Place(active="a", standbys=("b",))
    place, why = placed(before, member("a", caught_up(), Presence.AWAY), member("b", caught_up()), standbys=1)
    assert place == Place(active="b", standbys=("a",))
    assert why == "active on b: caught up at version 100, a is away; standby on a: away, caught up at version 100"


def test_a_silent_member_counts_in_the_mean_until_its_session_ends() -> None:
    """Otherwise its silence alone would make others differ too much: here 5 from 2, where the mean is 8 or 3.5."""
    wanted, hosts = tasks_of(8), "aaaaaccb"
    before = {each.task: Place(active=hosts[each.task.partition]) for each in wanted}
    heavy = Hosted(version=100, running=True, bytes=1 << 30, load=1_000.0)
    light = Hosted(version=100, running=True, load=0.0)

    def members(b: Presence) -> list[Candidate]:
        return [
            Candidate(
                id=id,
                presence=b if id == "b" else Presence.HERE,
                replicas={task: heavy if id == "b" else light for task, place in before.items() if place.active == id},
            )
            for id in "abc"
        ]

    for presence in (Presence.HERE, Presence.AWAY):
        assert assign(wanted, members(presence), before, Version(100), Rules()).places == before


def test_a_leaving_member_hands_over_in_three_steps() -> None:
    leaving = member("a", caught_up(40 << 20), Presence.LEAVING)
    warming, why = placed(Place(active="a"), leaving, member("b"))
    assert warming == Place(active="a", warming=("b",))
    assert "warming on b: 0 B of 40.00 MiB restored, 100 versions behind, so that it can take over from a" in why
    switched, _ = placed(warming, leaving, member("b", caught_up()))
    assert switched == Place(active="b", standbys=("a",))
    assert placed(switched, leaving, member("b", caught_up()))[0] == Place(active="b")


def test_a_leaving_member_gets_nothing_new() -> None:
    leaving = member("a", None, Presence.LEAVING)
    assert placed(None, leaving, member("b"), standbys=1)[0] == Place(active="b")


def test_without_a_caught_up_replica_the_most_advanced_one_becomes_active() -> None:
    place, why = placed(Place(active="gone", standbys=("a", "b")), member("a", behind(40)), member("b", behind(60)))
    assert place.active == "b"
    assert "gone has left the group, and no replica is more advanced than version 60 here" in why


def test_a_lagging_active_gives_its_role_to_a_caught_up_standby() -> None:
    before = Place(active="a", standbys=("b",))
    place, why = placed(before, member("a", behind()), member("b", caught_up()), standbys=1)
    assert place == Place(active="b", standbys=("a",))
    assert "a is 60 versions behind" in why


def test_old_state_of_a_member_that_was_gone_is_used() -> None:
    """Its task was restored elsewhere meanwhile, and isn't done."""
    place, _ = placed(Place(active="b"), member("a", Hosted(version=95, running=False)), member("b", behind()))
    assert place == Place(active="a", standbys=("b",))


def test_with_too_few_members_a_task_has_as_many_replicas_as_possible() -> None:
    place, why = placed(None, member("a"), member("b"), standbys=5)
    assert place == Place(active="a", standbys=("b",))
    assert "4 of 5 standbys missing, since there are no more members" in why


def test_nobody_here_changes_nothing() -> None:
    before = {T: Place(active="a", standbys=("b",))}
    found = assign(tasks_of(2), [member("a", caught_up(), Presence.AWAY)], before, Version(100), Rules())
    assert found.places == {T: Place(active="a")}


def test_measurements_that_make_no_sense_count_as_nothing() -> None:
    odd = [Hosted(version=100, running=True, bytes=-5, load=value) for value in (float("nan"), float("inf"), -3.0)]
    members = [Candidate(id=id, replicas={TaskId(0, n): odd[n]}) for n, id in enumerate("abc")]
    before = {TaskId(0, n): Place(active=id) for n, id in enumerate("abc")}
    assert assign(tasks_of(3), members, before, Version(100), Rules()).places == before


def test_members_that_start_one_after_the_other_share_tasks_without_data_at_once() -> None:
    """Warming up tasks that have no state would only delay the start of an app."""
    alone = assign(tasks_of(8), [member("a")], {}, Version(0), Rules()).places
    both = assign(tasks_of(8), [member("a"), member("b")], alone, Version(0), Rules()).places
    assert sorted(place.active for place in both.values()) == ["a"] * 4 + ["b"] * 4


def test_a_task_whose_active_replica_has_not_reported_yet_is_not_moved_at_once() -> None:
    """It may be caught up and read by now: only its next heartbeat says so."""
    wanted, before = tasks_of(4), {TaskId(0, n): Place(active="b") for n in range(4)}
    leaving = [member("a"), member("b", None, Presence.LEAVING)]
    drained = assign(wanted, leaving, before, Version(1), Rules()).places
    assert {place.active for place in drained.values()} == {"b"}
    assert any(place.warming == ("a",) for place in drained.values())
    assert assign(wanted, [member("a"), member("b")], before, Version(1), Rules()).places == before


def test_tasks_that_say_they_have_nothing_yet_are_shared_at_once() -> None:
    """So that members that start on an old log one after the other restore side by side."""
    before = {TaskId(0, n): Place(active="a") for n in range(8)}
    restoring = Candidate(id="a", replicas={task: Hosted(version=0, running=False) for task in before})
    both = assign(tasks_of(8), [restoring, member("b")], before, Version(100), Rules()).places
    assert sorted(place.active for place in both.values()) == ["a"] * 4 + ["b"] * 4


def test_a_large_group_is_placed() -> None:
    members = [Candidate(id=f"m{number}", tags={"zone": str(number % 3)}) for number in range(100)]
    rules = Rules(standbys=1, spread_by=("zone",))
    places = assign(tasks_of(10_000), members, {}, Version(0), rules).places
    held = [sum(member.id in place.members for place in places.values()) for member in members]
    assert max(held) - min(held) <= 2


def test_a_member_in_another_zone_gets_standbys_of_tasks_that_have_one_zone() -> None:
    rules = Rules(standbys=1, spread_by=("zone",))
    hosts = [Candidate(id=id, tags={"zone": "x"}, replicas={T: caught_up()}) for id in "ab"]
    before = Place(active="a", standbys=("b",))
    joined = Candidate(id="c", tags={"zone": "y"})
    warming = assign(tasks_of(1), [*hosts, joined], {T: before}, Version(100), rules)
    assert warming.places[T] == Place(active="a", standbys=("b",), warming=("c",))
    assert "so that its replicas are spread better over zone" in warming.why[T]
    ready = Candidate(id="c", tags={"zone": "y"}, replicas={T: caught_up()})
    after = assign(tasks_of(1), [*hosts, ready], warming.places, Version(100), rules).places[T]
    assert "c" in after.members and not after.warming


def test_a_member_that_is_20_percent_hotter_next_to_one_that_is_20_percent_colder_keeps_its_tasks() -> None:
    wanted = tasks_of(40)
    before = {each.task: Place(active="ab"[number % 2]) for number, each in enumerate(wanted)}
    members = [
        Candidate(
            id=id,
            replicas={
                task: Hosted(version=100, running=True, load=load)
                for task, place in before.items()
                if place.active == id
            },
        )
        for id, load in (("a", 120.0), ("b", 80.0))
    ]
    assert assign(wanted, members, before, Version(100), Rules()).places == before
