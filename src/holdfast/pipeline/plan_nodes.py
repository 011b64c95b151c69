"""Spark's logical plans, through the JVM: the nodes that a step puts on top of a DataFrame, and DataFrames of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

Node: TypeAlias = Any
"""A node of a logical plan, in the JVM."""

SparkExpression: TypeAlias = Any
"""An expression of a logical plan, in the JVM."""


_KEEPING: Final = {"Project", "SubqueryAlias"}
_STATELESS: Final = _KEEPING | {
    *("Filter", "Generate", "Sample", "EventTimeWatermark"),
    *("MapInPandas", "MapInArrow", "Sort", "Repartition", "RepartitionByExpression"),
}


def items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(n) for n in range(sequence.length())]


def nodes_above(frame: DataFrame, derived: DataFrame) -> list[Node] | None:
    """The nodes that `derived` has on top of the frame, the lowest first; None if they are not one above the other."""
    way = _way_to(frame, derived)
    return None if way is None or any(node.children().length() != 1 for node in way) else way[::-1]


def _way_to(frame: DataFrame, derived: DataFrame) -> list[Node] | None:
    """The nodes from `derived` down to the frame; None if several children of one read the frame, or none does."""
    lowest, node = frame._jdf.logicalPlan(), derived._jdf.logicalPlan()
    found: list[Node] = []
    while not node.equals(lowest):
        found.append(node)
        reading = [each for each in items(node.children()) if _reads(each, lowest)]
        if len(reading) != 1:
            return None
        (node,) = reading
    return found


def _reads(node: Node, lowest: Node) -> bool:
    """Whether a node reads a stream, or what the lowest node reads: Spark renames the columns of a second use of it."""
    if node.isStreaming() or node.sameResult(lowest):
        return True
    return any(_reads(each, lowest) for each in (*items(node.children()), *items(node.subqueries())))


def keeps_rows(frame: DataFrame, derived: DataFrame) -> bool:
    """Whether `derived` has one row per row of the frame."""
    nodes = nodes_above(frame, derived)
    return nodes is not None and all(str(node.nodeName()) in _KEEPING for node in nodes)


def is_stateless(frame: DataFrame, derived: DataFrame) -> bool:
    """Whether `derived` is the same rows batch by batch as in a streaming query: it needs nothing of former batches.

    False if that isn't known: of a union, a join with anything but static rows, and nodes that aren't listed here.
    """
    lowest, way = frame._jdf.logicalPlan(), _way_to(frame, derived)
    if way is None or any(_reads(each, lowest) for node in way for each in items(node.subqueries())):
        return False
    return all(str(node.nodeName()) in _STATELESS or _joins_static_rows(node, lowest) for node in way)


def _joins_static_rows(node: Node, lowest: Node) -> bool:
    """Whether a node is a join with static rows that gives no row for these alone. Spark runs no other on a stream."""
    if node.nodeName() != "Join":
        return False
    outer = "LeftOuter" if _reads(node.left(), lowest) else "RightOuter"
    allowed = ("Inner", "Cross", outer, *(("LeftSemi", "LeftAnti") if outer == "LeftOuter" else ()))
    return str(node.joinType().toString()) in allowed


def column_before(frame: DataFrame, derived: DataFrame, name: str) -> str | None:
    """The column of the frame that is this column of `derived`, under whatever name; None if it is computed anew."""
    wanted = _number_of(derived, name)
    for node in _way_to(frame, derived) or []:
        for each in items(node.projectList()) if node.nodeName() == "Project" else ():
            if each.exprId().id() == wanted and each.nodeName() == "Alias":
                of = each.children().apply(0)
                wanted = of.exprId().id() if of.nodeName() == "AttributeReference" else None
    found = (str(each.name()) for each in items(frame._jdf.logicalPlan().output()) if each.exprId().id() == wanted)
    return next(found, None)


def _number_of(frame: DataFrame, name: str) -> int | None:
    """The number that Spark has given to a column."""
    found = (each.exprId().id() for each in items(frame._jdf.logicalPlan().output()) if each.name() == name)
    return next(found, None)


def on_top(node: Node, frame: DataFrame) -> DataFrame:
    """The node over this frame, which has the columns of the node's own child."""
    jvm: Any = frame.sparkSession._jvm
    return frame_of(frame.sparkSession, node.withNewChildren(jvm.PythonUtils.toSeq([frame._jdf.logicalPlan()])))


def frame_of(session: SparkSession, plan: Node) -> DataFrame:
    jvm: Any = session._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def column_of(session: SparkSession, expression: SparkExpression) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = session._jvm
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def inner_first(expressions: Sequence[SparkExpression]) -> Iterator[SparkExpression]:
    """All parts of these expressions, each after its own parts."""
    for each in expressions:
        yield from inner_first(items(each.children()))
        yield each
