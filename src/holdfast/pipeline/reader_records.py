"""The records of one reader in one batch: those that it can compute, and those that it is the first to report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.failing import Failed, without_failed
from holdfast.pipeline.record_ids import RECORD_ID, hide_ids, reported, show_ids, without
from holdfast.pipeline.source_readers import Reader, Steps, applied
from holdfast.pipeline.unusable import is_unusable
from holdfast.topology.derived import ROW, TASK
from holdfast.topology.topology import Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.words import Millis


@dataclass(frozen=True)
class ReaderRecords:
    """The records of a reader."""

    reader: Reader
    origin: DataFrame
    """The records of its source or output, before its steps."""
    steps: Steps
    wall: Millis
    checked: bool = False
    """Whether records for which a step fails are set apart."""
    unshown: Collection[str] = ()
    """The columns of the origin that dead letters don't show: without values, or for a derived stream itself."""
    kept: list[DataFrame] = field(default_factory=list)
    """Gets the rows that Spark keeps to set records apart."""
    whole: bool = False
    """Whether the steps leave the columns that the planner uses, and no others."""
    used: Collection[str] = ()
    """The columns that the app uses of the source: those of a dead letter."""

    def all(self, *, dead: bool = False) -> DataFrame:
        """All of them, as the planner gets them: with the columns of dead letters, if some are expected."""
        records = applied(self.origin, self.steps)
        if self.whole:
            return records
        return self.reader.select_for_letters(records, self.used) if dead else self.reader.select(records)

    def unreported(self, others: Sequence[ReaderRecords]) -> tuple[DataFrame, list[Failed]]:
        """The records without those that it can't use and one of the others reports, and those that failed."""
        good, failed = self._split
        numbered = show_ids(good)
        for other in others:
            numbers = other._reported
            if numbers is not None:
                numbered = None if numbered is None else without(numbered, self._unusable, numbers)
                failed = [replace(each, elsewhere=(*each.elsewhere, numbers)) for each in failed]
        return self.reader.select_for_letters(good if numbered is None else numbered, self.used), failed

    @cached_property
    def _split(self) -> tuple[DataFrame, list[Failed]]:
        if self.checked:
            return without_failed(self._numbered, self.steps, self.kept, self.unshown)
        return applied(self._numbered, self.steps), []

    @property
    def _numbered(self) -> DataFrame:
        """The records of the origin with hidden numbers, the same each time: a batch with several readers is kept.

        A row of an output is numbered by its position.
        """
        if isinstance(self.reader.branch.origin, Source):
            number = F.monotonically_increasing_id()
        else:
            number = F.expr(f"shiftleft(CAST({TASK} AS bigint), 40) + {ROW}")
        return hide_ids(self.origin.withColumn(RECORD_ID, number))

    @property
    def _unusable(self) -> Column:
        return is_unusable(self.reader.planner.unusable(self.wall))

    @property
    def _reported(self) -> DataFrame | None:
        """The numbers of the records of which it makes dead letters; None if its rows have no numbers.

        Those that it skips, or stops the app for, are not among them: what others do with them is for others to say.
        """
        good, failed = self._split
        found = [each.numbers for each in failed if each.on_error == "dead_letter"]
        if (numbered := show_ids(good)) is not None:
            found.append(reported(numbered, self._unusable))
        return reduce(lambda one, other: one.unionAll(other), found) if found else None
