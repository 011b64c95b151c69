"""Whether anyone still waits for the answer that is being read.

A thread can't be ended from outside. So what reads many entries asks here now and then, and stops when the client has
left or the deadline of the request has passed: its views are closed, and the thread is free. Outside of a request
everything is wanted.
"""

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from holdfast.errors import ErrorCategory, HoldfastError

T = TypeVar("T")


class NobodyWaits(HoldfastError):
    """The answer that is being read isn't wanted any more."""

    category = ErrorCategory.CLOSED


class LiveRequest:
    """One request, as those who read for it see it."""

    def __init__(self) -> None:
        self.ended = False


_request: ContextVar[LiveRequest | None] = ContextVar("holdfast-request", default=None)


def begin() -> LiveRequest:
    """Called for each request, in the context in which it is answered."""
    waiting = LiveRequest()
    _request.set(waiting)
    return waiting


def check_wanted() -> None:
    """Raises if nobody waits for the answer any more."""
    waiting = _request.get()
    if waiting is not None and waiting.ended:
        raise NobodyWaits("the client has left, or the deadline of its request has passed. Nothing has to be done.")


def while_wanted(items: Iterable[T]) -> Iterator[T]:
    """The items, up to the moment when nobody waits for them.

    >>> list(while_wanted("abc"))
    ['a', 'b', 'c']
    """
    for item in items:
        check_wanted()
        yield item
