"""Turns: how many requests one client has under way at an instance. Others wait, the one that came first has the next.

A request waits as long as it may take at the instance, then its caller asks another one. When a request got no answer,
those that wait for the same instance don't wait any longer: their callers ask another one too.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from holdfast.client.effects import Lost, Send

UNDER_WAY: Final = 8
"""The requests that one client has under way at one instance.

An instance reads as many at a time. More would only take longer: a pool of connections takes as long per request as
there are connections in it (2,000 gets: 1.05 s of CPU with 8, 1.4 s with 32, 0.9 s one by one).
"""
WAITING: Final = 32
"""The same for requests with which an instance may wait. Both together are below `rest.max_requests_per_caller`."""


class Coming(Protocol):
    """A turn to come: a future of a shell. True when the turn has come, False when the instance is lost."""

    def done(self) -> bool: ...

    def result(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...


C = TypeVar("C", bound=Coming)


@dataclass
class _Queue(Generic[C]):
    free: int
    waiting: OrderedDict[C, None] = field(default_factory=OrderedDict)


class Turns(Generic[C]):
    """The turns of one client. Any number of threads may use it."""

    def __init__(self, coming: Callable[[], C]) -> None:
        self._coming = coming
        self._queues: dict[tuple[str, bool], _Queue[C]] = {}
        """By address, those of requests with which an instance may wait apart."""
        self._lock = threading.Lock()

    def take(self, send: Send) -> C | None:
        """None if it is the turn of the request; else its turn to come, to be `settled` after waiting for it."""
        if send.first:
            return None
        with self._lock:
            queue = self._queue(send)
            if queue.free:
                queue.free -= 1
                return None
            coming = self._coming()
            queue.waiting[coming] = None
            return coming

    def has_free(self, send: Send) -> bool:
        with self._lock:
            return self._queue(send).free > 0

    def settled(self, send: Send, coming: C, waited: float) -> Send | Lost:
        """After waiting: the request with the time that it has now, if it is its turn; else why it isn't asked."""
        with self._lock:
            waiting = self._queue(send).waiting
            if coming in waiting:
                del waiting[coming]
                return _crowded(send, len(waiting))
        if coming.result():
            return _later(send, waited)
        return Lost(send.address, "not asked: another request of this client has got no answer there")

    def end(self, send: Send) -> None:
        """The request has ended; the next one has its turn."""
        if send.first:
            return
        with self._lock:
            queue = self._queue(send)
            if queue.waiting:
                queue.waiting.popitem(last=False)[0].set_result(True)
            else:
                queue.free += 1

    def lost(self, address: str) -> None:
        """A request got no answer there."""
        with self._lock:
            for waits in (False, True):
                queue = self._queues.get((address, waits))
                while queue is not None and queue.waiting:
                    queue.waiting.popitem(last=False)[0].set_result(False)

    def _queue(self, send: Send) -> _Queue[C]:
        found = self._queues.get((send.address, send.waits))
        if found is None:
            found = self._queues[send.address, send.waits] = _Queue(_most(send))
        return found


def longest_wait(send: Send) -> float:
    """How long a request waits for its turn: no longer than an instance that hangs may take."""
    return send.seconds if send.silence is None else send.silence


def _later(send: Send, waited: float) -> Send:
    """The request after it has waited: it may take the same part of the time that is left.

    >>> from holdfast.client.effects import Request
    >>> _later(Send("http://a:1", Request("/"), 5.0, in_all=10.0), 4.0).seconds
    3.0
    """
    in_all = send.seconds if send.in_all is None else send.in_all
    part = max(0.0, 1 - waited / in_all)
    silence = None if send.silence is None else send.silence * part
    return replace(send, seconds=send.seconds * part, silence=silence)


def _most(send: Send) -> int:
    return WAITING if send.waits else UNDER_WAY


def _crowded(send: Send, others: int) -> Lost:
    many = f"{_most(send)} requests of this client were under way there and {others:,} others waited"
    return Lost(send.address, f"not asked: {many}", crowded=True)
