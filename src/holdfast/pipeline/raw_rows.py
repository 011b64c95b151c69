"""The raw rows of an aggregation's tasks, made of an output's rows in the task itself, as Spark would make them."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.grouping import RejectFastPlan
from holdfast.pipeline.local_records import millis_of
from holdfast.pipeline.task_columns import TIME
from holdfast.pipeline.unusable import Check


@dataclass(frozen=True)
class RawRows:
    """Chooses and names the columns of rows that a task can use. One that it can't use rejects the plan."""

    columns: tuple[tuple[str, str], ...]
    """The columns of the output, and their names in the task."""
    time: tuple[str, str] | None
    """The column with the event time, and its name in the task, there as a number."""
    checks: tuple[Check, ...]
    """What makes a record unusable."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        if any(pc.any(check(rows)).as_py() for check in self.checks):
            raise RejectFastPlan("An output has rows that can't be used.")
        raw = {name: rows[column] for column, name in self.columns}
        if self.time is not None:
            column, name = self.time
            micros = rows[column].combine_chunks().cast(pa.timestamp("us")).cast(pa.int64())
            raw[name] = millis_of(micros) if name == TIME else micros
        return pa.table(raw)
