"""Finds the records for which a stateless step fails, node by node of the plan that the step makes.

A node's native expressions are tried in the JVM (`TryEval`), and its Python functions run guarded (`guarded.py`), the
inner ones first. The records that fail are set apart, and the node gets the others. So it works for every step that
computes each row from one row: also for a `transform` of any number of PySpark's calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.pipeline.guarded import ROW, GuardedCommand, Variable, can_guard
from holdfast.pipeline.plan_nodes import (
    Node,
    SparkExpression,
    column_of,
    frame_of,
    inner_first,
    items,
    nodes_above,
    on_top,
)
from holdfast.pipeline.record_ids import RECORD_ID, hide_ids, show_ids
from holdfast.pipeline.spark_errors import concerns_data
from holdfast.topology.frames import unlogged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

logger = logging.getLogger(__name__)

ERROR: Final = "_holdfast_error"
KEY: Final = "_holdfast_failed"
_MOST: Final = 1_000
"""For how many failed records of a step and batch Spark's error is looked up: it takes milliseconds per record."""

_EXPRESSIONS: Final = {"Project", "Filter", "Generate"}
_PASSING: Final = {"SubqueryAlias", "Sort", "Repartition", "RepartitionByExpression"}
_ROW_MAPS: Final = {
    "MapInPandas": PythonEvalType.SQL_MAP_PANDAS_ITER_UDF,
    "MapInArrow": PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
}


class CantCheck(HoldfastError):
    """A step's check fails itself, such as for a function that gets what another function can't return."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Broken:
    """Records that failed in one node of a plan, as the node would have got them."""

    records: DataFrame
    """With their hidden numbers, and with the reason as the column `ERROR`, unless expressions have to be asked."""
    expressions: tuple[SparkExpression, ...] = ()
    """Native expressions of which one raises."""


@dataclass
class Split:
    """The records that a step can compute, after it, and those that it can't."""

    good: DataFrame
    broken: list[Broken] = field(default_factory=list)
    kept: list[DataFrame] = field(default_factory=list)
    """Rows that Spark keeps for the check, until they are freed."""


def split(frame: DataFrame, derived: DataFrame, kept: list[DataFrame], *, keeps: bool = False) -> Split:
    """Sets the records apart that fail on the way from `frame` to `derived`, which was made of it.

    Those that don't are as after the step or, where it keeps records, as before it. A step that isn't computed row by
    row is not checked. Raises `CantCheck` if Spark can't compute what a Python function gets. Rows that Spark keeps for
    the check are added to `kept`; the caller frees them when it needs the records no more.
    """
    nodes = nodes_above(frame, derived)
    if nodes is None or _not_row_by_row(nodes) is not None:
        return Split(frame if keeps else derived)
    done = Split(frame, kept=kept)
    for node in nodes:
        name = str(node.nodeName())
        if name in _EXPRESSIONS:
            _check_expressions(done, _expressions(node))
        elif name in _ROW_MAPS:
            _check_map(done, node.functionExpr(), _ROW_MAPS[name])
        if not keeps:
            done.good = on_top(node, done.good)
    return done


def not_row_by_row(frame: DataFrame, derived: DataFrame) -> str | None:
    """What of a step isn't computed row by row, such as `Aggregate`; None if all of it is."""
    nodes = nodes_above(frame, derived)
    return "several inputs" if nodes is None else _not_row_by_row(nodes)


def _not_row_by_row(nodes: Sequence[Node]) -> str | None:
    for node in nodes:
        name = str(node.nodeName())
        if name not in _EXPRESSIONS | _PASSING | _ROW_MAPS.keys():
            return name
        if name in _EXPRESSIONS:
            for udf in _python_udfs(_expressions(node)):
                if not can_guard(udf.evalType()):
                    return str(udf.name())
    return None


def _expressions(node: Node) -> list[SparkExpression]:
    """What a node computes of a row, without columns that it only passes on."""
    found = node.generator().children() if node.nodeName() == "Generate" else node.expressions()
    return [each for each in items(found) if not _is_column(each)]


def _is_column(expression: SparkExpression) -> bool:
    return str(_value(expression).nodeName()) in ("AttributeReference", "Literal")


def _python_udfs(expressions: Sequence[SparkExpression]) -> Iterator[SparkExpression]:
    return (each for each in inner_first(expressions) if each.nodeName() == "PythonUDF")


def _check_expressions(done: Split, expressions: Sequence[SparkExpression]) -> None:
    for udf in _python_udfs(expressions):
        arguments = items(udf.children())
        _check_native(done, [_value(each) for each in arguments])
        guard = _guard(done.good, udf, udf.evalType())(*(column_of(done.good.sparkSession, each) for each in arguments))
        shown = show_ids(done.good)
        _divide(done, (done.good if shown is None else shown).withColumn(ERROR, guard), shown is not None)
    _check_native(done, expressions)


def _value(expression: SparkExpression) -> SparkExpression:
    """An expression without the name that it has as a result, or as an argument."""
    if str(expression.nodeName()) in ("Alias", "NamedArgumentExpression"):
        return _value(expression.children().apply(0))
    return expression


def _check_native(done: Split, expressions: Sequence[SparkExpression]) -> None:
    """Sets the records apart for which an expression raises. Those of Python functions alone are checked by guards."""
    native = tuple(each for each in expressions if not _is_column(each) and _value(each).nodeName() != "PythonUDF")
    if native:
        fails = _fails(done.good, native)
        done.broken.append(Broken(done.good.where(fails & _always()), native))
        done.good = done.good.where(~fails & _always())


def _always() -> Column:
    """Always true. Spark does not know that it is the same each time.

    So Spark neither merges the filter with others, nor computes the step's expressions before it, nor once for both.
    """
    return F.monotonically_increasing_id() >= 0


