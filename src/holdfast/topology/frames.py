"""The types of a stream's columns, under Spark's names."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.errors import TopologyError, did_you_mean
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.types import Field, Schema
from holdfast.topology.plain_frames import PlainFrame, spark_frame

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column, DataFrame

    from holdfast.topology.aggregates import Aggregate


_WORDS_OF_SQL: Final = frozenset(
    {"true", "false", "null", "user", "current_user", "session_user"}
    | {"current_date", "current_time", "current_timestamp", "localtimestamp"}
)
"""Expressions of one word that aren't columns."""

_NODE: Final = "columnnodeexpression("
_LAMBDA: Final = re.compile(r"(?:\((\w+_\d+(?:, \w+_\d+)*)\)|(\w+_\d+)) -> ")
_ATTRIBUTE = re.compile(r"UnresolvedAttribute\(List\(([^()]*)\),")


def written(value: str | Column) -> str:
    """An expression as a user wrote it, for a message that is the same each time.

    Spark shows what a Python function gets as an object of the JVM, with addresses. Here it is the column, or `...`.
    It numbers the arguments of lambdas, `x_7 -> +(x_7, 1)`, counting on in each process. Here each text begins with 1.

    >>> written("points > 3")
    "'points > 3'"
    """
    text = repr(value)
    while (start := text.find(_NODE)) >= 0:
        end = _closing(text, start + len(_NODE))
        inside = text[start + len(_NODE) : end]
        column = _ATTRIBUTE.match(inside)
        text = text[:start] + (column[1].replace(", ", ".") if column else "...") + text[end + 1 :]
    return text if isinstance(value, str) else _renumbered(text)


def _renumbered(text: str) -> str:
    """An expression with the arguments of its lambdas numbered from 1.

    >>> _renumbered("reduce(x, 0, (x_8, y_9) -> +(x_8, y_9))")
    'reduce(x, 0, (x_1, y_2) -> +(x_1, y_2))'
    >>> _renumbered("transform(a, x_7 -> f(b, x_8 -> +(x_7, x_8)))")
    'transform(a, x_1 -> f(b, x_2 -> +(x_1, x_2)))'
    """
    found = [name for several, one in _LAMBDA.findall(text) for name in (several or one).split(", ")]
    names = {name: f"{name.rpartition('_')[0]}_{number}" for number, name in enumerate(dict.fromkeys(found), 1)}
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis ends that was opened before `start`; the last one if a text inside has one of its own."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text) - 1


def input_type(frame: DataFrame, label: str, aggregate: Aggregate) -> str | None:
    """The type of what an aggregate is applied to; None for whole rows."""
    if aggregate.column is None:
        return None
    return expression_type(frame, aggregate.column, f"{label}={aggregate}")


def expression_type(frame: DataFrame, value: str | Column, where: str) -> str:
    """The type of a column, of SQL or of a Spark Column. `where` names the call in the error."""
    if isinstance(value, str) and value in frame.columns and value.isidentifier():
        return type_of(frame, value)
    is_name = isinstance(value, str) and value.isidentifier() and value.lower() not in _WORDS_OF_SQL
    if isinstance(frame, PlainFrame) and is_name:
        check_column(frame, str(value), where)  # Spark would say so too, once it has started
    with errors_in(frame, where):
        given = spark_frame(frame)
        chosen = given.selectExpr(value) if isinstance(value, str) else given.select(value)
    if (node := str(chosen._jdf.queryExecution().analyzed().nodeName())) != "Project":
        raise TopologyError(
            f"{where}: the expression {written(value)} isn't computed from one record ({node}). Give an expression of "
            "one record's columns; what combines several records is a function of your own: group_by().reduce(...), "
            "group_by().aggregate_with(...), or a processor."
        )
    return chosen.schema.fields[0].dataType.simpleString()


@contextlib.contextmanager
def errors_in(frame: DataFrame, where: str) -> Iterator[None]:
    """Raises Spark's error about an expression as ours, without its plan and its Java trace."""
    from pyspark.errors import AnalysisException

    try:
        with unlogged():
            yield
    except AnalysisException as error:
        raise TopologyError(f"{where}: {_reason(frame, error)}") from None


