"""The detector counts only time in which it looked itself."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.group.failure_detector import FailureDetector, Liveness
from holdfast.group.members import MemberState
from tests.group.making import Member, member

INTERVAL, TIMEOUT = 1.0, 4.0


def beats(**beat: int) -> dict[str, Member]:
    return {id: member(id, number) for id, number in beat.items()}


def test_an_old_heartbeat_is_not_a_sign_of_life() -> None:
    detector = FailureDetector(INTERVAL, TIMEOUT)
    detector.look(0, beats(a=9))
    assert detector.liveness("a") is Liveness.UNKNOWN
    detector.look(1, beats(a=10))
    assert detector.liveness("a") is Liveness.LIVE


def test_a_judge_that_slept_gives_nobody_up() -> None:
    detector = FailureDetector(INTERVAL, TIMEOUT)
    for now in range(3):
        detector.look(now, beats(a=now))
    detector.look(100, beats(a=2))
    assert detector.liveness("a") is Liveness.LIVE
    for now in (101, 102, 103):
        detector.look(now, beats(a=2))
    assert detector.liveness("a") is Liveness.LIVE
    detector.look(104, beats(a=2))
    assert detector.liveness("a") is Liveness.GONE


def test_a_member_that_left_is_not_asked_but_waited_for_until_its_session_ends() -> None:
    detector = FailureDetector(INTERVAL, TIMEOUT)
    detector.look(0, beats(a=1))
    left = {"a": member("a", 2, state=MemberState.LEFT)}
    detector.look(1, left)
    assert detector.liveness("a") is Liveness.SUSPECTED
    for now in range(2, 3 + int(TIMEOUT)):
        detector.look(now, left)
    assert detector.liveness("a") is Liveness.GONE
    detector.look(now + 1, {"a": member("a", 1, incarnation=2)})
    assert detector.liveness("a") is Liveness.LIVE


def test_a_refused_connection_counts_until_the_member_is_reached_or_started_again() -> None:
    detector = FailureDetector(INTERVAL, TIMEOUT)
    detector.look(0, beats(a=1))
    detector.look(1, beats(a=2))
    detector.suspect("a")
    assert detector.liveness("a") is Liveness.SUSPECTED and not list(detector.live())
    detector.look(2, beats(a=3))
    assert detector.liveness("a") is Liveness.SUSPECTED, "it writes heartbeats, and nobody has reached it"
    detector.vouch("a")
    assert detector.liveness("a") is Liveness.LIVE
    detector.suspect("a")
    again = {id: msgspec.structs.replace(found, incarnation=9) for id, found in beats(a=1).items()}
    detector.look(3, again)
    assert detector.liveness("a") is Liveness.LIVE


@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), max_size=40))
def test_a_session_ends_only_by_time_in_which_the_judge_looked(looks: list[tuple[float, bool]]) -> None:
    detector = FailureDetector(INTERVAL, TIMEOUT)
    now, beat, silent = 0.0, 1, 0.0
    detector.look(now, beats(a=beat))
    for passed, beaten in looks:
        now += passed
        beat += beaten
        gone_before = detector.liveness("a") is Liveness.GONE
        silent = 0.0 if beaten or passed > max(3 * INTERVAL, TIMEOUT / 2) else silent + passed
        detector.look(now, beats(a=beat))
        is_gone = detector.liveness("a") is Liveness.GONE
        assert not beaten or detector.liveness("a") is Liveness.LIVE
        assert gone_before or not is_gone or silent >= TIMEOUT - 1e-6


def test_a_judge_that_slept_has_looked_since_it_woke_up() -> None:
    detector = FailureDetector(interval=1.0, timeout=10.0)
    assert detector.has_looked_for(5.0) == 0
    for now in (5.0, 6.0, 7.0):
        detector.look(now, {})
    assert detector.has_looked_for(7.0) == 2
    detector.look(30.0, {})
    assert detector.has_looked_for(30.0) == 0