def _fails(frame: DataFrame, expressions: Sequence[SparkExpression]) -> Column:
    """Whether one of the expressions raises: Spark's `TryEval` is null then, and a struct is never null."""
    session = frame.sparkSession
    jvm: Any = session._jvm
    values: Any = F.struct(*(column_of(session, each) for each in expressions))
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utils.expression(values._jc))
    return column_of(session, tried).isNull()


def _guard(frame: DataFrame, udf: SparkExpression, kind: int) -> Any:
    """A Python function of a plan, guarded."""
    jvm: Any = frame.sparkSession._jvm
    command = udf.func().command().toArray(jvm.scala.reflect.ClassTag.Byte())
    registry = frame.sparkSession.sparkContext._pickled_broadcast_vars
    variables = tuple(Variable(each, registry) for each in udf.func().broadcastVars())
    guard = GuardedCommand(bytes(command), variables, kind, f"{udf.name()}()")
    return UserDefinedFunction(guard, "string", f"guarded {udf.name()}", kind, deterministic=False)


def _check_map(done: Split, udf: SparkExpression, kind: int) -> None:
    """Checks the function of `mapInPandas` or `mapInArrow`, which gets whole rows and may give any number of them."""
    shown = show_ids(done.good)
    numbered = (done.good if shown is None else shown).withColumn(ROW, F.monotonically_increasing_id())
    numbered = _kept(done, numbered)  # else a row may get another number, when Spark computes the rows once more
    given = numbered.drop(RECORD_ID)
    guard = _guard(done.good, udf, kind).func
    mapped = given.mapInPandas if kind == PythonEvalType.SQL_MAP_PANDAS_ITER_UDF else given.mapInArrow
    errors = mapped(guard, f"{ROW} bigint, error string").select(F.col(ROW).alias(KEY), F.col("error").alias(ERROR))
    same = F.col(ROW) == F.col(KEY)
    _divide(done, numbered.join(errors, same, "left").drop(ROW, KEY), shown is not None)


def _divide(done: Split, marked: DataFrame, has_ids: bool) -> None:
    """Sets the records with an error apart. They are kept, so that a user's function is called once for each check."""
    kept = _kept(done, marked)
    broken, good = kept.where(F.col(ERROR).isNotNull()), kept.where(F.col(ERROR).isNull()).drop(ERROR)
    done.broken.append(Broken(hide_ids(broken) if has_ids else broken))
    done.good = hide_ids(good) if has_ids else good


def _kept(done: Split, frame: DataFrame) -> DataFrame:
    """The rows, computed now and once. Spark keeps them until they are freed."""
    try:
        kept = frame.localCheckpoint()
        done.kept.append(kept)
        return kept
    except (PySparkException, Py4JJavaError) as error:
        if concerns_data(error):
            raise CantCheck(f"Spark can't compute what a step gets: {str(error).splitlines()[0]}") from error
        raise


def free(kept: list[DataFrame]) -> None:
    """Frees rows that were kept for a check. Spark itself waits until Python and Java have collected their garbage."""
    while kept:
        frame = kept.pop()
        try:
            rows: Any = frame._jdf.logicalPlan().rdd()
            # Not rows.unpersist(), which warns that the rows can't be computed again.
            frame.sparkSession.sparkContext._jsc.sc().unpersistRDD(rows.id(), False)
        except (Py4JError, OSError) as error:
            logger.debug("Spark is gone, and so are the rows that it kept: %s", error)


def with_errors(records: DataFrame, expressions: Sequence[SparkExpression], record: Column) -> DataFrame:
    """The records with Spark's own error as the column `ERROR`; null for those after the first thousand."""
    session = records.sparkSession
    keyed = records.withColumn(KEY, F.xxhash64(record))
    found = _errors(keyed, expressions)
    errors = session.createDataFrame(
        pa.table({ROW: pa.array(found, pa.int64()), ERROR: pa.array(found.values(), pa.string())})
    )
    return keyed.join(F.broadcast(errors), F.col(KEY) == F.col(ROW), "left")


def _errors(keyed: DataFrame, expressions: Sequence[SparkExpression]) -> dict[int, str]:
    """Spark's error by the key of a record. The optimized expressions are computed here, row by row."""
    session = keyed.sparkSession
    jvm: Any = session._jvm
    asked = keyed.select(KEY, *(column_of(session, each).alias(f"e{n}") for n, each in enumerate(expressions)))
    project: Any = asked._jdf.queryExecution().optimizedPlan()
    if project.nodeName() != "Project":
        return {}
    below = project.child()
    rows = frame_of(session, below).limit(_MOST)._jdf.queryExecution().executedPlan().executeCollect()
    columns = project.projectList()
    # Interpreted: py4j can't tell classes apart that Spark generates under one name.
    projection = jvm.org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection
    keys, values = projection(columns.take(1), below.output()), projection(columns.drop(1), below.output())
    keys.initialize(0)
    values.initialize(0)
    found: dict[int, str] = {}
    for row in rows:
        key = keys.apply(row).getLong(0)
        if key not in found and (error := _raised(values, row)) is not None:
            found[key] = error
    return found


def _raised(projection: Any, row: Any) -> str | None:
    try:
        with unlogged():
            projection.apply(row)
    except PySparkException as error:
        return first_line(str(error))
    except Py4JJavaError as error:
        return first_line(str(error.java_exception.getMessage()))
    return None


def first_line(text: str) -> str:
    """Spark's error without its code of the SQL standard, and without what follows in further lines.

    >>> first_line("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\\n== SQL ==\\n1/n")
    '[DIVIDE_BY_ZERO] Division by zero.'
    """
    line, *_ = text.strip().splitlines() or [""]
    return line.partition(" SQLSTATE: ")[0]
