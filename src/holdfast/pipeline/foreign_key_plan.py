"""How joins of tables by a foreign key run on Spark: three jobs, each shuffled by another key than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from holdfast.pipeline.driver import Step
from holdfast.pipeline.foreign_key_tasks import ForeignKeyJoinWork, IndexWork, LinksWork
from holdfast.pipeline.lookup_plan import looked_up
from holdfast.pipeline.lookup_task import output_schema
from holdfast.pipeline.planning import NOTHING_SEALED, Sealed
from holdfast.pipeline.record_columns import KeyedColumns
from holdfast.pipeline.record_frames import RecordFrames
from holdfast.pipeline.record_plan import RecordPlanner
from holdfast.pipeline.table_rows import LookedUpTable
from holdfast.pipeline.task import Limits
from holdfast.pipeline.unusable import quoted
from holdfast.stores.access import Now
from holdfast.topology.foreign_keys import LINKED, ForeignKeyIndex, ForeignKeyJoin, Links
from holdfast.words import Version

if TYPE_CHECKING:
    from holdfast.topology.topology import SubTopology


class _Common(TypedDict):
    subtopology: int
    version: Version
    name: str
    table: LookedUpTable
    columns: KeyedColumns
    now: Now
    limits: Limits


class _ForeignKeyPlanner(RecordPlanner):
    """A planner whose tasks get the key of their sub-topology, and these columns."""

    def __init__(self, subtopology: SubTopology, limits: Limits, columns: Sequence[str], table: str) -> None:
        frames = RecordFrames(subtopology, limits, {f"v{n}": quoted(name) for n, name in enumerate(columns)}, ())
        self._columns = frames.columns
        self._table = subtopology.stream.topology.subtopology(table)
        super().__init__(subtopology, limits, frames, columns)

    def _common(self, step: Step, sealed: Sealed) -> _Common:
        return _Common(
            subtopology=self._subtopology.number,
            version=step.version,
            name=self._subtopology.name,
            table=looked_up(self._table, sealed),
            columns=self._columns,
            now=step.now,
            limits=self._limits,
        )


class LinksPlanner(_ForeignKeyPlanner):
    """Runs the links of a join by a foreign key."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, Links)
        self._operator = operator
        super().__init__(subtopology, limits, (), operator.left)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> LinksWork:
        operator = self._operator
        links, answers = output_schema(operator.links.arrow), output_schema(operator.answers.arrow)
        return LinksWork(**self._common(step, sealed), on=operator.on, links=links, answers=answers)


class IndexPlanner(_ForeignKeyPlanner):
    """Runs the index of a join by a foreign key."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, ForeignKeyIndex)
        self._operator = operator
        super().__init__(subtopology, limits, (*operator.key, LINKED), operator.right)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> IndexWork:
        (index,) = self._subtopology.stores
        answers = output_schema(self._operator.answers.arrow)
        return IndexWork(**self._common(step, sealed), index=index, answers=answers)


class ForeignKeyJoinPlanner(_ForeignKeyPlanner):
    """Runs the last step of a join by a foreign key."""

    def __init__(self, subtopology: SubTopology, limits: Limits) -> None:
        operator = subtopology.operator
        assert isinstance(operator, ForeignKeyJoin)
        self._operator = operator
        answers = operator.answers.names[len(subtopology.key.fields) :]
        super().__init__(subtopology, limits, answers, operator.left)

    def work(self, step: Step, sealed: Sealed = NOTHING_SEALED) -> ForeignKeyJoinWork:
        (store,), operator = self._subtopology.stores, self._operator
        common = self._common(step, sealed)
        return ForeignKeyJoinWork(**common, store=store, how=operator.how, on=operator.on, foreign=operator.foreign)
