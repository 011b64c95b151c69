"""Runs the sub-topologies that read one source: shared steps are computed once, and a record counts once.

A source's records are counted after the stateless steps that all its readers share. The batch is cached there if it has
several readers.

An unusable record is reported once. Of sub-topologies whose streams differ only in filters, the first one that gets the
record and can't use it reports it. The others leave it out before they choose a plan, so that they don't give up a fast
plan for it. A stream with other transformations has other records, and reports its own. So does one with a filter that
may answer otherwise when it is asked again, such as `rand() < 0.5`: others can't know what it reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.driver import Step
from holdfast.pipeline.planning import Planner
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.results import TaskDone, TaskResult
from holdfast.pipeline.unusable import is_unusable
from holdfast.topology.stream import Filter, StatelessStep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.words import Millis

Steps = tuple[StatelessStep, ...]


@dataclass(frozen=True, eq=False)
class Reader:
    """A sub-topology's planner, and the stateless steps of the stream it reads."""

    planner: Planner
    steps: Steps
    repeatable: bool = True
    """Whether its steps give the same records each time."""

    def unusable(self, wall: Millis, applied: Steps) -> Column:
        """Selects the records it reports, among those left after the steps of `applied`."""
        filters = [step for step in self.steps if isinstance(step, Filter) and not _has(applied, step)]
        conditions = [F.expr(step.condition) if isinstance(step.condition, str) else step.condition for step in filters]
        passes = [F.coalesce(condition, F.lit(False)) for condition in conditions]
        return reduce(and_, passes, is_unusable(self.planner.unusable(wall)))


class SourceReaders:
    """Runs all sub-topologies that read one source."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self._shared = shared_steps([reader.steps for reader in readers])
        # A reader with fewer steps gets more records, so it reports first.
        by_steps = sorted(readers, key=lambda reader: (not reader.repeatable, len(reader.steps)))
        self._earlier = {
            reader: [o for o in by_steps[:n] if o.repeatable and _same(_base(o.steps), _base(reader.steps))]
            for n, reader in enumerate(by_steps)
        }
        counting = min(readers, key=lambda reader: len(reader.steps))
        self._counting = counting if len(counting.steps) == len(self._shared) else None

    def run(self, batch: DataFrame, step: Step, locations: StateLocations) -> tuple[list[TaskResult], int]:
        """The results of all tasks, and how many records the source had."""
        shared = _applied(batch, self._shared)
        several = len(self._readers) > 1
        if several:
            shared = shared.persist()
        try:
            results = {
                reader: reader.planner.run(self._records(shared, reader, step.wall), step, locations)
                for reader in self._readers
            }
            if self._counting is None:
                # An extra job: a median of 107 to 192 ms on a loaded machine for 1,000 to 1,000,000 cached records.
                records = shared.count()
            else:
                records = sum(each.records for each in results[self._counting] if isinstance(each, TaskDone))
            return [result for own in results.values() for result in own], records
        finally:
            if several:
                shared.unpersist()

    def _records(self, shared: DataFrame, reader: Reader, wall: Millis) -> DataFrame:
        """A reader's records, without unusable ones that an earlier reader reports."""
        frame = _applied(shared, reader.steps[len(self._shared) :])
        if earlier := self._earlier[reader]:
            reported = reduce(or_, (other.unusable(wall, reader.steps) for other in earlier))
            frame = frame.where(~(reader.unusable(wall, reader.steps) & reported))
        return frame


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


def _base(steps: Steps) -> Steps:
    """The steps up to the last one that isn't a filter. They determine the columns."""
    last = max((n for n, step in enumerate(steps) if not isinstance(step, Filter)), default=-1)
    return steps[: last + 1]


def _same(one: Steps, other: Steps) -> bool:
    return len(one) == len(other) and len(shared_steps([one, other])) == len(one)


def _has(steps: Steps, wanted: StatelessStep) -> bool:
    return any(step is wanted for step in steps)


def _applied(frame: DataFrame, steps: Steps) -> DataFrame:
    for step in steps:
        frame = step(frame)
    return frame
