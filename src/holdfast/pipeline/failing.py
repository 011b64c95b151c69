"""Records for which a step of a stream fails: a cast of a text that isn't a number, a Python function that raises.

Spark stops a job at the first such record. So a batch runs as it is written, and only if that fails it runs again with
a check of each step that can fail (`checking.py`): the records for which it fails are set apart, and the others go on.
The letters of failed records are written by tasks of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from holdfast.errors import ErrorCategory, HoldfastError, cut
from holdfast.log.log import Log
from holdfast.log.segments import DEAD as DEAD_PART
from holdfast.pipeline.checking import ERROR, Broken, CantCheck, Split, free, not_row_by_row, split, with_errors
from holdfast.pipeline.local_records import name_in
from holdfast.pipeline.planning import Planner
from holdfast.pipeline.record_ids import RECORD_ID, reported, show_ids, without
from holdfast.pipeline.results import Tally, TaskResult, of_skipped
from holdfast.pipeline.source_readers import Reader, as_columns
from holdfast.pipeline.task import Part, chunks
from holdfast.pipeline.task_state import TaskState
from holdfast.pipeline.unusable import quoted
from holdfast.pipeline.writing import write_segments
from holdfast.topology.steps import Computed
from holdfast.words import TaskId, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.topology.processor import OnError
    from holdfast.topology.topology import StatelessStep, SubTopology

LETTER: Final = "letter"
_LONGEST: Final = 1_000
"""The maximum length of a record in a message."""

_LETTER_ROWS: Final = 50_000


class RecordFailed(HoldfastError):
    """A step of a stream failed for a record. Nothing of the batch was committed."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Failed:
    """The records that failed in one step."""

    on_error: OnError
    label: str
    """The step, as the user wrote it."""
    broken: Broken
    columns: tuple[str, ...]
    """The columns of a record that a letter has."""
    elsewhere: tuple[DataFrame, ...] = ()
    """The numbers of records of which others make dead letters: none is made of them here."""

    @property
    def letters(self) -> DataFrame:
        """The letter of each. Looks Spark's errors up, which is a job."""
        records = self._numbered
        if self.on_error == "dead_letter":
            for numbers in self.elsewhere:
                records = without(records, F.lit(True), numbers)
        record = F.struct(*(F.col(quoted(name)) for name in self.columns))
        if self.broken.expressions and self.on_error != "skip":
            records = with_errors(records, self.broken.expressions, F.to_json(record))
        elif ERROR not in records.columns:
            records = records.withColumn(ERROR, F.lit(None).cast("string"))
        reason = F.concat(F.lit(f"{self.label} failed"), F.coalesce(F.concat(F.lit(": "), F.col(ERROR)), F.lit("")))
        letter = F.struct(reason.alias("reason"), record.alias("record"))
        return records.select(F.to_json(letter, {"ignoreNullFields": "false"}).alias(LETTER), RECORD_ID)

    @property
    def numbers(self) -> DataFrame:
        """The numbers of the records."""
        return reported(self._numbered, F.lit(True))

    @property
    def _numbered(self) -> DataFrame:
        """The records with their numbers, which are null if rows are not made of one record each."""
        numbered = show_ids(self.broken.records)
        return self.broken.records.withColumn(RECORD_ID, F.lit(None).cast("bigint")) if numbered is None else numbered


def can_fail(steps: Iterable[StatelessStep]) -> bool:
    return any(isinstance(step, Computed) for step in steps)


def readers_of(subtopology: SubTopology, planner: Planner) -> list[Reader]:
    """The readers of a sub-topology, one per branch of its stream."""
    own = tuple(each for each in planner.used() if name_in(each) is None)
    label = f"an expression of {subtopology.name}"
    check = (
        (Computed(lambda df: df.select(*as_columns(own)), label, subtopology.stream.failures, keeps=True),)
        if own
        else ()
    )
    branches = subtopology.stream.branches
    is_merged, timestamp = len(branches) > 1, subtopology.stream.timestamp
    return [Reader(planner, each, check, is_merged, timestamp, subtopology.name) for each in branches]


