"""Groups raw records to one row per key in the task, as columns, with the same result as Spark's aggregation.

Every row gets the number of its group, and each aggregate is then one pass over its column. Records are grouped piece
by piece, and the groups of all pieces once more at the end, so memory depends on the number of keys of a task and not
on its records. Batches that this can't group like Spark (too many keys for one chunk, a sum beyond 64 bits) are
rejected. They are then computed by the plan with dead letters.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.pipeline.task import chunks
from holdfast.pipeline.task_columns import TIME, TaskColumns
from holdfast.stores.formats.byte_columns import whole
from holdfast.stores.formats.types import Schema
from holdfast.topology.aggregates import Function
from holdfast.topology.reducers import Reducer

PIECE_ROWS = 1_000_000

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_ORDERED = (*_WHOLE, "float", "double", "date", "timestamp")
_HALF = 32
_LOWER_BITS = 2**_HALF - 1
_UPPER, _LOWER = "/upper", "/lower"

Numbers = npt.NDArray[Any]


class RejectFastPlan(HoldfastError):
    """This fast plan can't compute the batch. The task returns `FastPlanRejected`."""

    category = ErrorCategory.RETRY


def can_group(key: Schema, reducers: Sequence[Reducer]) -> bool:
    """Whether grouping records of this key here gives the same result as Spark.

    Not where it would differ: floating-point keys, for which Spark has one NaN and one zero; minima and maxima of text;
    sums of decimals.
    """
    return all(field.field_type.name not in ("float", "double") for field in key.fields) and all(
        _can_reduce(reducer) for reducer in reducers
    )


def _can_reduce(reducer: Reducer) -> bool:
    match reducer.function:
        case Function.COUNT | Function.FIRST | Function.LAST:
            return True
        case Function.SUM | Function.MEAN:
            return reducer.partials[0].type in ("bigint", "double")
        case Function.MIN | Function.MAX:
            return reducer.partials[0].type in _ORDERED
        case _:
            return False  # Spark makes sketches and lists in the JVM


class _Groups(NamedTuple):
    """The rows of a table by key."""

    numbers: Numbers
    """The group of each row."""
    rows: Numbers
    """One row of each group."""

    @classmethod
    def of(cls, keys: Sequence[pa.ChunkedArray]) -> "_Groups":
        if any(column.null_count for column in keys):
            raise RejectFastPlan("The batch has records that can't be used.")
        numbers, size = _numbered(whole(keys[0]))
        for column in keys[1:]:
            own, different = _numbered(whole(column))
            numbers, size = _numbered(pa.array(numbers.astype(np.int64) * different + own))
        return cls(numbers, _last_rows(size, numbers, np.arange(len(numbers))))


def _numbered(column: pa.Array) -> tuple[Numbers, int]:
    """A number per value, the same for the same value, and how many there are."""
    encoded = column.dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)


def _last_rows(size: int, numbers: Numbers, rows: Numbers) -> Numbers:
    """The last of these rows in each group; `numbers` are their groups."""
    found = np.full(size, -1)
    found[numbers] = rows  # Where a group comes several times, the last assignment counts.
    return found


Combine = Callable[[_Groups, Sequence[pa.Array]], list[pa.Array]]
"""Combines the rows of each group: input columns to columns with one row per group."""


class _Measure(NamedTuple):
    """Columns of groups: how they are computed from columns of records, and again from groups of several pieces."""

    names: tuple[str, ...]
    inputs: tuple[str, ...]
    first: Combine
    again: Combine


