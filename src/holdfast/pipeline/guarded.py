"""A user's Python functions in Spark's workers, guarded: they answer which rows they raise for, and why.

A function of many rows is called with all of them. If it raises, it is called with each half, down to single rows.
Spark itself cuts the rows of such a function into batches of any size, so it can't depend on the others of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.core.broadcast import Broadcast, BroadcastPickleRegistry, _from_id
from pyspark.serializers import CloudPickleSerializer, write_with_length
from pyspark.util import PythonEvalType
from pyspark.worker_util import read_command

from holdfast.errors import USER_ERRORS
from holdfast.pipeline.raised import raised

Pandas: TypeAlias = Any
"""A Series or DataFrame of pandas, which is imported only where a user's function needs it."""

ROW = "_holdfast_row"
"""The column with the number of a row, of a function that is called with whole rows."""


@dataclass(frozen=True)
class _Guarded:
    """A function, and its name for the reason."""

    function: Callable[..., Any]
    name: str

    def reason(self, error: BaseException) -> str:
        return f"{self.name} raised {raised(error)}"

    def reasons(self, call: Callable[[int, int], object], rows: int) -> list[str | None]:
        """For each row, why it fails; None if it doesn't. `call(start, stop)` calls the function with some rows."""
        found: list[str | None] = [None] * rows
        open_ranges = [(0, rows)] if rows else []
        while open_ranges:
            start, stop = open_ranges.pop()
            try:
                call(start, stop)
            except USER_ERRORS as error:
                if stop - start == 1:
                    found[start] = self.reason(error)
                else:
                    middle = (start + stop) // 2
                    open_ranges += [(start, middle), (middle, stop)]
        return found


class _PerRow(_Guarded):
    """A function that is called per row."""

    def __call__(self, *values: Any, **named: Any) -> str | None:
        try:
            self.function(*values, **named)
        except USER_ERRORS as error:
            return self.reason(error)
        return None


class _OfSeries(_Guarded):
    """A function of pandas Series, or of DataFrames where a column is a struct."""

    def __call__(self, *columns: Any, **named: Any) -> Pandas:
        def call(start: int, stop: int) -> object:
            own = [_cut(each, start, stop) for each in columns]
            return self.function(*own, **{name: _cut(each, start, stop) for name, each in named.items()})

        import pandas as pd  # type: ignore[import-untyped]

        return pd.Series(self.reasons(call, _rows(columns, named)), dtype=object)


class _OfArrays(_Guarded):
    """A function of Arrow arrays."""

    def __call__(self, *columns: Any, **named: Any) -> pa.Array:
        def call(start: int, stop: int) -> object:
            own = [each.slice(start, stop - start) for each in columns]
            return self.function(*own, **{name: each.slice(start, stop - start) for name, each in named.items()})

        return pa.array(self.reasons(call, _rows(columns, named)), pa.string())


class _OfSeriesIterator(_Guarded):
    """A function of an iterator of Series, or of tuples of them."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Pandas]:
        for batch in batches:
            yield _OfSeries(_one_batch(self.function, batch), self.name)(*_columns(batch))


class _OfArrayIterator(_Guarded):
    """A function of an iterator of Arrow arrays, or of tuples of them."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[pa.Array]:
        for batch in batches:
            yield _OfArrays(_one_batch(self.function, batch), self.name)(*_columns(batch))


class _OfFrames(_Guarded):
    """The function of `mapInPandas`: gives the numbers of the rows for which it raises, and the reasons."""

    def __call__(self, frames: Iterable[Pandas]) -> Iterator[Pandas]:
        import pandas as pd

        for frame in frames:
            given = frame.drop(columns=[ROW])

            def call(start: int, stop: int, given: Pandas = given) -> object:
                return [*self.function(iter([_cut(given, start, stop)]))]

            found = pd.DataFrame({ROW: frame[ROW], "error": self.reasons(call, len(frame))})
            yield found[found["error"].notnull()]


class _OfBatches(_Guarded):
    """The same for `mapInArrow`."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = batch.drop_columns([ROW])

            def call(start: int, stop: int, given: pa.RecordBatch = given) -> object:
                return [*self.function(iter([given.slice(start, stop - start)]))]

            errors = pa.array(self.reasons(call, batch.num_rows), pa.string())
            found = pa.RecordBatch.from_arrays([batch[ROW], errors], names=[ROW, "error"])
            yield found.filter(errors.is_valid())


_GUARDS: Mapping[int, Callable[[Callable[..., Any], str], Callable[..., Any]]] = {
    PythonEvalType.SQL_BATCHED_UDF: _PerRow,
    PythonEvalType.SQL_ARROW_BATCHED_UDF: _PerRow,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: _OfSeries,
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: _OfSeriesIterator,
    PythonEvalType.SQL_SCALAR_ARROW_UDF: _OfArrays,
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: _OfArrayIterator,
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF: _OfFrames,
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF: _OfBatches,
}


def can_guard(kind: int) -> bool:
    """Whether a function of this kind of Spark's gets rows that don't depend on each other."""
    return kind in _GUARDS


def guarded(function: Callable[..., Any], kind: int, name: str) -> Callable[..., Any]:
    """The function as one that gives the reason why it raises for a row, and null for other rows.

    >>> number = guarded(int, PythonEvalType.SQL_BATCHED_UDF, "number()")
    >>> number("7"), number("x")
    (None, "number() raised ValueError: invalid literal for int() with base 10: 'x'")
    """
    return _GUARDS[kind](function, name)


@dataclass(frozen=True)
class Variable:
    """A broadcast variable that a pickled function uses. In the worker it is Spark's own."""

    _jbroadcast: Any
    registry: BroadcastPickleRegistry
    """What Spark sends with the function that it pickles now."""

    def __reduce__(self) -> tuple[Callable[[int], Broadcast[Any]], tuple[int]]:
        self.registry.add(self)  # type: ignore[arg-type]
        return _from_id, (self._jbroadcast.id(),)


@dataclass(frozen=True)
class GuardedCommand:
    """A function of a plan, guarded. It stays pickled on the driver: only workers have its broadcast variables."""

    command: bytes
    variables: tuple[Variable, ...]
    kind: int
    name: str

    def __call__(self, *columns: Any) -> Any:
        raise NotImplementedError("A worker has the guarded function in its place.")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _loaded, (self.command, self.variables, self.kind, self.name)


def _loaded(command: bytes, _variables: object, kind: int, name: str) -> Callable[..., Any]:
    framed = BytesIO()  # before Spark 4.3, a command is read from a file only
    write_with_length(command, framed)  # type: ignore[no-untyped-call]
    framed.seek(0)
    function, *_ = read_command(CloudPickleSerializer(), framed)
    return guarded(function, kind, name)


def _one_batch(function: Callable[..., Any], batch: Any) -> Callable[..., object]:
    """A function of an iterator as one of the columns of one batch."""
    if isinstance(batch, tuple):
        return lambda *columns: [*function(iter([columns]))]
    return lambda column: [*function(iter([column]))]


def _columns(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _rows(columns: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return len((*columns, *named.values())[0])


def _cut(column: Any, start: int, stop: int) -> Any:
    return column.iloc[start:stop].reset_index(drop=True)
