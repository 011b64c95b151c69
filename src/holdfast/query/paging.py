"""Pages: the first entries of a store, merged from all its parts, up to a number of entries and of bytes.

All parts are read at the same time, each up to its share of the page. Then they are merged in order, and of a part that
has more of the page than its share, the rest is read meanwhile. So a page costs the memory of one page and of one share
per part.

A page has at least one entry, and ends between two positions: what is at the position of its last entry (a key that
several tasks have, or duplicates) is on it, too, and may be beyond the limits.
"""

import heapq
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypeVar

from holdfast.query.opening import OpenPart, OpenStores
from holdfast.query.task_reader import TooLarge
from holdfast.settings.units import format_size, shown_size
from holdfast.words import TaskId

T = TypeVar("T")

_LEAST_SHARE: Final = 1 << 20


class PageLimits(NamedTuple):
    """How much a page has at most."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class MergedPage(Generic[T]):
    """The entries of a page in order."""

    entries: list[T]
    more: bool
    """Whether there are others after them."""
    tasks: list[TaskId]
    """The tasks that have any."""


def read_page(
    opened: OpenStores,
    rows_of: Callable[[OpenPart], Generator[T, None, None]],
    limits: PageLimits,
    *,
    position: Callable[[T], Any],
    size: Callable[[T], int],
    reverse: bool = False,
    whole: bool = True,
) -> MergedPage[T]:
    """A page of the rows of all parts, each in the order of positions. Unless `whole`, it may end at any entry."""
    scans = {part: rows_of(part) for part in opened.parts}
    share = PageLimits(limits.entries + 1, max(limits.bytes // len(scans), _LEAST_SHARE))
    try:
        heads = opened.read(lambda part: first(scans[part], share, size))
        rows = heapq.merge(*map(chain, heads, scans.values()), key=position, reverse=reverse)
        page = first(rows, limits, size)
        after = next(rows, None)
        while whole and after is not None and position(after) == position(page[-1]):
            page.append(after)
            after = next(rows, None)
        tasks = [part.place.task for part, head in zip(scans, heads, strict=True) if head]
        return MergedPage(page, after is not None, tasks)
    finally:
        for scan in scans.values():
            with suppress(ValueError):  # another part has failed while this one is read, and nobody takes it any more
                scan.close()


class AnswerSize:
    """The bytes of the entries that an answer has so far, of an answer that has all of them or none.

    Several threads may add to it. One entry alone is never too large.
    """

    def __init__(self, most: int, store: str, keys: int) -> None:
        self._most, self._store, self._keys = most, store, keys
        self._lock = threading.Lock()
        self._found, self._bytes = 0, 0

    def add(self, cells: Sequence[bytes]) -> None:
        with self._lock:
            self._found += len(cells)
            self._bytes += sum(map(len, cells))
            found, size = self._found, self._bytes
        if found > 1 and size > self._most:
            raise TooLarge(
                f"The values of {self._keys} keys of store {self._store!r} have more than {format_size(self._most)} "
                f"together (rest.max_page): {found} of them have {shown_size(size)}. Ask for fewer keys at a time."
            )


def first(rows: Iterator[T], limits: PageLimits, size: Callable[[T], int]) -> list[T]:
    """The first rows, up to the one that reaches a limit.

    >>> first(iter(["abc", "de", "f"]), PageLimits(9, 4), len), first(iter("abc"), PageLimits(2, 9), len)
    (['abc', 'de'], ['a', 'b'])
    """
    found: list[T] = []
    total = 0
    for row in rows:
        found.append(row)
        total += size(row)
        if total >= limits.bytes or len(found) >= limits.entries:
            break
    return found
