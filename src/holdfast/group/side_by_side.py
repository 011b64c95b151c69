"""Calls that wait for the network, side by side. Where only one thread may run, `map` does the same one by one."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

AT_ONCE = 16

A = TypeVar("A")
B = TypeVar("B")


class Map(Protocol):
    """Calls a function with each of some things; the answers are in their order."""

    def __call__(self, call: Callable[[A], B], things: Sequence[A], /) -> Iterable[B]: ...


def side_by_side(call: Callable[[A], B], things: Sequence[A]) -> list[B]:
    """Up to `AT_ONCE` calls at a time. An error of one is raised when all have ended.

    >>> side_by_side(abs, [-1, 2])
    [1, 2]
    """
    if len(things) < 2:
        return [call(each) for each in things]
    with ThreadPoolExecutor(min(AT_ONCE, len(things)), thread_name_prefix="holdfast-group") as pool:
        return list(pool.map(call, things))