def without_failed(
    frame: DataFrame, steps: Sequence[StatelessStep], kept: list[DataFrame], unshown: Collection[str] = ()
) -> tuple[DataFrame, list[Failed]]:
    """The records after these steps, and those that failed in one.

    `unshown` are the columns that letters don't show: without values, or for a derived stream itself. `kept` gets
    the rows that Spark keeps for it, which the caller frees.
    """
    failed = []
    for step in steps:
        if not isinstance(step, Computed):
            frame = step(frame)
            continue
        derived = step.apply(frame)
        try:
            done = split(frame, derived, kept, keeps=step.keeps)
        except CantCheck:
            done = Split(frame if step.keeps else derived)  # Spark's error is raised when the batch runs
        for broken in done.broken:
            columns = tuple(name for name in broken.records.columns if name not in (ERROR, *unshown))
            failed.append(Failed(step.on_error, step.label, broken, columns))
        frame = done.good
    return frame, failed


def advice(frame: DataFrame, steps: Sequence[StatelessStep]) -> str:
    """Why the record for which a step fails can't be found, and what to do; empty if it can."""
    kept: list[DataFrame] = []
    try:
        return _advice(frame, steps, kept)
    finally:
        free(kept)


def _advice(frame: DataFrame, steps: Sequence[StatelessStep], kept: list[DataFrame]) -> str:
    for step in steps:
        if not isinstance(step, Computed):
            frame = step(frame)
            continue
        derived = step.apply(frame)
        if (what := not_row_by_row(frame, derived)) is not None:
            return (
                f" {step.label} doesn't compute each row from one row ({what}), so the record for which it fails "
                "can't be found, and on_error can't set it apart. Do what can fail in a step before it, with "
                "where, select, with_column or a transform of its own."
            )
        try:
            frame = split(frame, derived, kept, keeps=step.keeps).good
        except CantCheck:
            return (
                f" {step.label} can't be checked record by record, so on_error can't set the record apart for which it "
                "fails. Spark may be unable to convert what a Python function returns: compare it with the type that "
                "you have declared, and a pandas function's number of rows with what it got."
            )
    return ""


def stop_for(failed: Sequence[Failed], cause: BaseException | None) -> None:
    """Raises for a record that failed in a step that stops the app."""
    for each in failed:
        if each.on_error == "fail" and (found := each.letters.select(LETTER).head()) is not None:
            raise RecordFailed(
                f"A record can't be computed: {cut(found[0], _LONGEST)}. Nothing of the batch was committed. Fix the "
                'step, for example with try_cast, or filter such records out, or use on_error="dead_letter". The '
                "app repeats this batch at its next start."
            ) from cause


@dataclass(frozen=True)
class LettersWork:
    """Writes the letters of failed records, or counts them. They are in any partition."""

    subtopology: int
    version: Version
    name: str
    inline_limit: int
    on_error: OnError

    def run(self, task: TaskId, batches: Iterable[pa.RecordBatch], log: Log, state: TaskState) -> TaskResult:
        tally = Tally()
        segments = self._segments(batches, tally)
        return write_segments(log, task, self.version, segments, tally, inline_limit=self.inline_limit)

    def _segments(self, batches: Iterable[pa.RecordBatch], tally: Tally) -> Iterator[list[Part]]:
        for chunk in chunks(batches, _LETTER_ROWS):
            if self.on_error == "skip":
                tally.add(of_skipped(self.name), chunk.num_rows)
                continue
            tally.add("dead", chunk.num_rows)
            times = pa.array([1] * chunk.num_rows, pa.int64())
            yield [(DEAD_PART, self.name, pa.table({LETTER: chunk[LETTER], "times": times}))]
