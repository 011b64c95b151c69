"""The event clock of an app: its slowest source that isn't idle."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from holdfast.log.commits import Clocks, Commit
from holdfast.pipeline.event_clock import EventClock
from holdfast.words import Millis
from tests.pipeline.test_protocol import commit

ONE = EventClock(["games"], 60)
TWO = EventClock(["games", "chats"], 60)


def after(clock: EventClock, previous: Commit | None, wall: int, seen: Mapping[str, int]) -> Commit:
    """The commit after records with these event times."""
    return commit(1, None, clock.next(previous, Millis(wall), [seen, {}], dict.fromkeys(seen, 1)))


def test_it_is_the_largest_time_and_never_goes_back() -> None:
    first = after(ONE, None, 1, {"games": 70})
    assert (first.clocks.event, first.clocks.sources, first.clocks.last_records) == (70, {"games": 70}, {})
    assert after(ONE, first, 2, {"games": 60}).clocks.event == 70
    assert after(ONE, first, 1_000, {}).clocks.event == 70, "a single source that is idle changes nothing"


def test_it_is_that_of_the_source_furthest_behind() -> None:
    first = after(TWO, None, 1, {"games": 90, "chats": 40})
    assert first.clocks.event == 40
    second = after(TWO, first, 2, {"chats": 95})
    assert (second.clocks.event, second.clocks.sources) == (90, {"games": 90, "chats": 95})


def test_a_source_without_records_holds_it_until_it_is_idle() -> None:
    first = after(TWO, None, 1, {"games": 90})
    assert first.clocks.event is None
    assert after(TWO, first, 61, {"games": 91}).clocks.event is None
    assert after(TWO, first, 62, {"games": 92}).clocks.event == 92


def test_an_idle_source_that_returns_is_behind_and_moves_nothing_back() -> None:
    first = after(TWO, None, 1, {"games": 90, "chats": 40})
    idle = after(TWO, first, 100, {"games": 95})
    assert idle.clocks.event == 95
    back = after(TWO, idle, 101, {"chats": 50})
    assert (back.clocks.event, back.clocks.sources["chats"]) == (95, 50)
    assert after(TWO, back, 102, {"games": 99}).clocks.event == 95, "chats holds it again"


def test_a_source_is_not_idle_because_the_app_was_down() -> None:
    first = after(TWO, None, 1, {"games": 90, "chats": 40})
    later = EventClock(["games", "chats"], 60, since=1_000)
    assert later.moves_at(first.clocks) is None
    second = after(later, first, 1_001, {"games": 95})
    assert second.clocks.event == 40, "a batch that was repeated after the start had no chats"
    assert later.moves_at(second.clocks) == 1_061
    assert after(later, second, 1_061, {}).clocks.event == 95


def test_sources_that_become_idle_shortly_after_each_other() -> None:
    """A quiet app may make its version a moment after both are."""
    first = after(TWO, None, 1, {"chats": 40})
    second = after(TWO, first, 2, {"games": 90})
    assert [after(TWO, second, wall, {}).clocks.event for wall in (61, 62, 63, 1_000)] == [40, 90, 90, 90]
    assert EventClock(["chats", "bets"], 60).moves_at(second.clocks) is None, "games is no source any more"


def test_an_added_source_holds_it_until_it_is_idle() -> None:
    first = after(TWO, None, 1, {"games": 90, "chats": 40})
    three = EventClock(["games", "chats", "bets"], 60)
    assert three.moves_at(first.clocks) is None
    assert after(three, first, 2, {"games": 91, "chats": 91}).clocks.event == 40


def test_a_removed_source_does_not_hold_it_back() -> None:
    first = after(TWO, None, 1, {"games": 90, "chats": 40})
    assert after(ONE, first, 2, {"games": 91}).clocks.event == 91


def test_a_quiet_app_knows_when_a_source_becomes_idle() -> None:
    first = after(TWO, None, 1, {"games": 90, "chats": 40})
    assert TWO.moves_at(first.clocks) is None, "both become idle at the same time"
    second = after(TWO, first, 30, {"games": 95})
    assert TWO.moves_at(second.clocks) == 62
    assert after(TWO, second, 62, {}).clocks.event == 95
    assert ONE.moves_at(after(ONE, None, 1, {"games": 9}).clocks) is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.dictionaries(st.sampled_from(["games", "chats"]), st.integers(0, 99))))
)
def test_whatever_arrives_it_never_goes_back_and_moves_when_it_said(batches: list[tuple[int, dict[str, int]]]) -> None:
    newest: Commit | None = None
    wall = 0
    for passed, seen in batches:
        wall += passed
        if newest is not None and (moves := TWO.moves_at(newest.clocks)) is not None:
            assert TWO.next(newest, Millis(moves - 1), [], {}).event == newest.clocks.event
            assert TWO.next(newest, moves, [], {}).event != newest.clocks.event
        made = after(TWO, newest, wall, seen)
        before = newest.clocks.event if newest else None
        assert before is None or (made.clocks.event is not None and made.clocks.event >= before)
        newest = made


def test_clocks_without_several_sources_take_no_room() -> None:
    assert Clocks(1, None, {}) == Clocks(1, None, {}, {})
