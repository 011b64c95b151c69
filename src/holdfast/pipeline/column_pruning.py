"""Finds the columns that a derived DataFrame needs of the one it is made from.

Inside `foreachBatch` Spark can't leave out columns at the source: there a batch is an RDD with all of them. So the
streaming query itself selects the columns that the topology uses. Which ones these are, Spark's optimizer knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def columns_used(session: SparkSession, schema: StructType, derive: Callable[[DataFrame], DataFrame]) -> list[str]:
    """The columns of a frame of this schema that `derive` needs, in their order."""
    # Of an RDD, since the optimizer would replace a local table without rows, and all that is derived from it.
    given = session.createDataFrame(session.sparkContext.emptyRDD(), schema)
    plan = derive(given)._jdf.queryExecution().optimizedPlan()
    own = {_id(attribute) for leaf in _items(plan.collectLeaves()) for attribute in _items(leaf.output())}
    asked = {_id(each): str(each.name()) for node in _nodes(plan) for each in _items(node.references().toSeq())}
    asked |= {_id(each): str(each.name()) for each in _items(plan.output())}
    names = {name for each, name in asked.items() if each in own}
    return [name for name in given.columns if name in names]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    """The items of a Scala sequence."""
    return (sequence.apply(n) for n in range(sequence.length()))


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())
