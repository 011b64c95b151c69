"""The states of an app and the transitions between them.

                             ┌──► PAUSED ◄────┐
                             ▼       │        │
    CREATED ──► RESTORING ──► RUNNING ◄──► REBALANCING
       │            │            │   │         │
       └────────────┴────────────┴───┴─────────┴──► STOPPING ──► STOPPED        from every state but STOPPED ──► ERROR

STOPPED and ERROR are final: such an app can't be started again; create a new one. In Kafka Streams STOPPING is called
PENDING_SHUTDOWN, STOPPED is NOT_RUNNING, and RESTORING is a part of its REBALANCING. While an app is REBALANCING an
active task moves or restores; batches and queries go on. While it is PAUSED no batch is started, and queries go on; it
stays PAUSED if tasks move meanwhile. One that starts to run, or is resumed, before they have arrived is REBALANCING
then. At its first start there is no generation yet: it is RESTORING until each task can be read.
"""

import threading
from collections.abc import Callable
from enum import Enum

from holdfast import metrics
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.listeners import ListenerPool

_state = metrics.gauge("holdfast_app_state", "1 for the current state of the app, 0 for the others.", ["state"])


class AppState(Enum):
    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    REBALANCING = "rebalancing"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


TRANSITIONS: dict[AppState, frozenset[AppState]] = {
    AppState.CREATED: frozenset({AppState.RESTORING, AppState.STOPPING, AppState.ERROR}),
    AppState.RESTORING: frozenset({AppState.RUNNING, AppState.STOPPING, AppState.ERROR}),
    AppState.RUNNING: frozenset({AppState.REBALANCING, AppState.PAUSED, AppState.STOPPING, AppState.ERROR}),
    AppState.REBALANCING: frozenset({AppState.RUNNING, AppState.PAUSED, AppState.STOPPING, AppState.ERROR}),
    AppState.PAUSED: frozenset({AppState.RUNNING, AppState.STOPPING, AppState.ERROR}),
    AppState.STOPPING: frozenset({AppState.STOPPED, AppState.ERROR}),
    AppState.STOPPED: frozenset(),
    AppState.ERROR: frozenset(),
}

ACTIVE = (AppState.RESTORING, AppState.RUNNING, AppState.REBALANCING, AppState.PAUSED)

StateListener = Callable[[AppState, AppState], object]


class IllegalTransition(HoldfastError):
    """A transition that isn't in TRANSITIONS."""

    category = ErrorCategory.INVALID

    def __init__(self, old: AppState, new: AppState) -> None:
        allowed = ", ".join(sorted(map(str, TRANSITIONS[old]))) or "none: create a new app"
        super().__init__(f"An app that is {old} can't become {new}. From {old} it can become: {allowed}.")


class NotStarted(HoldfastError):
    category = ErrorCategory.INVALID


class AppPaused(HoldfastError):
    """What was called would wait until the app is resumed."""

    category = ErrorCategory.INVALID


class AppStopped(HoldfastError):
    category = ErrorCategory.CLOSED


class AlreadyStarted(HoldfastError):
    """An app starts once. A running one goes on."""

    category = ErrorCategory.INVALID

    def __init__(self, app: str, state: AppState) -> None:
        if state in ACTIVE:
            does = f"App {app!r} is already {state}, and start() has changed nothing."
            super().__init__(f"{does} Use it as it is, or call app.stop() and start a new hf.App({app!r}).")
        else:
            does = f"App {app!r} has the state {state}, and an app starts only once."
            stop = "Start" if state is AppState.STOPPED else "Call app.stop() and start"
            super().__init__(f"{does} {stop} a new hf.App({app!r}): it continues from the log.")


class StateMachine:
    """The state of one app. Any thread may read it, change it and wait for it.

    >>> machine = StateMachine()
    >>> machine.move(AppState.RESTORING); machine.move(AppState.RUNNING); machine.state
    <AppState.RUNNING: 'running'>
    >>> machine.move(AppState.CREATED)
    Traceback (most recent call last):
    ...
    holdfast.states.IllegalTransition: An app that is running can't become created. From running it can become: error, \
paused, rebalancing, stopping.
    """

    def __init__(self) -> None:
        self._state = AppState.CREATED
        self._cause: BaseException | None = None
        self._tasks_move = False
        self._changed = threading.Condition()
        self._listeners = ListenerPool[AppState, AppState]("state")
        self._publish()

    @property
    def state(self) -> AppState:
        return self._state

    @property
    def cause(self) -> BaseException | None:
        """Why the state is ERROR."""
        return self._cause

    def add_listener(self, listener: StateListener) -> None:
        """Calls `listener(old, new)` after every transition from now on, on its own thread."""
        self._listeners.add(listener)

    def move(self, new: AppState, cause: BaseException | None = None) -> None:
        """Changes the state to `new`, or raises IllegalTransition. Does nothing if that is the state already."""
        with self._changed:
            old = self._state
            if new is old:
                return
            if new not in TRANSITIONS[old]:
                raise IllegalTransition(old, new)
            self._state, self._cause = new, cause
            self._publish()
            self._listeners.publish(old, new)  # under the lock, so that listeners get transitions in order
            self._changed.notify_all()
            if new is AppState.RUNNING and self._tasks_move:
                self.move(AppState.REBALANCING)

    def try_move(self, new: AppState, cause: BaseException | None = None) -> bool:
        """Changes the state to `new` if that is allowed. Returns whether this call has changed it."""
        with self._changed:
            if new not in TRANSITIONS[self._state]:
                return False
            self.move(new, cause)
            return True

    def tasks_move(self, moving: bool) -> None:
        """Active tasks move or restore from now on, or no longer. An app that runs is REBALANCING meanwhile."""
        with self._changed:
            self._tasks_move = moving
            if moving:
                self.try_move(AppState.REBALANCING)
            elif self._state is AppState.REBALANCING:
                self.move(AppState.RUNNING)

    def wait_for(self, *states: AppState, timeout: float | None = None) -> bool:
        """Waits until the state is one of `states`. False if that can no longer happen, or after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._state in states or not TRANSITIONS[self._state], timeout)
            return self._state in states

    def close(self, timeout: float = 1.0) -> bool:
        """Waits until the listeners have handled all transitions; True if they have."""
        return self._listeners.close(timeout)

    def _publish(self) -> None:
        for state in AppState:
            _state.labels(str(state)).set(state is self._state)
