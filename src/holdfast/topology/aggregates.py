"""The aggregates a user names in `.aggregate(...)`: what to compute of which column.

They are plain values. `topology.reducers` turns one into columns once the type of its input is known, and
`pipeline.aggregation_plan` into Spark expressions. One with `from_now=True` may be added to a table that has records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.stores.schema.history import UNTOLD

if TYPE_CHECKING:
    from pyspark.sql import Column


_COLUMN = re.compile(r"Column<'[\w.]+'>")
"""How Spark writes a Column that is nothing but a name."""


class Function(Enum):
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of one column; `column` is a name, a SQL expression or a Spark Column. None: whole rows."""

    function: Function
    column: str | Column | None = None
    from_now: bool = False
    """Whether it may be added to a table that has records already: it then leaves those out."""

    @property
    def needs_time(self) -> bool:
        """Whether which record wins depends on event time."""
        return self.function in (Function.FIRST, Function.LAST)

    @property
    def meaning(self) -> str:
        """What is computed of what, as the app's file keeps it: two starts with the same meaning count the same.

        A Column that is more than a name stands as `...`: how Spark writes an expression differs from release to
        release, and some are numbered anew each time they are made.

        >>> Aggregate(Function.SUM, "a  +\\n b").meaning
        'sum(a + b)'
        """
        if self.column is None or isinstance(self.column, str):
            told = "*" if self.column is None else " ".join(self.column.split())
        else:
            text = str(self.column)
            told = text.removeprefix("Column<'").removesuffix("'>") if _COLUMN.fullmatch(text) else UNTOLD
        return f"{self.function.value}({told})"

    def __str__(self) -> str:
        return f"{self.function.value}({'*' if self.column is None else self.column})"


def count(column: str | Column | None = None, *, from_now: bool = False) -> Aggregate:
    """How many records; of a column, how many where it isn't null.

    >>> str(count()), str(count("bpm"))
    ('count(*)', 'count(bpm)')
    """
    return Aggregate(Function.COUNT, column, from_now)


def sum(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The sum, null when every value is null. Whole numbers that leave 64 bits stop the app with the key."""
    return Aggregate(Function.SUM, column, from_now)


def min(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The smallest value; nulls don't count and NaN is larger than every number, as in Spark."""
    return Aggregate(Function.MIN, column, from_now)


def max(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The largest value; nulls don't count and NaN is larger than every number, as in Spark."""
    return Aggregate(Function.MAX, column, from_now)


def mean(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The average of the values that aren't null: a double, or for decimals a decimal with four more digits."""
    return Aggregate(Function.MEAN, column, from_now)


def first(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The value of the earliest record by event time, then by source position. It may be null, as in Spark."""
    return Aggregate(Function.FIRST, column, from_now)


def last(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The value of the latest record by event time, then by source position. It may be null, as in Spark."""
    return Aggregate(Function.LAST, column, from_now)
