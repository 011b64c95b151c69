"""Which columns a table's tasks get, and by which of three plans the rows come to them."""

from dataclasses import dataclass
from enum import Enum

DEAD, ROWS, TIME = "_dead", "_rows", "_time"


class BatchPlan(Enum):
    """How a batch becomes one row per key. The state is the same by all three."""

    GROUPED = "grouped"
    """Aggregated in the JVM before and after the exchange. Right where records share keys."""
    RAW = "raw"
    """Exchanged record by record and aggregated in the task, as columns. Right where few records share a key: Spark's
    aggregation is a third of a batch's time then, and takes away next to nothing."""
    WITH_DEAD_LETTERS = "with-dead-letters"
    """Grouped, with the records that can't be used as groups of their own."""


@dataclass(frozen=True)
class TaskColumns:
    """Columns by name: those of every row, the key's and the partial aggregates'."""

    keys: tuple[str, ...]
    partials: tuple[str, ...]
    rows: str
    """How many records a row stands for: a column of its own, or a partial that counts just that."""
    time: str | None
    """The latest event time in milliseconds; None for a stream without one."""
    bounded: bool = False
    """Whether no row can be large: a key has a longest length, so it is up to the partials."""
    dead: bool = True
    """Whether records that can't be used have a column; without it they are rows that lack a key."""
    inputs: tuple[str | None, ...] | None = None
    """For raw records: the column each reducer aggregates, None for one that counts rows."""
