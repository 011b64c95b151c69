"""The three plans of an aggregation's batch, and the columns that its tasks get."""

from dataclasses import dataclass
from enum import Enum

DEAD, LATE, ROWS, TIME, PANE, MICROS = "_dead", "_late", "_rows", "_time", "_pane", "t"
RECORD = "_record"
OF_SOURCE = "_of"
"""The column of a merged stream's records with the number of their source, null for the records of an output."""

Clocks = tuple[tuple[str, str], ...]
"""The columns by which the clocks of sources move: (source, column with event times in milliseconds)."""


class BatchPlan(Enum):
    """How a batch becomes one row per key. The resulting state is the same."""

    GROUPED = "grouped"
    """Aggregated in the JVM before and after the shuffle. Best where records share keys."""
    RAW = "raw"
    """Shuffled record by record and aggregated in the task, as columns. Best where few records share a key: Spark's
    aggregation would take a third of the batch's time and hardly reduce the rows."""
    WITH_DEAD_LETTERS = "with-dead-letters"
    """Grouped, with unusable records as groups of their own."""


@dataclass(frozen=True)
class TaskColumns:
    """The names of the columns of a task."""

    keys: tuple[str, ...]
    partials: tuple[str, ...]
    rows: str
    """The column with the number of records per row: an extra one, or a partial `count()`."""
    time: str | None
    """The latest event time in milliseconds; None for a stream without one."""
    clocks: Clocks = ()
    sources: tuple[str, ...] = ()
    """The sources of a merged stream, by their numbers: tasks count the records of each."""
    bounded: bool = False
    """Whether no row can be large. Keys have a maximum length, so only partials matter."""
    dead: bool = True
    """Whether unusable records have a column. Without it they are rows without a key."""
    inputs: tuple[str | None, ...] | None = None
    """For raw records: the column each reducer aggregates, None for one that counts rows."""
    pane: str | None = None
    """In a windowed aggregation: the time by which records are grouped besides their key."""
    record: str | None = None
    """Where each record is a row of its own: its number, by which records of the same time are ordered."""
    late: bool = False
    """Whether late records have a column, as unusable ones have in `dead`."""
    order: tuple[str, ...] = ()
    """For raw records of a first or last value: the event time in microseconds, and the source position. Such records
    come without the time in milliseconds: it follows from this one."""

    @property
    def times(self) -> list[str]:
        """The columns with event times."""
        return list(dict.fromkeys([*([self.time] if self.time else []), *(column for _, column in self.clocks)]))

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns by which records become one row."""
        return self.keys if self.pane is None else (*self.keys, self.pane)


def number_of(source: int) -> str:
    """The column of a group with the number of its records from a source."""
    return f"_n{source}"
