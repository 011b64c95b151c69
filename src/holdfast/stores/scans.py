"""Scans: iterators over entries that can be closed early, and batches of their rows."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
D = TypeVar("D")


class Closing(Generic[T]):
    """An iterator that can be closed before its end.

    >>> with Closing(iter([1, 2, 3])) as numbers: next(numbers)
    1
    >>> list(numbers)
    []
    """

    __slots__ = ("_rows", "_source")

    def __init__(self, rows: Iterator[T], source: Iterator[Any] | None = None) -> None:
        self._rows = rows
        self._source = rows if source is None else source

    @classmethod
    def of_batches(cls, batches: Iterator[Iterable[T]], source: Iterator[Any] | None = None) -> "Closing[T]":
        """The rows of batches; between two batches no Python runs."""
        return cls(itertools.chain.from_iterable(batches), batches if source is None else source)

    def __iter__(self) -> Iterator[T]:
        return self._rows  # so a `for` loop iterates over the scan itself

    def __next__(self) -> T:
        return next(self._rows)

    def close(self) -> None:
        close(self._source)
        self._rows = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FIRST_ROWS, ROWS = 64, 512
"""How many entries are decoded at a time, first and later: a dozen at once cost little more than one alone."""


def batches(rows: Iterator[T]) -> Iterator[list[T]]:
    """The rows in lists. The rows are closed after the last one, or when the batches are closed.

    >>> [len(batch) for batch in batches(iter(range(600)))]
    [64, 512, 24]
    """
    size = FIRST_ROWS
    try:
        while batch := list(itertools.islice(rows, size)):
            yield batch
            if len(batch) < size:
                return
            size = ROWS
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


def close(rows: Iterator[Any]) -> None:
    """Closes an iterator that can be closed: a generator, or an engine's own."""
    closing = getattr(rows, "close", None)
    if closing is not None:
        closing()
