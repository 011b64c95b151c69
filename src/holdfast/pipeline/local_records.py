"""Records of a version without Spark: the columns that tasks get, made from Arrow columns in this process.

Each planner has two ways to prepare the rows of its tasks: expressions for Spark, and a method `local`, which a test
driver calls. What both need is here. An expression that is more than the name of a column runs on Spark here too.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.clock_columns import clocks_of
from holdfast.pipeline.grouping import ascending
from holdfast.pipeline.task_columns import DEAD, MICROS, TIME
from holdfast.pipeline.unusable import YEAR_1
from holdfast.stores.formats.arrow_values import python_rows
from holdfast.stores.formats.byte_columns import whole
from holdfast.topology.plain_frames import local_session
from holdfast.topology.stream import SOURCE
from holdfast.words import Millis

if TYPE_CHECKING:
    from pyspark.sql import Column

    from holdfast.pipeline.unusable import Case, Expression
    from holdfast.topology.stream import Stream

_letters = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


class LocalRows(NamedTuple):
    """The rows of all tasks in one version, in the order in which a task gets them."""

    table: pa.Table
    keys: tuple[str, ...]
    """The columns by which they are distributed to tasks."""


def name_in(expression: Expression) -> str | None:
    """The column that an expression is; None if it is more than a name.

    >>> name_in("points"), name_in("`at`"), name_in("points + 1")
    ('points', 'at', None)
    """
    if not isinstance(expression, str):
        return None
    if expression.isidentifier():
        return expression
    inner = expression[1:-1].replace("``", "")
    return expression[1:-1].replace("``", "`") if expression == f"`{expression[1:-1]}`" and "`" not in inner else None


def values_of(records: pa.Table, expressions: Sequence[Expression]) -> list[pa.Array]:
    """The values of expressions, one array each."""
    known = [_known(records, each) for each in expressions]
    others = [each for each, values in zip(expressions, known, strict=True) if values is None]
    computed = iter(_on_spark(records, others) if others else ())
    return [next(computed) if values is None else values for values in known]


def _known(records: pa.Table, expression: Expression) -> pa.Array | None:
    """The values of an expression that needs no Spark: of a column, or of a condition that is always or never true."""
    if (name := name_in(expression)) in records.column_names:
        return whole(records[name])
    if name in ("true", "false"):
        return pa.repeat(pa.scalar(name == "true"), records.num_rows)
    return None


def _on_spark(records: pa.Table, expressions: Sequence[Expression]) -> list[pa.Array]:
    from pyspark.sql import functions as F

    frame = local_session().createDataFrame(records)
    columns: list[Column] = [F.expr(each) if isinstance(each, str) else each for each in expressions]
    found = frame.select(*(column.alias(f"e{n}") for n, column in enumerate(columns))).toArrow()
    return [whole(column) for column in found.columns]


def times_of(stream: Stream, records: pa.Table) -> dict[str, pa.Array]:
    """The event times in milliseconds and in microseconds, and in a merged stream those of each source."""
    if stream.timestamp is None:
        return {}
    micros = micros_of(records, stream.timestamp)
    times = {TIME: millis_of(micros), MICROS: micros}
    if len(stream.branches) > 1:
        for source, name in clocks_of(stream):
            times[name] = pc.if_else(pc.equal(whole(records[SOURCE]), source), times[TIME], pa.scalar(None, pa.int64()))
    return times


def latest(records: pa.Table, timestamps: Sequence[str], limit: int) -> Millis | None:
    """The largest event time up to a limit, in milliseconds; None if there is none."""
    times = (millis_of(micros_of(records, name)) for name in timestamps)
    counted = (each.filter(pc.and_(pc.less_equal(each, limit), pc.greater_equal(each, YEAR_1))) for each in times)
    found = (pc.max(each).as_py() for each in counted)
    return max((Millis(time) for time in found if time is not None), default=None)


def micros_of(records: pa.Table, timestamp: str) -> pa.Array:
    return whole(records[timestamp]).cast(pa.timestamp("us")).cast(pa.int64())


def millis_of(micros: pa.Array) -> pa.Array:
    """Microseconds as milliseconds, rounded down, also before 1970.

    >>> millis_of(pa.array([1_500, -1, None])).to_pylist()
    [1, -1, None]
    """
    missing = micros.is_null().to_numpy(zero_copy_only=False)
    return pa.array(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False) // 1000, mask=missing)


def positions_of(stream: Stream, records: pa.Table) -> dict[str, pa.Array]:
    return {f"s{n}": whole(records[column]) for n, column in enumerate(stream.position)}


def dead_letters(cases: Sequence[Case], records: pa.Table, hidden: Collection[str]) -> pa.Array:
    """Null for a usable record, else JSON with the reason and the record, without hidden columns."""
    shown = records.select([name for name in records.column_names if name not in hidden])
    letters: list[str | None] = [None] * records.num_rows
    for case in reversed(cases):  # the first case counts
        found = np.flatnonzero(holds(case, records))
        rows = python_rows(shown.take(pa.array(found))) if len(found) else []
        for place, row in zip(found, rows, strict=True):
            letters[place] = letter(case.reason, row)
    return pa.array(letters, pa.string())


def holds(case: Case, records: pa.Table) -> npt.NDArray[np.bool_]:
    """For which records a case is true."""
    if case.check is None:
        (found,) = values_of(records, [case.condition])
    else:
        found = case.check(records)
    answers: npt.NDArray[np.bool_] = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return answers


def letter(reason: str, record: Mapping[str, Any]) -> str:
    """A dead letter as JSON."""
    shown = {name: _as_spark_writes(value) for name, value in record.items()}
    return _letters.encode({"reason": reason, "record": shown}).decode()


def _as_spark_writes(value: object) -> object:
    """A value for JSON, as Spark's `to_json` has it.

    >>> _as_spark_writes({"x": float("nan"), "at": [dt.datetime(2030, 1, 1, tzinfo=dt.UTC)]})
    {'x': 'NaN', 'at': ['2030-01-01T00:00:00.000Z']}
    """
    match value:
        case dt.datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: _as_spark_writes(each) for name, each in value.items()}
        case list():
            return [_as_spark_writes(each) for each in value]
    return value


def in_order(rows: Mapping[str, pa.Array], dead: pa.Array, order: Sequence[str], carried: Sequence[str]) -> pa.Table:
    """The rows in the order of these columns, nulls first, with the columns that tasks get."""
    table = pa.table({**rows, DEAD: dead})
    if order:
        table = table.take(pa.array(ascending([whole(table[name]) for name in order])))
    return table.select(list(dict.fromkeys(carried)))