def grouped(
    names: TaskColumns, reducers: Sequence[Reducer], batches: Iterable[pa.RecordBatch], most_keys: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, one per key, with the columns of `names`."""
    measures = _measures(names, reducers)
    gathered: list[pa.Table] = []
    for piece in chunks(batches, PIECE_ROWS):
        gathered.append(_group(names, piece, [(each.names, each.inputs, each.first) for each in measures]))
        if sum(table.num_rows for table in gathered) > most_keys:
            gathered = [_together(names, gathered, measures)]
            if gathered[0].num_rows > most_keys:
                raise RejectFastPlan(f"A task got more than {most_keys} keys, too many to group at once.")
    if gathered:
        yield from _finished(names, _together(names, gathered, measures)).to_batches()


def timed(names: TaskColumns, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Raw records with their event times in milliseconds: rounded down, also before 1970, as Spark does."""
    if not names.order:
        return batches
    micros = names.order[0]
    return (b.append_column(TIME, pa.array(pc.fill_null(b[micros], 0).to_numpy() // 1000)) for b in batches)


def _measures(names: TaskColumns, reducers: Sequence[Reducer]) -> list[_Measure]:
    assert names.inputs is not None
    partials = iter(names.partials)
    measures: list[_Measure] = []
    picked: dict[Function, list[_Measure]] = {}
    for reducer, column in zip(reducers, names.inputs, strict=True):
        own = tuple(next(partials) for _ in reducer.partials)
        values = () if column is None else (column,)
        match reducer.function:
            case Function.COUNT:
                measures.append(_Measure(own, values, _count, _sum))
            case Function.SUM if reducer.partials[0].type == "bigint":
                measures.append(_Measure((own[0] + _UPPER, own[0] + _LOWER), values, _sum_of_halves, _sum))
            case Function.SUM:
                measures.append(_Measure(own, values, _sum_of_doubles, _sum))
            case Function.MEAN:
                measures.append(_Measure(own[:1], values, _sum_of_doubles, _sum))
                measures.append(_Measure(own[1:], values, _count, _sum))
            case Function.MIN | Function.MAX:
                combine = _largest if reducer.function is Function.MAX else _smallest
                measures.append(_Measure(own, values, combine, combine))
            case Function.FIRST | Function.LAST:
                first, again = (partial(each, reducer.function, len(names.order)) for each in (_picked, _picked_again))
                picked.setdefault(reducer.function, []).append(_Measure(own, values, first, again))
    for each in picked.values():
        results, inputs = (tuple(chain.from_iterable(columns)) for columns in zip(*(m[:2] for m in each), strict=True))
        measures.append(each[0]._replace(names=results, inputs=(*names.order, *inputs)))
    if names.rows not in names.partials:
        measures.append(_Measure((names.rows,), (), _count, _sum))
    measures += [_Measure((name,), (name,), _largest, _largest) for name in names.times]
    return measures


def _group(
    names: TaskColumns, table: pa.Table, combined: Iterable[tuple[tuple[str, ...], tuple[str, ...], Combine]]
) -> pa.Table:
    groups = _Groups.of([table[name] for name in names.groups])
    columns = {name: whole(table[name]).take(pa.array(groups.rows)) for name in names.groups}
    for results, inputs, combine in combined:
        found = combine(groups, [whole(table[name]) for name in inputs])
        columns |= dict(zip(results, found, strict=True))
    return pa.table(columns)


def _together(names: TaskColumns, groups: Sequence[pa.Table], measures: Sequence[_Measure]) -> pa.Table:
    """The groups of all pieces, one row per key."""
    if len(groups) == 1:
        return groups[0]
    return _group(names, pa.concat_tables(groups), [(each.names, each.names, each.again) for each in measures])


def _count(groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """The number of rows; with a column, of those where it isn't null."""
    numbers = groups.numbers[_is_valid(columns[0])] if columns and columns[0].null_count else groups.numbers
    return [pa.array(np.bincount(numbers, minlength=len(groups.rows)))]


def _sum(groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    return [_reduced(np.add, 0, groups, column) for column in columns]


def _sum_of_doubles(groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    return _sum(groups, [column.cast(pa.float64(), safe=False) for column in columns])


def _sum_of_halves(groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """A sum of whole numbers as two sums that can't overflow: of the upper halves and of the lower halves."""
    wide = columns[0].cast(pa.int64())
    return _sum(groups, [pc.shift_right(wide, _HALF), pc.bit_wise_and(wide, pa.scalar(_LOWER_BITS, pa.int64()))])


def _largest(groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    return [_reduced(np.maximum, _limit(column, largest=False), groups, column) for column in columns]


def _smallest(groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    return [_reduced(np.fmin, _limit(column, largest=True), groups, column) for column in columns]


def _limit(column: pa.Array, *, largest: bool) -> float | int:
    """The value that every other one replaces. NaN is larger than every number: `fmin` takes the other one."""
    kind = _as_numbers(column.slice(0, 0)).dtype
    if kind.kind == "f":
        return np.nan if largest else -np.inf
    return int(np.iinfo(kind).max if largest else np.iinfo(kind).min)


def _reduced(function: np.ufunc, start: float, groups: _Groups, column: pa.Array) -> pa.Array:
    """One value per group, null where all values are null."""
    size, numbers, missing = len(groups.rows), groups.numbers, None
    if column.null_count:
        numbers = numbers[_is_valid(column)]
        missing = np.ones(size, bool)
        missing[numbers] = False
    values = _as_numbers(column.drop_null())
    found = np.full(size, start, values.dtype)
    with np.errstate(invalid="ignore"):  # NaN is a value like others
        function.at(found, numbers, values)
    return pa.array(found, mask=missing).view(column.type)


def _picked_again(function: Function, width: int, groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """`_picked` for its own results."""
    values = columns[width :: width + 1]
    return _picked(function, width, groups, [*columns[:width], *values])


def _picked(function: Function, width: int, groups: _Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """The first or last record of each group: per value its order, of `width` columns, and the value.

    `columns` are the order and all values. Most groups have one record with the extreme time. The few records that
    share it are sorted by the other columns.
    """
    last, size, order = function is Function.LAST, len(groups.rows), columns
    (extreme,) = (_largest if last else _smallest)(groups, order[:1])
    candidates = np.flatnonzero(order[0].to_numpy() == extreme.to_numpy()[groups.numbers])
    numbers = groups.numbers[candidates]
    rows = _last_rows(size, numbers, candidates)
    if len(candidates) > size:
        shared = np.bincount(numbers, minlength=size)[numbers] > 1
        candidates, numbers = candidates[shared], numbers[shared]
        rising = ascending([column.take(pa.array(candidates)) for column in order[1:]])
        in_order = rising if last else rising[::-1]
        settled = _last_rows(size, numbers[in_order], candidates[in_order])
        rows = np.where(settled < 0, rows, settled)
    taken = [column.take(pa.array(rows)) for column in columns]
    return [column for value in taken[width:] for column in (*taken[:width], value)]


def ascending(columns: Sequence[pa.Array]) -> Numbers:
    """The order of tuples: column by column, null smallest and NaN largest."""
    keys: dict[str, pa.Array] = {}
    for n, column in enumerate(columns):
        keys[f"{n}valid"] = column.is_valid()
        if pa.types.is_floating(column.type):
            keys[f"{n}nan"] = pc.is_nan(column)
        keys[str(n)] = column
    by = [(name, "ascending") for name in keys]
    found: Numbers = pc.sort_indices(pa.table(keys), sort_keys=by).to_numpy()
    return found


def _is_valid(column: pa.Array) -> Numbers:
    found: Numbers = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _as_numbers(column: pa.Array) -> Numbers:
    """A column without nulls as numbers; dates and times as their days and microseconds."""
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    found: Numbers = column.to_numpy(zero_copy_only=False)
    return found


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
    return pc.add_checked(
        pc.multiply_checked(upper, 2**_HALF), pc.bit_wise_and(lower, pa.scalar(_LOWER_BITS, pa.int64()))
    )
