"""Groups raw records to one row per key in the task, as columns, with the same result as Spark's aggregation.

Records are grouped piece by piece, and the groups of all pieces once more at the end, so memory depends on the number
of keys of a task and not on its records. Batches that this can't group like Spark (too many keys for one chunk, a sum
beyond 64 bits) are rejected. They are then computed by the plan with dead letters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.pipeline.task import chunks
from holdfast.pipeline.task_columns import TaskColumns
from holdfast.stores.formats.types import Schema
from holdfast.topology.aggregates import Function
from holdfast.topology.reducers import Reducer

PIECE_ROWS = 1_000_000

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_ORDERED = (*_WHOLE, "date", "timestamp")
_HALF = 32
_LOWER_BITS = pa.scalar(2**_HALF - 1, pa.int64())
_UPPER, _LOWER = "/upper", "/lower"
_ALL_ROWS = "count_all"


class RejectFastPlan(HoldfastError):
    """This fast plan can't compute the batch. The task returns `FastPlanRejected`."""

    category = ErrorCategory.RETRY


def can_group(key: Schema, reducers: Sequence[Reducer]) -> bool:
    """Whether grouping records of this key here gives the same result as Spark.

    Not where Arrow differs: floating-point keys, for which Spark has one NaN and one zero; minima and maxima of
    floating-point numbers and text; decimals; first and last, which Spark compares as tuples.
    """
    return all(field.field_type.name not in ("float", "double") for field in key.fields) and all(
        _can_reduce(reducer) for reducer in reducers
    )


def _can_reduce(reducer: Reducer) -> bool:
    match reducer.function:
        case Function.COUNT:
            return True
        case Function.SUM | Function.MEAN:
            return reducer.partials[0].type in ("bigint", "double")
        case Function.MIN | Function.MAX:
            return reducer.partials[0].type in _ORDERED
        case Function.FIRST | Function.LAST:
            return False


@dataclass(frozen=True)
class _Measure:
    """A column of groups: the function for a column of records (None: all rows), and the one for columns of groups."""

    name: str
    of: pa.ChunkedArray | None
    first: str
    again: str = "sum"


def grouped(
    names: TaskColumns, reducers: Sequence[Reducer], batches: Iterable[pa.RecordBatch], most_keys: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, one per key, with the columns of `names`."""
    again: dict[str, str] = {}
    gathered: list[pa.Table] = []
    for piece in chunks(batches, PIECE_ROWS):
        measures = _measures(names, reducers, piece)
        again = {measure.name: measure.again for measure in measures}
        gathered.append(_group(names, piece, measures))
        if sum(table.num_rows for table in gathered) > most_keys:
            gathered = [_together(names, gathered, again)]
            if gathered[0].num_rows > most_keys:
                raise RejectFastPlan(f"A task got more than {most_keys} keys, too many to group at once.")
    if gathered:
        groups = _together(names, gathered, again)
        yield from _finished(names, groups).to_batches()


def _measures(names: TaskColumns, reducers: Sequence[Reducer], records: pa.Table) -> list[_Measure]:
    assert names.inputs is not None
    partials = iter(names.partials)
    measures: list[_Measure] = []
    for reducer, column in zip(reducers, names.inputs, strict=True):
        values = None if column is None else records[column]
        own = [next(partials) for _ in reducer.partials]
        match reducer.function:
            case Function.COUNT:
                measures.append(_Measure(own[0], values, _ALL_ROWS if values is None else "count"))
            case Function.SUM if reducer.partials[0].type == "bigint":
                measures += _halves(own[0], values)
            case Function.SUM:
                measures.append(_Measure(own[0], _as_double(values), "sum"))
            case Function.MEAN:
                measures += [_Measure(own[0], _as_double(values), "sum"), _Measure(own[1], values, "count")]
            case _:
                measures.append(_Measure(own[0], values, reducer.function.value, reducer.function.value))
    if names.rows not in names.partials:
        measures.append(_Measure(names.rows, None, _ALL_ROWS))
    measures += [_Measure(name, records[name], "max", "max") for name in names.times]
    return measures


def _halves(name: str, values: pa.ChunkedArray | None) -> list[_Measure]:
    """A sum of whole numbers as two sums that can't overflow: of the upper halves and of the lower halves."""
    assert values is not None
    wide = values.cast(pa.int64())
    return [
        _Measure(name + _UPPER, pc.shift_right(wide, _HALF), "sum"),
        _Measure(name + _LOWER, pc.bit_wise_and(wide, _LOWER_BITS), "sum"),
    ]


def _as_double(values: pa.ChunkedArray | None) -> pa.ChunkedArray:
    assert values is not None
    return values.cast(pa.float64(), safe=False)


def _group(names: TaskColumns, records: pa.Table, measures: Sequence[_Measure]) -> pa.Table:
    columns = {name: records[name] for name in names.groups}
    columns |= {measure.name: measure.of for measure in measures if measure.of is not None}
    asked: list[tuple[str | list[str], str]] = [(m.name, m.first) for m in measures if m.of is not None]
    found = pa.table(columns).group_by(list(names.groups), use_threads=False).aggregate([*asked, ([], _ALL_ROWS)])
    outcome = {name: found[name] for name in names.groups}
    for measure in measures:
        outcome[measure.name] = found[_ALL_ROWS if measure.of is None else f"{measure.name}_{measure.first}"]
    return pa.table(outcome)


def _together(names: TaskColumns, groups: Sequence[pa.Table], again: Mapping[str, str]) -> pa.Table:
    """The groups of all pieces, one row per key."""
    if len(groups) == 1:
        return groups[0]
    by_key = pa.concat_tables(groups).group_by(list(names.groups), use_threads=False)
    found = by_key.aggregate(list(again.items()))
    columns = {name: found[name] for name in names.groups}
    return pa.table(columns | {name: found[f"{name}_{function}"] for name, function in again.items()})


def _finished(names: TaskColumns, groups: pa.Table) -> pa.Table:
    """The groups with the two halves of every sum added."""
    columns = {name: groups[name] for name in groups.column_names if not name.endswith((_UPPER, _LOWER))}
    try:
        columns |= {name: _whole(groups, name) for name in names.partials if name not in columns}
    except pa.ArrowInvalid as error:
        raise RejectFastPlan(f"A sum in the batch exceeds 64 bits: {error}") from error
    return pa.table(columns)


def _whole(groups: pa.Table, name: str) -> pa.ChunkedArray:
    upper, lower = groups[name + _UPPER], groups[name + _LOWER]
    upper = pc.add(upper, pc.shift_right(lower, _HALF))  # the carry of the lower halves
    return pc.add_checked(pc.multiply_checked(upper, 2**_HALF), pc.bit_wise_and(lower, _LOWER_BITS))
