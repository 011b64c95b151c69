"""How a table from a changelog runs on Spark: a shuffle by key, and each partition in the order of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.pipeline.driver import Step
from holdfast.pipeline.history_table_task import HistoryTableWork
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.table_task import TableWork
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.stores.spec import KEY_VALUE
from holdfast.topology.tables import Changelog

if TYPE_CHECKING:
    from holdfast.topology.topology import SubTopology


class TablePlanner(RecordPlanner):
    """Runs a table."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, Changelog)
        values: dict[str, Expression] = {f"v{n}": quoted(name) for n, name in enumerate(operator.columns)}
        values["gone"] = "false" if operator.deleted is None else operator.deleted
        frames = RecordFrames(subtopology, limits, values, operator.columns)
        self._columns = frames.columns
        super().__init__(subtopology, limits, frames, operator.columns)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TableWork:
        (store,) = self._subtopology.stores
        work = TableWork if store.kind == KEY_VALUE else HistoryTableWork
        return work(
            subtopology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            store=store,
            columns=self._columns,
            now=step.now,
            limits=self._limits,
        )
