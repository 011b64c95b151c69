"""Numbers of records that a stream's steps neither see nor lose.

Two sub-topologies can read one source after different steps, and neither can use a certain record. Then one of them
reports it, so each has to know which record of the source a record of its own was. The number is a hidden column, as
Spark has for files (`_metadata`): `*` does not include it, and it can be selected after steps that left it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from holdfast.topology.steps import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_ID: Final = "_holdfast_record"
_REPORTED: Final = "_holdfast_reported"

_ROW_BY_ROW: Final = {
    "Project",
    "Filter",
    "Generate",
    "SubqueryAlias",
    "Sort",
    "Repartition",
    "RepartitionByExpression",
}
"""The nodes of a plan whose rows are made of one row each."""


def hide_ids(frame: DataFrame) -> DataFrame:
    """The frame with its column `RECORD_ID` hidden."""
    others = [quoted(name) for name in frame.columns if name != RECORD_ID]
    numbered = frame.select(*others, F.col(RECORD_ID).alias(RECORD_ID, metadata={"__metadata_col": RECORD_ID}))
    hidden = numbered.select(*others)
    attributes: Any = numbered._jdf.queryExecution().analyzed().output()
    plan: Any = hidden._jdf.logicalPlan()
    jvm: Any = frame.sparkSession._jvm
    plan.setTagValue(_tag(jvm), jvm.PythonUtils.toSeq([attributes.apply(len(others))]))
    return hidden


def show_ids(frame: DataFrame) -> DataFrame | None:
    """The frame with the column `RECORD_ID`; None if its rows are not made of one record each."""
    if not all(node in _ROW_BY_ROW for node in _nodes(frame)):
        return None
    try:
        return frame.select("*", RECORD_ID)
    except AnalysisException:
        return None


def _nodes(frame: DataFrame) -> Iterator[str]:
    """The kinds of nodes above the hidden column."""
    plan: Any = frame._jdf.logicalPlan()
    tag = _tag(frame.sparkSession._jvm)
    while not plan.getTagValue(tag).isDefined():
        yield str(plan.nodeName())
        children = plan.children()
        if children.length() != 1:
            return
        plan = children.apply(0)


def _tag(jvm: Any) -> Any:
    """Where Spark keeps the hidden columns of a projection."""
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project.hiddenOutputTag()


def reported(frame: DataFrame, unusable: Column) -> DataFrame:
    """The numbers of the records for which the condition is true."""
    return frame.where(unusable).select(F.col(RECORD_ID).alias(_REPORTED)).distinct()


def without(frame: DataFrame, unusable: Column, numbers: DataFrame) -> DataFrame:
    """The records, without those that are unusable and that `numbers` has."""
    same = F.col(RECORD_ID) == F.col(_REPORTED)
    return frame.join(numbers, same & unusable, "left_anti")
