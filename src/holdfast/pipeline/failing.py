"""Records for which an expression of a stream fails, such as a cast of a text that isn't a number.

Spark stops a job at the first such record. So a batch runs as it is written, and only if that fails it runs again with
a check before each step that can fail: the records for which the step's expressions raise are set apart, and the others
go on. The letters of failed records are written by tasks of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from holdfast.errors import ErrorCategory, HoldfastError, cut
from holdfast.log.log import Log, WrittenSegments
from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.pipeline.local_records import name_in
from holdfast.pipeline.planning import Planner
from holdfast.pipeline.record_ids import RECORD_ID, show_ids
from holdfast.pipeline.results import Tally, TaskResult, of_skipped, refused
from holdfast.pipeline.source_readers import Reader
from holdfast.pipeline.task import Part, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.steps import Computed
from holdfast.words import TaskId, Version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.processor import OnError
    from holdfast.topology.topology import StatelessStep, SubTopology

LETTER: Final = "letter"
_LONGEST: Final = 1_000
"""The maximum length of a record in a message."""

_LETTER_ROWS: Final = 50_000


class RecordFailed(HoldfastError):
    """An expression of a stream failed for a record. Nothing of the batch was committed."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Failed:
    """The records that failed in one step."""

    on_error: OnError
    letters: DataFrame
    """The letter of each, and its number if records have hidden ones, else null."""


def concerns_data(error: Exception) -> bool:
    """Whether Spark has stopped because of a value: the SQL standard's class 22, data exceptions.

    >>> concerns_data(ValueError("[CAST_INVALID_INPUT] The value 'x' ... SQLSTATE: 22018"))
    True
    """
    return re.search(r"SQLSTATE: 22\w{3}", str(error)) is not None


def can_fail(steps: Iterable[StatelessStep]) -> bool:
    return any(isinstance(step, Computed) for step in steps)


def readers_of(subtopology: SubTopology, planner: Planner) -> list[Reader]:
    """The readers of a sub-topology, one per branch of its stream."""
    own = tuple(each for each in planner.used() if name_in(each) is None)
    check = (
        (Computed(lambda df: df, own, f"an expression of {subtopology.name}", subtopology.stream.failures),)
        if own
        else ()
    )
    return [Reader(planner, branch, check) for branch in subtopology.stream.branches]


def without_failed(
    frame: DataFrame, steps: Sequence[StatelessStep], unread: Iterable[str] = ()
) -> tuple[DataFrame, list[Failed]]:
    """The records after these steps, and those that failed in one. `unread` are columns that have no values."""
    failed = []
    for step in steps:
        if isinstance(step, Computed) and (found := _failing(frame, step)) is not None:
            columns = [name for name in frame.columns if name not in unread]
            failed.append(Failed(step.on_error, _letters(found[0], step.label, columns)))
            frame = found[1]
        frame = step(frame)
    return frame, failed


def _failing(frame: DataFrame, step: Computed) -> tuple[DataFrame, DataFrame] | None:
    """The records for which a step fails, and the others; None if it can't be checked, as one with `explode`."""
    try:
        fails = _fails(frame, step.expressions)
        # The second condition is always true. Spark does not know that it is the same each time, and so neither
        # moves the step's expressions before the check nor computes them once for both.
        return frame.where(fails), frame.where(~fails & (F.monotonically_increasing_id() >= 0))
    except AnalysisException:
        return None


def _fails(frame: DataFrame, expressions: Sequence[Expression]) -> Column:
    """Whether one of the expressions raises: Spark's `TryEval` is null then, and a struct is never null."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    values = F.struct(*(F.expr(each) if isinstance(each, str) else each for each in expressions))
    jvm: Any = frame.sparkSession._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utils.expression(values._jc))
    return ClassicColumn(utils.column(tried)).isNull()


def _letters(frame: DataFrame, label: str, columns: Sequence[str]) -> DataFrame:
    record = F.struct(*(F.col(quoted(name)) for name in columns))
    letter = F.struct(F.lit(f"{label} failed").alias("reason"), record.alias("record"))
    numbered = show_ids(frame)
    if numbered is None:
        numbered = frame.withColumn(RECORD_ID, F.lit(None).cast("bigint"))
    return numbered.select(F.to_json(letter, {"ignoreNullFields": "false"}).alias(LETTER), RECORD_ID)


def stop_for(failed: Sequence[Failed], cause: BaseException | None) -> None:
    """Raises for a record that failed in a step that stops the app."""
    for each in failed:
        if each.on_error == "fail" and (found := each.letters.select(LETTER).head()) is not None:
            raise RecordFailed(
                f"A record can't be computed: {cut(found[0], _LONGEST)}. Nothing of the batch was committed. Fix the "
                'expression, for example with try_cast, or filter such records out, or use on_error="dead_letter". The '
                "app repeats this batch at its next start."
            ) from cause


@dataclass(frozen=True)
class LettersWork:
    """Writes the letters of failed records, or counts them. They are in any partition."""

    topology: int
    version: Version
    name: str
    inline_limit: int
    on_error: OnError

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally, written = Tally(), WrittenSegments()
        try:
            for chunk in chunks(batches, _LETTER_ROWS):
                if self.on_error == "skip":
                    tally.add(of_skipped(self.name), chunk.num_rows)
                    continue
                tally.add("dead", chunk.num_rows)
                times = pa.array([1] * chunk.num_rows, pa.int64())
                parts: list[Part] = [(DEAD_PART, self.name, pa.table({LETTER: chunk[LETTER], "times": times}))]
                written += log.write_parts(task, self.version, parts, inline_limit=self.inline_limit)
        except HoldfastError as error:
            return refused(task, error)
        return tally.done(task, written)
