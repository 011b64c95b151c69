"""One source and the sub-topologies that read it: what the streaming query selects, and each reader's records.

The streaming query applies the stateless steps that all readers share and selects the columns that they use, so that
Spark reads nothing else from the source. A source's records are counted after those steps.

An unusable record is reported once. Of branches that differ only in filters, the first one that gets the record and
can't use it reports it. The others leave it out before they choose a plan, so that they don't give up a fast plan for
it. A branch with other transformations has other records, and reports its own. So does one with a filter that may
answer otherwise when it is asked again, such as `rand() < 0.5`: others can't know what it reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.column_pruning import columns_used
from holdfast.pipeline.local_records import name_in
from holdfast.pipeline.planning import Planner
from holdfast.pipeline.unusable import Expression, is_unusable, quoted
from holdfast.topology.frames import is_repeatable
from holdfast.topology.plain_frames import PlainFrame
from holdfast.topology.steps import Filter
from holdfast.topology.topology import OutputOf, Source, StaticRows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.topology import Branch, StatelessStep
    from holdfast.words import Millis

Steps = tuple["StatelessStep", ...]


@dataclass(frozen=True, eq=False)
class Reader:
    """A branch of the stream that a sub-topology reads, and the sub-topology's planner."""

    planner: Planner
    branch: Branch

    @property
    def steps(self) -> Steps:
        return self.branch.steps

    @cached_property
    def repeatable(self) -> bool:
        """Whether its steps give the same records each time."""
        return is_repeatable(self.branch.frame)

    @cached_property
    def columns(self) -> list[str]:
        """The columns of its records that the planner uses. Dead letters have these."""
        frame = self.branch.frame
        if isinstance(self.branch.origin, Source) and self.branch.origin.whole_dead_letters:
            return frame.columns
        if isinstance(frame, PlainFrame) or isinstance(self.branch.origin, OutputOf | StaticRows):
            names = [name_in(each) for each in self.planner.used()]
            if None not in names:
                return [name for name in frame.columns if name in names]
        return columns_used(frame.sparkSession, frame.schema, lambda df: df.select(*as_columns(self.planner.used())))

    def select(self, frame: DataFrame) -> DataFrame:
        """The columns that the planner uses."""
        return frame.select(*(quoted(name) for name in self.columns))

    def unusable(self, wall: Millis, applied: Steps) -> Column:
        """Selects the records it reports, among those left after the steps of `applied`."""
        filters = [step for step in self.steps if isinstance(step, Filter) and not _has(applied, step)]
        conditions = [F.expr(step.condition) if isinstance(step.condition, str) else step.condition for step in filters]
        passes = [F.coalesce(condition, F.lit(False)) for condition in conditions]
        return reduce(and_, passes, is_unusable(self.planner.unusable(wall)))


class SourceReaders:
    """A source, and all branches that read it."""

    def __init__(self, source: Source, readers: Sequence[Reader]) -> None:
        self.readers = readers
        self._shared = shared_steps([reader.steps for reader in readers])
        self._earlier = earlier_readers(readers)
        counting = min(readers, key=lambda reader: len(reader.steps))
        self.counting = counting if len(counting.steps) == len(self._shared) else None
        """A reader that gets all records of the source."""
        self.selected = self._selected(applied(source.frame, self._shared), whole=source.whole_dead_letters)
        """What the streaming query reads of this source."""

    def _selected(self, shared: DataFrame, *, whole: bool) -> DataFrame:
        """The frame with the columns that the readers use."""
        if whole:
            return shared
        used = {name for reader in self.readers for name in self._used(shared, reader)}
        if all(len(reader.steps) == len(self._shared) for reader in self.readers):
            return shared.select(*(quoted(name) for name in shared.columns if name in used))
        # A later step may name a column that nothing uses in the end. It is null there, and isn't read.
        return shared.select(
            *(
                F.col(quoted(field.name)) if field.name in used else F.lit(None).cast(field.dataType).alias(field.name)
                for field in shared.schema.fields
            )
        )

    def _used(self, shared: DataFrame, reader: Reader) -> list[str]:
        own = reader.steps[len(self._shared) :]
        used = as_columns(reader.planner.used())
        return columns_used(shared.sparkSession, shared.schema, lambda df: applied(df, own).select(*used))

    def records(self, selected: DataFrame, reader: Reader, wall: Millis) -> DataFrame:
        """A reader's records in a batch of `selected`, without unusable ones that an earlier reader reports."""
        frame = applied(selected, reader.steps[len(self._shared) :])
        if earlier := self._earlier[reader]:
            reported = reduce(or_, (other.unusable(wall, reader.steps) for other in earlier))
            frame = frame.where(~(reader.unusable(wall, reader.steps) & reported))
        return reader.select(frame)


def earlier_readers(readers: Sequence[Reader]) -> dict[Reader, list[Reader]]:
    """For each reader, those that report the unusable records which both get. One with fewer steps gets more."""
    by_steps = sorted(readers, key=lambda reader: (not reader.repeatable, len(reader.steps)))
    return {
        reader: [o for o in by_steps[:n] if o.repeatable and _same(base(o.steps), base(reader.steps))]
        for n, reader in enumerate(by_steps)
    }


def as_columns(expressions: Sequence[Expression]) -> list[Column]:
    return [F.expr(each) if isinstance(each, str) else each for each in expressions]


def shared_steps(chains: Sequence[Steps]) -> Steps:
    """The steps that all chains start with.

    >>> a, b, c = Filter("a"), Filter("b"), Filter("c")
    >>> shared_steps([(a, b, c), (a, b), (a, c)]) == (a,)
    True
    """
    shared: list[StatelessStep] = []
    for steps in zip(*chains, strict=False):
        if any(step is not steps[0] for step in steps):
            break
        shared.append(steps[0])
    return tuple(shared)


def applied(frame: DataFrame, steps: Steps) -> DataFrame:
    for step in steps:
        frame = step(frame)
    return frame


def base(steps: Steps) -> Steps:
    """The steps up to the last one that isn't a filter. They determine the columns."""
    last = max((n for n, step in enumerate(steps) if not isinstance(step, Filter)), default=-1)
    return steps[: last + 1]


def _same(one: Steps, other: Steps) -> bool:
    return len(one) == len(other) and len(shared_steps([one, other])) == len(one)


def _has(steps: Steps, wanted: StatelessStep) -> bool:
    return any(step is wanted for step in steps)
