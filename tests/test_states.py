"""States and listeners: only allowed transitions happen, and no listener can block one."""

import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import metrics
from holdfast.listeners import ListenerPool
from holdfast.states import TRANSITIONS, AppState, IllegalTransition, StateMachine

TIMEOUT = 10.0


def at(state: AppState) -> StateMachine:
    """A state machine in this state, reached by the shortest path."""
    paths: dict[AppState, list[AppState]] = {AppState.CREATED: []}
    queue = [AppState.CREATED]
    for here in queue:
        for there in sorted(TRANSITIONS[here], key=str):
            if there not in paths:
                paths[there] = [*paths[here], there]
                queue.append(there)
    machine = StateMachine()
    for step in paths[state]:
        machine.move(step)
    return machine


@pytest.mark.parametrize("old", AppState)
@pytest.mark.parametrize("new", AppState)
def test_every_transition_is_allowed_or_refused(old: AppState, new: AppState) -> None:
    machine = at(old)
    if new in TRANSITIONS[old] or new is old:
        machine.move(new)
        assert machine.state is new
    else:
        assert not machine.try_move(new)
        with pytest.raises(IllegalTransition, match=f"{old} can't become {new}"):
            machine.move(new)
        assert machine.state is old


def test_every_state_can_be_reached_and_only_final_ones_have_no_successor() -> None:
    assert set(TRANSITIONS) == set(AppState)
    assert all(at(state).state is state for state in AppState)
    assert {state for state, moves in TRANSITIONS.items() if not moves} == {AppState.STOPPED, AppState.ERROR}
    assert all(AppState.ERROR in moves for moves in TRANSITIONS.values() if moves)


@given(st.lists(st.sampled_from(AppState), max_size=30))
def test_listeners_get_every_transition_in_order(wishes: Sequence[AppState]) -> None:
    machine, received = StateMachine(), list[tuple[AppState, AppState]]()
    machine.add_listener(lambda old, new: received.append((old, new)))
    states = [machine.state]
    for wish in wishes:
        if machine.try_move(wish) and wish is not states[-1]:
            states.append(wish)
    assert machine.close(TIMEOUT)
    assert received == list(pairwise(states))


def test_an_app_that_starts_or_is_resumed_while_tasks_move_is_rebalancing_until_they_have_arrived() -> None:
    machine, seen = StateMachine(), list[AppState]()
    machine.add_listener(lambda old, new: seen.append(new))
    machine.move(AppState.RESTORING)
    machine.tasks_move(True)
    assert str(machine.state) == "restoring", "there was nothing to move from"
    machine.move(AppState.RUNNING)
    assert str(machine.state) == "rebalancing"
    machine.tasks_move(False)
    assert str(machine.state) == "running"
    machine.move(AppState.PAUSED)
    machine.tasks_move(True)
    assert str(machine.state) == "paused"
    machine.move(AppState.RUNNING)
    assert str(machine.state) == "rebalancing"
    machine.move(AppState.PAUSED)
    machine.tasks_move(False)
    machine.move(AppState.RUNNING)
    assert str(machine.state) == "running"
    assert machine.close(TIMEOUT)
    running, moving, paused = AppState.RUNNING, AppState.REBALANCING, AppState.PAUSED
    assert seen == [AppState.RESTORING, running, moving, running, paused, running, moving, paused, running]


def test_the_cause_of_an_error_is_kept() -> None:
    machine, cause = StateMachine(), OSError("disk on fire")
    machine.move(AppState.ERROR, cause)
    assert machine.cause is cause


def test_waiting_ends_when_the_state_is_reached_or_unreachable() -> None:
    machine = at(AppState.RESTORING)
    found: list[bool] = []
    waiter = threading.Thread(target=lambda: found.append(machine.wait_for(AppState.RUNNING, timeout=TIMEOUT)))
    waiter.start()
    machine.move(AppState.RUNNING)
    waiter.join(TIMEOUT)
    assert found == [True]

    machine.move(AppState.ERROR)
    assert not machine.wait_for(AppState.RUNNING, timeout=TIMEOUT)


def test_the_state_is_a_metric() -> None:
    at(AppState.RUNNING)
    assert metrics.value("holdfast_app_state", state="running") == 1
    assert metrics.value("holdfast_app_state", state="created") == 0


def test_a_listener_that_raises_is_counted_and_gets_the_next_event() -> None:
    pool, received = ListenerPool[int]("raising"), list[int]()

    def listener(number: int) -> None:
        received.append(number)
        raise ValueError(number)

    before = metrics.value("holdfast_listener_errors_total", listener=f"raising:{listener.__qualname__}")
    pool.add(listener)
    for number in range(3):
        pool.publish(number)
    assert pool.close(TIMEOUT)
    assert received == [0, 1, 2]
    after = metrics.value("holdfast_listener_errors_total", listener=f"raising:{listener.__qualname__}")
    assert after - before == 3


def test_a_listener_that_hangs_blocks_nothing_else() -> None:
    machine, forever, received = StateMachine(), threading.Event(), threading.Event()
    machine.add_listener(lambda old, new: forever.wait())
    machine.add_listener(lambda old, new: received.set())
    machine.move(AppState.RESTORING)
    assert received.wait(TIMEOUT)
    assert not machine.close(timeout=0.01)
    forever.set()


def test_a_slow_listener_loses_the_oldest_events_which_are_counted() -> None:
    pool, release, started, received = ListenerPool[int]("slow", 5), threading.Event(), threading.Event(), list[int]()

    def listener(number: int) -> None:
        started.set()
        release.wait(TIMEOUT)
        received.append(number)

    pool.add(listener)
    pool.publish(0)
    assert started.wait(TIMEOUT)
    for number in range(1, 11):
        pool.publish(number)
    release.set()
    assert pool.close(TIMEOUT)
    assert received == [0, 6, 7, 8, 9, 10]
    assert metrics.value("holdfast_listener_dropped_events_total", listener=f"slow:{listener.__qualname__}") == 5


def test_a_listener_may_close_the_pool_that_calls_it() -> None:
    pool, closed = ListenerPool[int]("self"), threading.Event()

    def listener(_: int) -> None:
        pool.close(TIMEOUT)
        closed.set()

    pool.add(listener)
    pool.publish(1)
    assert closed.wait(TIMEOUT)


def test_listeners_get_no_events_after_close() -> None:
    pool, received = ListenerPool[int]("closed"), list[int]()
    pool.add(received.append)
    assert pool.close(TIMEOUT)
    pool.publish(1)
    assert received == []
