"""One Spark job for the sub-topologies of a stage: their rows as one frame, and one Python task per partition.

Each member's rows are planned as for a job of its own, with its own shuffle and order. A union of frames that are
partitioned by keys of the same types keeps that partitioning: partition `n` of the union has the rows of partition `n`
of the first member, then those of the second one, and so on. The plan is asked whether it is so.

Rows of different members have different columns, and a cell costs time whether it is null or not. So members share
columns of the same type.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from holdfast.pipeline.job_order import running
from holdfast.pipeline.planning import RESULT, SealedTaskRows, TaskRows, is_partitioned_by
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.stage_work import MEMBER, NUMBER, CountedSource, StageDone, StageMember, StageWork, decode_stage
from holdfast.pipeline.unusable import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

logger = logging.getLogger(__name__)

Named = tuple[tuple[str, str], ...]


class MemberFrame(NamedTuple):
    """The rows of one member."""

    frame: DataFrame
    keys: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    """The columns that its tasks get; None: all."""


@dataclass
class SharedColumns:
    """The columns of a union, and how each frame fills them."""

    keys: tuple[str, ...]
    selections: list[list[Column]]
    names: list[Named]
    """Of each frame: the columns of the union, and its own names for them."""

    @classmethod
    def of(cls, frames: Sequence[MemberFrame]) -> SharedColumns:
        """The columns of keys have the same types in all frames."""
        slots: list[DataType] = []
        filled: list[dict[int, str]] = []
        for frame, keys, columns in frames:
            own: dict[int, str] = dict(enumerate(keys))
            schema = frame.schema
            slots += [schema[name].dataType for name in keys[len(slots) :]]
            for name in (each for each in columns or schema.names if each not in keys):
                kind = schema[name].dataType
                free = (n for n, slot in enumerate(slots) if slot == kind and n >= len(keys) and n not in own)
                if (n := next(free, None)) is None:
                    slots.append(kind)
                    n = len(slots) - 1
                own[n] = name
            filled.append(own)
        selections = [
            [F.lit(number).alias(MEMBER)]
            + [
                (F.col(quoted(own[n])) if n in own else F.lit(None).cast(slot)).alias(f"c{n}")
                for n, slot in enumerate(slots)
            ]
            for number, own in enumerate(filled)
        ]
        names = [tuple((f"c{n}", name) for n, name in own.items()) for own in filled]
        return cls(tuple(f"c{n}" for n in range(len(frames[0].keys))), selections, names)


@dataclass
class SharedJob:
    """Runs the members of one stage in one job. Columns are chosen once per combination of plans."""

    partitions: int
    _columns: dict[tuple[Hashable, ...], SharedColumns] = field(default_factory=dict)
    _apart: set[tuple[Hashable, ...]] = field(default_factory=set)
    """The combinations for which Spark's plan doesn't keep the partitions of the members together."""
    _nulls: list[Column] = field(default_factory=list)

    def run(
        self,
        members: Sequence[TaskRows | SealedTaskRows],
        counted: Mapping[str, DataFrame],
        locations: StateLocations,
    ) -> list[StageDone] | None:
        """The results of all tasks, one per partition; None if Spark's plan doesn't keep the partitions together.

        `counted` are sources whose records are counted separately.
        """
        planned = [each for each in members if isinstance(each, TaskRows)]
        keys = planned[0].keys
        frames = [MemberFrame(each.frame, each.keys, each.columns) for each in planned]
        frames += [MemberFrame(_numbers(frame, self._null_keys(frames[0])), keys) for frame in counted.values()]
        combination = (*(each.plan for each in planned), *counted)
        if combination in self._apart:
            return None
        if (columns := self._columns.get(combination)) is None:
            columns = self._columns[combination] = SharedColumns.of(frames)
        selected = [each.frame.select(*own) for each, own in zip(frames, columns.selections, strict=True)]
        union = reduce(lambda one, other: one.unionAll(other), selected)
        work = self._work(members, tuple(counted), columns, locations)
        tasks = union.mapInArrow(work.run, RESULT)
        if not is_partitioned_by(tasks, columns.keys, self.partitions):
            self._apart.add(combination)
            logger.info(
                "Spark's plan doesn't keep the partitions of %s together, so they run in jobs of their own.", keys
            )
            return None
        with running():
            results = tasks.toArrow()["result"].to_pylist()
        return [decode_stage(result) for result in results]

    def _null_keys(self, like: MemberFrame) -> list[Column]:
        """The columns of the key, all null. Made once: the keys of all members have these types."""
        if not self._nulls:
            # Spark must not know that the key is null: it would not shuffle by it.
            null = "CASE WHEN monotonically_increasing_id() < 0 THEN '' END"
            schema = like.frame.schema
            self._nulls += [F.expr(null).cast(schema[name].dataType).alias(name) for name in like.keys]
        return self._nulls

    @staticmethod
    def _work(
        members: Sequence[TaskRows | SealedTaskRows],
        counted: Sequence[str],
        columns: SharedColumns,
        locations: StateLocations,
    ) -> StageWork:
        names = iter(columns.names)
        numbers = iter(range(len(columns.names)))
        works = tuple(
            StageMember(each.work, next(numbers), next(names))
            if isinstance(each, TaskRows)
            else StageMember(each.work, sealed=each.sealed)
            for each in members
        )
        counting = tuple(
            CountedSource(source, next(numbers), next(slot for slot, name in next(names) if name == NUMBER))
            for source in counted
        )
        return StageWork(works, counting, locations)


def _numbers(frame: DataFrame, null_keys: Sequence[Column]) -> DataFrame:
    """The number of records in each part of a batch, as rows without a key."""
    return frame.groupBy(*null_keys).agg(F.count(F.lit(1)).alias(NUMBER))
