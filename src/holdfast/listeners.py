"""Listeners: a user's functions that are called with events and can't block the app.

Every listener has its own thread and queue. Publishing an event puts it into the queues and never waits. If a listener
raises, the error is logged and the listener gets the next event; if it is too slow, it loses the oldest events, which
are counted. A listener gets events in the order they were published.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVarTuple

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import USER_ERRORS

Event = TypeVarTuple("Event")

QUEUE_LENGTH = 10_000

_log = logging.getLogger(__name__)
_errors = metrics.counter("holdfast_listener_errors", "Calls of listeners that raised.", ["listener"])
_dropped = metrics.counter("holdfast_listener_dropped_events", "Events that a slow listener lost.", ["listener"])


class ListenerPool(Generic[*Event]):
    """The listeners of one type of event.

    >>> pool = ListenerPool[str, int]("example")
    >>> pool.add(lambda name, size: print(name, size))
    >>> pool.publish("fish", 3)
    >>> pool.close(timeout=5)
    fish 3
    True
    """

    def __init__(self, name: str, queue_length: int = QUEUE_LENGTH) -> None:
        self._name = name
        self._queue_length = queue_length
        self._lock = threading.Lock()
        self._listeners: list[_Listener[*Event]] = []
        self._closed = False

    def add(self, listener: Callable[[*Event], object]) -> None:
        """Calls `listener` with every event from now on."""
        with self._lock:
            self._listeners.append(_Listener(self._name, listener, self._queue_length))

    def publish(self, *event: *Event) -> None:
        """Sends an event to all listeners without waiting for them. Does nothing after `close`."""
        with self._lock:
            if not self._closed:
                for listener in self._listeners:
                    listener.put(event)

    def close(self, timeout: float = 1.0) -> bool:
        """Accepts no more events and waits up to `timeout` seconds for the listeners. True if all are done."""
        with self._lock:
            self._closed = True
            listeners = list(self._listeners)
        deadline = SYSTEM_CLOCK.monotonic() + timeout
        done = [listener.finish(max(0.0, deadline - SYSTEM_CLOCK.monotonic())) for listener in listeners]
        return all(done)


class _Listener(Generic[*Event]):
    def __init__(self, pool: str, call: Callable[[*Event], object], queue_length: int) -> None:
        self._call = call
        self._name = f"{pool}:{getattr(call, '__qualname__', type(call).__name__)}"
        self._events: deque[tuple[*Event]] = deque()
        self._queue_length = queue_length
        self._changed = threading.Condition()
        self._finishing = False
        self._warned = False
        # A daemon, since a listener that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"listener-{self._name}", daemon=True)
        self._thread.start()

    def put(self, event: tuple[*Event]) -> None:
        with self._changed:
            self._events.append(event)
            if len(self._events) > self._queue_length:
                self._events.popleft()
                _dropped.labels(self._name).inc()
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "listener %s is %d events behind and loses the oldest ones. Make it return faster, for example "
                        "by passing events to a queue of its own.",
                        self._name,
                        self._queue_length,
                    )
            self._changed.notify()

    def finish(self, timeout: float) -> bool:
        with self._changed:
            self._finishing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # a listener may stop the app
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._call(*event)
            except USER_ERRORS:  # a user's function may raise anything
                _errors.labels(self._name).inc()
                _log.exception("listener %s raised an error; it still gets the next event", self._name)

    def _next(self) -> tuple[*Event] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._finishing)
            return self._events.popleft() if self._events else None
