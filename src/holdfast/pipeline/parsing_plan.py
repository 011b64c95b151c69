"""How texts that can't be read become dead letters: their rows have nothing but a letter, and few batches have any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql import functions as F

from holdfast.pipeline.driver import Step
from holdfast.pipeline.failing import LETTER, LettersWork
from holdfast.pipeline.local_records import LocalRows, letter
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import DEAD
from holdfast.pipeline.unusable import BYTES, Case, Expression, quoted
from holdfast.topology.parsing import TEXT, UNREADABLE, Unreadable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.topology import SubTopology
    from holdfast.words import Millis


class UnreadablePlanner(RecordPlanner):
    """Runs `Unreadable`."""

    every_version: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        assert isinstance(subtopology.operator, Unreadable)
        frames = _Letters(subtopology.operator, subtopology.stream.frame.columns, subtopology.key.names, limits)
        super().__init__(subtopology, limits, frames)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> LettersWork:
        own = self._subtopology
        return LettersWork(own.number, step.version, own.name, self._limits.inline_limit, "dead_letter")


class _Letters:
    """The rows of its tasks: the letters, partitioned as the records of the stream are."""

    def __init__(self, operator: Unreadable, columns: Sequence[str], key: Sequence[str], limits: Limits) -> None:
        self._operator, self._columns, self._key, self._partitions = operator, columns, key, limits.partitions
        self.keys = tuple(f"k{n}" for n in range(len(key)))
        self.carried = (*self.keys, LETTER)

    def used(self) -> list[Expression]:
        return [quoted(name) for name in self._columns]

    def unusable(self, wall: Millis) -> list[Case]:
        return [Case("true", "unreadable", check=lambda records: pa.repeat(pa.scalar(True), records.num_rows))]

    def rows(self, records: DataFrame, wall: Millis) -> DataFrame:
        shown = [F.col(quoted(name)).alias(name) for name in self._operator.shown]
        record = [F.col(TEXT).alias(self._operator.column), *shown]
        data = F.base64(F.col(TEXT).cast("binary")).alias(BYTES)
        text = F.when(F.is_valid_utf8(F.col(TEXT)), _letter(record)).otherwise(_letter([*record, data]))
        letters = F.when(F.col(TEXT).isNull(), _letter(record)).otherwise(text)
        keys = [F.col(quoted(name)).alias(k) for name, k in zip(self._key, self.keys, strict=True)]
        return records.select(*keys, letters.alias(LETTER)).repartition(self._partitions, *self.keys)

    def local(self, records: pa.Table, wall: Millis) -> LocalRows:
        names = {TEXT: self._operator.column, **{name: name for name in self._operator.shown}}
        letters = [
            letter(row[UNREADABLE], {name: row[column] for column, name in names.items()})
            for row in records.to_pylist()
        ]
        keys = {k: records[name] for name, k in zip(self._key, self.keys, strict=True)}
        found = pa.array(letters, pa.string())
        return LocalRows(pa.table({**keys, LETTER: found, DEAD: found}), self.keys)


def _letter(record: Sequence[Column]) -> Column:
    whole = F.struct(F.col(UNREADABLE).alias("reason"), F.struct(*record).alias("record"))
    return F.to_json(whole, {"ignoreNullFields": "false"})
