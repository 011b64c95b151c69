"""The judge counts only time in which it looked itself."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.group.judge import Judge, Standing
from holdfast.group.members import MemberState
from tests.group.making import Member, member

INTERVAL, TIMEOUT = 1.0, 4.0


def beats(**beat: int) -> dict[str, Member]:
    return {id: member(id, number) for id, number in beat.items()}


def test_an_old_heartbeat_is_not_a_sign_of_life() -> None:
    judge = Judge(INTERVAL, TIMEOUT)
    judge.look(0, beats(a=9))
    assert judge.standing("a") is Standing.UNKNOWN
    judge.look(1, beats(a=10))
    assert judge.standing("a") is Standing.LIVE


def test_a_judge_that_slept_gives_nobody_up() -> None:
    judge = Judge(INTERVAL, TIMEOUT)
    for now in range(3):
        judge.look(now, beats(a=now))
    judge.look(100, beats(a=2))
    assert judge.standing("a") is Standing.LIVE
    for now in (101, 102, 103):
        judge.look(now, beats(a=2))
    assert judge.standing("a") is Standing.LIVE
    judge.look(104, beats(a=2))
    assert judge.standing("a") is Standing.GONE


def test_a_member_that_left_is_not_asked_but_waited_for_until_its_session_ends() -> None:
    judge = Judge(INTERVAL, TIMEOUT)
    judge.look(0, beats(a=1))
    left = {"a": member("a", 2, state=MemberState.LEFT)}
    judge.look(1, left)
    assert judge.standing("a") is Standing.SUSPECTED
    for now in range(2, 3 + int(TIMEOUT)):
        judge.look(now, left)
    assert judge.standing("a") is Standing.GONE
    judge.look(now + 1, {"a": member("a", 1, incarnation=2)})
    assert judge.standing("a") is Standing.LIVE


def test_a_refused_connection_counts_until_the_member_is_reached_or_started_again() -> None:
    judge = Judge(INTERVAL, TIMEOUT)
    judge.look(0, beats(a=1))
    judge.look(1, beats(a=2))
    judge.suspect("a")
    assert judge.standing("a") is Standing.SUSPECTED and not list(judge.live())
    judge.look(2, beats(a=3))
    assert judge.standing("a") is Standing.SUSPECTED, "it writes heartbeats, and nobody has reached it"
    judge.vouch("a")
    assert judge.standing("a") is Standing.LIVE
    judge.suspect("a")
    again = {id: msgspec.structs.replace(found, incarnation=9) for id, found in beats(a=1).items()}
    judge.look(3, again)
    assert judge.standing("a") is Standing.LIVE


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=40))
def test_a_session_ends_only_by_time_in_which_the_judge_looked(looks: list[tuple[float, bool]]) -> None:
    judge = Judge(INTERVAL, TIMEOUT)
    now, beat, silent = 0.0, 1, 0.0
    judge.look(now, beats(a=beat))
    for passed, beaten in looks:
        now += passed
        beat += beaten
        gone_before = judge.standing("a") is Standing.GONE
        silent = 0.0 if beaten or passed > max(3 * INTERVAL, TIMEOUT / 2) else silent + passed
        judge.look(now, beats(a=beat))
        is_gone = judge.standing("a") is Standing.GONE
        assert not beaten or judge.standing("a") is Standing.LIVE
        assert gone_before or not is_gone or silent >= TIMEOUT - 1e-6


def test_a_judge_that_slept_has_looked_since_it_woke_up() -> None:
    judge = Judge(interval=1.0, timeout=10.0)
    assert judge.has_looked_for(5.0) == 0
    for now in (5.0, 6.0, 7.0):
        judge.look(now, {})
    assert judge.has_looked_for(7.0) == 2
    judge.look(30.0, {})
    assert judge.has_looked_for(30.0) == 0
