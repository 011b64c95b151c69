"""How joins with global tables run on Spark: without a shuffle, each partition of the batch by one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.pipeline.driver import Step
from holdfast.pipeline.global_join_task import GlobalJoinWork
from holdfast.pipeline.lookup_plan import looked_up
from holdfast.pipeline.lookup_task import output_schema
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.global_joins import GlobalJoin

if TYPE_CHECKING:
    from holdfast.topology.topology import SubTopology


class GlobalJoinPlanner(RecordPlanner):
    """Runs a join with a global table. Its tasks have no state of their own."""

    by_key: ClassVar[bool] = False

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, GlobalJoin)
        self._operator = operator
        self._table = subtopology.stream.topology.subtopology(operator.table)
        known = subtopology.stream.frame.columns
        on: dict[str, Expression] = {
            f"on{n}": quoted(each) if isinstance(each, str) and each in known else each
            for n, each in enumerate(operator.on)
        }
        values: dict[str, Expression] = {f"v{n}": quoted(name) for n, name in enumerate(operator.columns)}
        frames = RecordFrames(subtopology, limits, {**on, **values}, operator.columns, shuffled=False)
        self._on, self._columns = tuple(on), frames.columns
        super().__init__(subtopology, limits, frames)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> GlobalJoinWork:
        return GlobalJoinWork(
            subtopology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            table=looked_up(self._table, sealed),
            how=self._operator.how,
            output=output_schema(self._operator.output.arrow),
            on=self._on,
            columns=self._columns,
            now=step.now,
            limits=self._limits,
        )
