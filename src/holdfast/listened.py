"""What a user can listen to in an app: its states, restores, rebalances and alerts."""

from collections.abc import Callable

from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.instance.events import RestoreEvent
from holdfast.listeners import ListenerPool
from holdfast.states import StateListener, StateMachine

RestoreListener = Callable[[RestoreEvent], object]
RebalanceListener = Callable[[RebalanceEvent], object]
AlertHook = Callable[[BaseException], object]


class Listened:
    """The state of an app, and its listeners."""

    def __init__(self) -> None:
        self._states = StateMachine()
        self._restores = ListenerPool[RestoreEvent]("restore")
        self._rebalances = ListenerPool[RebalanceEvent]("rebalance")
        self._alerts = ListenerPool[BaseException]("alert")

    def on_state(self, listener: StateListener) -> None:
        """`listener(old, new)` is called for every change of state, on a thread of its own."""
        self._states.add_listener(listener)

    def on_restore(self, listener: RestoreListener) -> None:
        """`listener(event)` is called for restores on every instance: start, batch, end, suspended."""
        self._restores.add(listener)

    def on_rebalance(self, listener: RebalanceListener) -> None:
        """`listener(event)` is called when a rebalance has started and when it is completed.

        Each event has the number of the generation, its reason, the active tasks that move, and how long it took.
        """
        self._rebalances.add(listener)

    def on_alert(self, hook: AlertHook) -> None:
        """`hook(error)` is called when the app stops for an error.

        Also, once each, when the log can't be cleaned, when a batch waits because the wall clock has jumped ahead, and
        when an instance finds that a replica isn't what the log says or that an object of the log is damaged.
        """
        self._alerts.add(hook)

    def _close_listeners(self, timeout: Callable[[], float]) -> None:
        """Waits until the listeners have handled everything, each for at most the time that is left."""
        for pool in (self._states, self._restores, self._rebalances, self._alerts):
            pool.close(timeout=timeout())


def on_rebalance(states: StateMachine, listeners: ListenerPool[RebalanceEvent]) -> Callable[[RebalanceEvent], None]:
    """What happens at an event: the listeners get it, and a running app is `rebalancing` from its start to its end."""

    def take(event: RebalanceEvent) -> None:
        listeners.publish(event)
        states.tasks_move(event.phase is RebalancePhase.STARTED)

    return take