def _reason(frame: DataFrame, error: AnalysisException) -> str:
    parameters = error.getMessageParameters() or {}
    if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN") and "objectName" in parameters:
        return _no_column(frame, parameters["objectName"].replace("`", ""))
    (first, *_) = str(error).strip().splitlines()
    return re.sub(r"^\[[\w.]+\] | SQLSTATE: .*$", "", first).rstrip(";.") + "."


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """PySpark logs each error of an expression with its Java trace. Here the error that is raised says it all.

    Only those of this thread: others may want theirs.
    """
    with _filtering:
        _filter_loggers()
    before, _here.unlogged = _here.unlogged, True
    try:
        yield
    finally:
        _here.unlogged = before


class _Here(threading.local):
    unlogged = False


_here = _Here()
_filtering = threading.Lock()


@cache
def _filter_loggers() -> None:
    """Done once: to get a logger, PySpark changes the class of all new loggers for a moment."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not _here.unlogged


def is_repeatable(frame: DataFrame) -> bool:
    """Whether its steps give the same records each time. A filter such as `rand() < 0.5` does not."""
    if isinstance(frame, PlainFrame):
        return True
    return bool(frame._jdf.queryExecution().analyzed().deterministic())


def key_of(frame: DataFrame, columns: Iterable[str]) -> Schema:
    """The key with these columns. Raises for a type that can't be in a key."""
    key = Schema(tuple(Field(column, type_of(frame, column)) for column in columns))
    encode_keys(key, [pa.array([], field.field_type.arrow) for field in key.fields])
    return key


def type_of(frame: DataFrame, column: str) -> str:
    if column in frame.columns:
        return frame.schema[column].dataType.simpleString()
    raise TopologyError(_no_column(frame, column))


def check_column(frame: DataFrame, column: str, where: str) -> None:
    """Raises if there is no such column. Spark's names may differ in case."""
    if column.lower() not in map(str.lower, frame.columns):
        raise TopologyError(f"{where}: {_no_column(frame, column)}")


def check_names(columns: Iterable[object], call: str) -> None:
    """Raises for what isn't the name of a column."""
    from pyspark.sql import Column

    from holdfast.topology.windows import Windows

    for column in columns:
        if isinstance(column, str):
            continue
        if isinstance(column, Windows):
            raise TopologyError(
                f"{call}({column!r}): it takes names of columns, and this is a window. Write {call}().window(...)."
            )
        if isinstance(column, Column):
            raise TopologyError(
                f"{call}({written(column)}): it takes names of columns, and this is an expression. Name it first: "
                f'stream.with_column("name", ...).{call}("name").'
            )
        raise TopologyError(
            f"{call}({column!r}): it takes names of columns, each as an argument of its own: {call}('game', 'player')."
        )


def check_selected(frame: DataFrame, columns: Iterable[object], where: str) -> None:
    """Raises for SQL among the columns to keep, of which Spark would say that there is no such column."""
    for column in columns:
        if not isinstance(column, str) or not _may_be_sql(column) or _resolves(frame, column):
            continue
        found = re.fullmatch(r"(.+?)\s+AS\s+`?(\w+)`?", column, re.IGNORECASE)
        value, name = (found[1], found[2]) if found else (column, "name")
        raise TopologyError(
            f"{where}: {column!r} is no column but an expression, and select() takes names, as in PySpark. Write "
            f"with_column({name!r}, {value!r}) before it, and {name!r} here."
        )


def _may_be_sql(column: str) -> bool:
    """Whether there is more in a text than names with dots between them.

    >>> [_may_be_sql(each) for each in ("points", "*", "at.*", "at.`b-c`", "at.b-c", "points*2", "count(*)")]
    [False, False, False, False, True, True, True]
    """
    return re.search(r"[\s()+/%*-]", re.sub(r"`[^`]*`|(^|\.)\*$", "", column)) is not None


def _resolves(frame: DataFrame, column: str) -> bool:
    """Whether Spark finds this column, or this field of one: a name may have any letters."""
    from pyspark.errors import AnalysisException

    if column.lower() in map(str.lower, frame.columns):
        return True
    if "." not in column and "`" not in column:
        return False
    try:
        with unlogged():
            spark_frame(frame).select(column)
    except AnalysisException:
        return False
    return True


def _no_column(frame: DataFrame, column: str) -> str:
    hint = did_you_mean(column, frame.columns)
    return f"The stream has no column {column!r}. {hint}It has {', '.join(frame.columns)}."
