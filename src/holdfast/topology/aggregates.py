"""The aggregates for `.aggregate(...)`: a function and the column it is applied to.

They are plain values. `topology.reducers` turns an aggregate into columns once the type of its input is known;
`pipeline.aggregation_plan` turns it into Spark expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.errors import TopologyError
from holdfast.stores.schema.row_history import UNSTABLE_INPUT

if TYPE_CHECKING:
    from pyspark.sql import Column

MOST_COLLECTED = 10_000
"""The largest limit of collected values."""

MOST_FREQUENT = 1000
"""The largest `n` of frequent values."""

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
    APPROX_COUNT_DISTINCT = "approx_count_distinct"
    APPROX_QUANTILE = "approx_quantile"
    FREQUENT = "frequent"
    COLLECT = "collect"


SKETCHES = frozenset({Function.APPROX_COUNT_DISTINCT, Function.APPROX_QUANTILE, Function.FREQUENT})
"""The functions whose results are estimates from a sketch."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate. `column` is a name, a SQL expression or a Spark Column; None means whole rows."""

    function: Function
    column: str | Column | None = None
    from_now: bool = False
    """Whether it may be added to a table that already has records. It leaves out those records."""
    name: str = field(default="", compare=False)
    """What the user calls the function, if that isn't its name."""
    parameters: tuple[float, ...] = ()
    """The ranks of quantiles, or how many values are wanted."""
    several: bool = False
    """Whether quantiles were asked for as a list, so that the result is one, too."""

    @property
    def needs_time(self) -> bool:
        """Whether the result depends on the records' event times."""
        return self.function in (Function.FIRST, Function.LAST, Function.COLLECT)

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
        return f"{self.function.value}({column}{self._further()})"

    def __str__(self) -> str:
        column = "*" if self.column is None else self.column
        return f"{self.name or self.function.value}({column}{self._further()})"

    def _further(self) -> str:
        if not self.parameters:
            return ""
        numbers = ", ".join(f"{number:g}" for number in self.parameters)
        return f", [{numbers}]" if self.several else f", {numbers}"


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
    """The value of the earliest record by event time, then by source position. It may be null, as in Spark.

    Several first values of one `aggregate()` are those of one record, also where records have the same time.
    """
    return Aggregate(Function.FIRST, column, from_now)


def last(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """The value of the latest record by event time, then by source position. It may be null, as in Spark.

    Several last values of one `aggregate()` are those of one record, also where records have the same time.
    """
    return Aggregate(Function.LAST, column, from_now)


def approx_count_distinct(column: str | Column, *, from_now: bool = False) -> Aggregate:
    """About how many different values there are: a standard error of 1.6 %. Nulls don't count."""
    return Aggregate(Function.APPROX_COUNT_DISTINCT, column, from_now)


def approx_quantile(column: str | Column, ranks: float | Iterable[float], *, from_now: bool = False) -> Aggregate:
    """About the value below which this share of the values lies: a double, or for several ranks a JSON list of them.

    Its rank is wrong by 0.7 % at most in 99 of 100 cases. Nulls and NaN don't count; without a value it is null.

    >>> str(approx_quantile("ms", 0.99)), str(approx_quantile("ms", [0.5, 0.99]))
    ('approx_quantile(ms, 0.99)', 'approx_quantile(ms, [0.5, 0.99])')
    """
    several = not isinstance(ranks, int | float)
    chosen = tuple(float(rank) for rank in (ranks if isinstance(ranks, Iterable) else (ranks,)))
    if not chosen or not all(0 <= rank <= 1 for rank in chosen):
        raise TopologyError(f"approx_quantile({column!r}, {ranks!r}): a rank is a number from 0 to 1, such as 0.99.")
    return Aggregate(Function.APPROX_QUANTILE, column, from_now, parameters=chosen, several=several)


def frequent(column: str | Column, n: int, *, from_now: bool = False) -> Aggregate:
    """About the `n` most frequent values with their counts, as JSON: `[{"value": "a", "count": 7}]`. Nulls don't count.

    Exact up to about 256 different values per key. With more, a count may be too small by up to 0.7 % of the records.
    """
    if not 1 <= n <= MOST_FREQUENT:
        raise TopologyError(f"frequent({column!r}, {n!r}): n is a whole number from 1 to {MOST_FREQUENT}.")
    return Aggregate(Function.FREQUENT, column, from_now, parameters=(n,))


def collect(column: str | Column, limit: int = 100, *, from_now: bool = False) -> Aggregate:
    """The last `limit` values by event time, then by source position, as a JSON list, earliest first.

    Nulls don't count.

    >>> str(collect("points", limit=5))
    'collect(points, 5)'
    """
    if not 1 <= limit <= MOST_COLLECTED:
        raise TopologyError(f"collect({column!r}, limit={limit!r}): limit is a number from 1 to {MOST_COLLECTED}.")
    return Aggregate(Function.COLLECT, column, from_now, parameters=(limit,))
