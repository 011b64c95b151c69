"""Scans: iterators over entries that can be closed early, and batches of their rows."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
D = TypeVar("D")


class Closing(Generic[T]):
    """An iterator that can be closed before its end, also within a loop over it, which then ends.

    >>> with Closing(iter([1, 2, 3])) as numbers: next(numbers)
    1
    >>> list(numbers)
    []
    """

    __slots__ = ("_current", "_rows", "_source")

    def __init__(self, rows: Iterator[T], source: Iterator[Any] | None = None, current: Sequence[list[T]] = ()) -> None:
        self._rows = rows
        self._source = rows if source is None else source
        self._current = current
        """The lists that are being iterated: emptying them ends the iteration."""

    @classmethod
    def of_list(cls, rows: list[T]) -> "Closing[T]":
        """Rows that were read already. The list belongs to the iterator from here on."""
        return cls(iter(rows), current=(rows,))

    @classmethod
    def of_batches(cls, batches: Iterator[list[T]]) -> "Closing[T]":
        """The rows of batches; within a batch no Python runs between two rows."""
        current: list[list[T]] = []
        source = _noted(batches, current)
        return cls(itertools.chain.from_iterable(source), source, current)

    @staticmethod
    def of_columns(columns: Iterator[tuple[list[A], list[B]]]) -> "Closing[tuple[A, B]]":
        """The same for batches in two columns, as pairs. Lists of pairs would take 15 % longer."""
        current: list[list[Any]] = []
        source = _zipped(columns, current)
        return Closing(itertools.chain.from_iterable(source), source, current)

    def __iter__(self) -> Iterator[T]:
        return self._rows  # so a `for` loop iterates over the rows themselves

    def __next__(self) -> T:
        return next(self._rows)

    def close(self) -> None:
        close(self._source)
        for rows in self._current:
            rows.clear()
        self._rows = self._source = iter(())  # a scan that was never started is closed when nothing refers to it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _noted(batches: Iterator[list[T]], current: list[list[T]]) -> Iterator[list[T]]:
    """The same batches; `current` has the last one."""
    try:
        for batch in batches:
            current[:] = [batch]
            yield batch
    finally:
        close(batches)


def _zipped(columns: Iterator[tuple[list[A], list[B]]], current: list[list[Any]]) -> Iterator[Iterable[tuple[A, B]]]:
    """The rows of each pair of columns; `current` has the last pair."""
    try:
        for firsts, seconds in columns:
            current[:] = (firsts, seconds)
            yield zip(firsts, seconds, strict=True)
    finally:
        close(columns)


FIRST_ROWS, ROWS = 64, 512
"""How many entries are decoded at a time, first and at most: a dozen at once cost little more than one alone."""


def batches(rows: Iterator[T]) -> Iterator[list[T]]:
    """The rows in lists. The rows are closed after the last one, or when the batches are closed.

    >>> [len(batch) for batch in batches(iter(range(600)))]
    [64, 128, 256, 152]
    """
    size = FIRST_ROWS
    try:
        while batch := list(itertools.islice(rows, size)):
            yield batch
            if len(batch) < size:
                return
            size = min(ROWS, 2 * size)
    finally:
        close(rows)


def columns(rows: Iterator[tuple[T, D]]) -> Iterator[tuple[Sequence[T], Sequence[D]]]:
    """The same as pairs of sequences: the first and the second parts of the rows of a batch.

    >>> list(columns(iter([(1, "a"), (2, "b")])))
    [((1, 2), ('a', 'b'))]
    """
    for batch in batches(rows):
        firsts, seconds = zip(*batch, strict=True)
        yield firsts, seconds


def chained(scans: Iterable[Iterator[T]]) -> Iterator[T]:
    """The rows of several scans, one scan after the other. All are closed at the end.

    >>> list(chained([iter([1, 2]), iter([3])]))
    [1, 2, 3]
    """
    scans = list(scans)
    try:
        for rows in scans:
            yield from rows
    finally:
        for rows in scans:
            close(rows)


def close(rows: Iterator[Any]) -> None:
    """Closes an iterator that can be closed: a generator, or an engine's own."""
    closing = getattr(rows, "close", None)
    if closing is not None:
        closing()
