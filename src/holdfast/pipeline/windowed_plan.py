"""How a windowed aggregation runs on Spark: as other aggregations do, with one more column to group by.

That column is the pane of a record: a span of time that is in the same windows as a whole. Of tumbling windows it is
the window itself; of hopping windows the task makes windows from panes, so a record is one row in Spark even where it
is in many windows. Of sliding windows and sessions it is the record's own millisecond.

Rows go to tasks by the key alone, so all windows of a key are in one partition. Spark's aggregation shuffles by key and
pane, so a second shuffle follows it, of the aggregated rows. The raw plan has one shuffle.

Where sinks get one result per record, each record is a group of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.pipeline.aggregation_plan import AggregationFrames, AggregationPlanner, columns_of
from holdfast.pipeline.clock_columns import millis_of
from holdfast.pipeline.driver import Step
from holdfast.pipeline.task import Limits
from holdfast.pipeline.task_columns import LATE, PANE, RECORD, BatchPlan, TaskColumns
from holdfast.pipeline.unusable import Expression, above, is_unusable, quoted, shown_of
from holdfast.pipeline.windowed_task import WindowedWork
from holdfast.stores.access import Now
from holdfast.topology.windowing import LATE as LATE_OUTPUT
from holdfast.topology.windowing import WindowedAggregation, output_of
from holdfast.topology.windows import SessionWindows, TimeWindows, Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.topology import SubTopology


class WindowedPlanner(AggregationPlanner):
    """Runs a windowed aggregation."""

    @cached_property
    def _frames(self) -> WindowedFrames:
        return WindowedFrames(self._subtopology, self._limits)

    def _columns_of(self, subtopology: SubTopology) -> dict[BatchPlan, TaskColumns]:
        return windowed_columns(subtopology)

    def used(self) -> list[Expression]:
        stream = self._subtopology.stream
        is_late_read = stream.topology.is_read(output_of(self._subtopology.name, LATE_OUTPUT))
        return [*super().used(), *(map(quoted, stream.columns) if is_late_read else ())]

    def _work(self, step: Step, plan: BatchPlan) -> WindowedWork:
        operator = self._subtopology.operator
        assert isinstance(operator, WindowedAggregation)
        (store,) = self._subtopology.stores
        late = output_of(self._subtopology.name, LATE_OUTPUT)
        return WindowedWork(
            subtopology=self._subtopology.number,
            version=step.version,
            store=store,
            reducers=operator.reducers,
            columns=self._columns[plan],
            now=Now(step.wall, step.event),
            limits=self._limits,
            windows=operator.windows,
            late=late if self._subtopology.stream.topology.is_read(late) else None,
            late_columns=operator.late_columns(self._subtopology),
            waiting=operator.waiting(self._subtopology),
            updates=self._subtopology.name if operator.updates else None,
        )


def windowed_columns(subtopology: SubTopology) -> dict[BatchPlan, TaskColumns]:
    """The columns of the tasks in each possible plan. Asked at the start of the app, when all sinks are known."""
    assert isinstance(subtopology.operator, WindowedAggregation)
    is_late_read = subtopology.stream.topology.is_read(output_of(subtopology.name, LATE_OUTPUT))
    updates = subtopology.operator.updates
    return {
        plan: replace(
            columns,
            pane=PANE,
            record=RECORD if updates else None,
            late=is_late_read and plan is BatchPlan.WITH_DEAD_LETTERS,
        )
        for plan, columns in columns_of(subtopology, subtopology.operator).items()
        if plan is not BatchPlan.RAW or not updates
    }


class WindowedFrames(AggregationFrames):
    """The DataFrames of one windowed aggregation."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        super().__init__(subtopology, limits.partitions, limits.max_ahead_millis)
        assert isinstance(self.operator, WindowedAggregation)
        assert subtopology.stream.timestamp is not None
        self._windows = self.operator.windows
        self._millis = millis_of(subtopology.stream.timestamp)
        self.columns = windowed_columns(subtopology)

    def rows(self, records: DataFrame, step: Step, plan: BatchPlan, *, shuffle: bool = False) -> DataFrame:
        return super().rows(records, step, plan, shuffle=plan is not BatchPlan.RAW)

    def _partitioned_by(self, plan: BatchPlan) -> tuple[str, ...]:
        return self.keys

    def _groups(self, plan: BatchPlan) -> tuple[str, ...]:
        groups = (*super()._groups(plan), PANE)
        if self.columns[plan].record is not None:
            groups = (*groups, RECORD)
        return (*groups, LATE) if self.columns[plan].late else groups

    def _columns(self, records: DataFrame, step: Step, plan: BatchPlan) -> list[Column]:
        columns = super()._columns(records, step, plan)
        if plan is BatchPlan.RAW:
            return columns  # the task computes panes from times
        good = ~is_unusable(self.unusable(step.wall))
        columns.append(F.when(good, F.expr(_pane(self._windows, self._millis))).alias(PANE))
        if self.columns[plan].record is not None:
            columns.append(F.monotonically_increasing_id().alias(RECORD))
        if self.columns[plan].late:
            late = F.lit(False) if step.event is None else F.expr(_may_be_late(self._windows, self._millis, step.event))
            columns.append(F.when(good & late, F.struct(*shown_of(records, self._stream.hidden))).alias(LATE))
        return columns


def _pane(windows: Windows, millis: str) -> str:
    """The pane of a record.

    >>> from holdfast.topology.windows import tumbling
    >>> _pane(tumbling("1m"), "t")
    't - pmod(t, 60000)'
    """
    return f"{millis} - pmod({millis}, {windows.pane_ms})" if isinstance(windows, TimeWindows) else millis


def _may_be_late(windows: Windows, millis: str, event: int) -> str:
    """Whether a record is late. A record of a session is not if it is near another one: its task knows."""
    match windows:
        case TimeWindows(size_ms=size, every_ms=every):
            return f"NOT {above(f'{millis} - pmod({millis}, {every}) + {size + windows.grace_ms}', event)}"
        case SessionWindows(gap_ms=gap):
            return f"NOT {above(f'{millis} + {gap + windows.grace_ms}', event - 1)}"
        case _:
            return f"NOT {above(f'{millis} + {windows.size_ms + 1 + windows.grace_ms}', event)}"
