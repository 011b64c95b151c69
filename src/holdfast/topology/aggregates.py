"""The aggregates for `.aggregate(...)`: a function and the column it is applied to.

They are plain values. `topology.reducers` turns an aggregate into columns once the type of its input is known;
`pipeline.aggregation_plan` turns it into Spark expressions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.stores.schema.row_history import UNSTABLE_INPUT

if TYPE_CHECKING:
    from pyspark.sql import Column


_COLUMN = re.compile(r"Column<'([\w.]+)'>")
"""The text of a Spark Column that is only a name."""


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
    """One aggregate. `column` is a name, a SQL expression or a Spark Column; None means whole rows."""

    function: Function
    column: str | Column | None = None
    from_now: bool = False
    """Whether it may be added to a table that already has records. It leaves out those records."""
    name: str = field(default="", compare=False)
    """What the user calls the function, if that isn't its name."""

    @property
    def needs_time(self) -> bool:
        """Whether the result depends on the records' event times."""
        return self.function in (Function.FIRST, Function.LAST)

    @property
    def meaning(self) -> str:
        """The aggregate as text for the app's file. Aggregates with the same text compute the same.

        A Column that is more than a name becomes `...`: Spark's text of an expression differs between releases, and
        some expressions get a new number each time they are created.

        >>> Aggregate(Function.SUM, "a  +\\n b").meaning
        'sum(a + b)'
        """
        if self.column is None or isinstance(self.column, str):
            column = "*" if self.column is None else " ".join(self.column.split())
        else:
            found = _COLUMN.fullmatch(str(self.column))
            column = found[1] if found else UNSTABLE_INPUT
        return f"{self.function.value}({column})"

    def __str__(self) -> str:
        return f"{self.name or self.function.value}({'*' if self.column is None else self.column})"


def count(column: str | Column | None = None, *, from_now: bool = False) -> Aggregate:
    """The number of records; with a column, the number of records where it isn't null.

    >>> str(count()), str(count("bpm"))
    ('count(*)', 'count(bpm)')
    """
    return Aggregate(Function.COUNT, column, from_now)


def sum(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The sum, null when every value is null. A sum of whole numbers beyond 64 bits stops the app and names the key."""
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


def avg(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The same as `mean`, under the name that it has in SQL. An app may change from one to the other.

    >>> str(avg("bpm")), avg("bpm").meaning, avg("bpm") == mean("bpm")
    ('avg(bpm)', 'mean(bpm)', True)
    """
    return Aggregate(Function.MEAN, column, from_now, name="avg")


def first(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The value of the earliest record by event time, then by source position. It may be null, as in Spark."""
    return Aggregate(Function.FIRST, column, from_now)


def last(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The value of the latest record by event time, then by source position. It may be null, as in Spark."""
    return Aggregate(Function.LAST, column, from_now)
