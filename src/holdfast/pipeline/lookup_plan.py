"""How joins with tables run on Spark: a shuffle by the table's key, and a lookup in each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.pipeline.driver import Step
from holdfast.pipeline.lookup_task import LookupWork, output_schema
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.table_join_task import TableJoinWork
from holdfast.pipeline.table_rows import LookedUpTable
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import Expression, quoted
from holdfast.topology.lookups import TableJoin
from holdfast.topology.table_joins import TableTableJoin

if TYPE_CHECKING:
    from holdfast.topology.topology import SubTopology


class LookupPlanner(RecordPlanner):
    """Runs a join with a table. Its tasks have no state of their own."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, TableJoin)
        self._operator = operator
        self._table = subtopology.stream.topology.subtopology(operator.table)
        values: dict[str, Expression] = {f"v{n}": quoted(name) for n, name in enumerate(operator.columns)}
        frames = RecordFrames(subtopology, limits, values, operator.columns)
        self._columns = frames.columns
        super().__init__(subtopology, limits, frames, operator.columns)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> LookupWork:
        return LookupWork(
            subtopology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            table=looked_up(self._table, sealed),
            how=self._operator.how,
            output=output_schema(self._operator.output.arrow),
            columns=self._columns,
            now=step.now,
            limits=self._limits,
        )


class TableJoinPlanner(RecordPlanner):
    """Runs a join of two tables, over the keys that changed on either side."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, TableTableJoin)
        self._operator, topology = operator, subtopology.stream.topology
        self._tables = [topology.subtopology(name) for name in (operator.left, operator.right)]
        frames = RecordFrames(subtopology, limits, {}, ())
        self._columns = frames.columns
        super().__init__(subtopology, limits, frames, ())

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> TableJoinWork:
        (store,) = self._subtopology.stores
        left, right = (looked_up(table, sealed) for table in self._tables)
        return TableJoinWork(
            subtopology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            store=store,
            left=left,
            right=right,
            how=self._operator.how,
            columns=self._columns,
            now=step.now,
            limits=self._limits,
        )


def looked_up(table: SubTopology, sealed: Sealed) -> LookedUpTable:
    """A table as the tasks of a join read it."""
    (store,) = table.stores
    return LookedUpTable(table.number, store).after(sealed)
