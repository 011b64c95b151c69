"""Aggregates as columns: what a store keeps for an aggregate, and how a batch is merged into it.

A reducer works on whole Arrow columns: `old` comes from the store (null where the key is new), `new` was pre-aggregated
from the batch by Spark. Every merge is associative and commutative over records, so batch boundaries never change the
final state. That is why `first` and `last` break the last tie by values: all `last` of a row by all their values, in
the order in which they were declared, and so all `first`. So they are values of one record. Sketches are the exception:
their results are estimates, which may differ within their error.

A store's row has the results first, under the user's names, and then hidden columns that only the merges need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ErrorCategory, HoldfastError, TopologyError
from holdfast.stores.formats.types import Field, FieldType
from holdfast.topology import sketches
from holdfast.topology.aggregates import SKETCHES, Aggregate, Function
from holdfast.topology.collecting import collected
from holdfast.topology.columns import add, beats, compared, larger, quotient, smaller

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FLOATING = ("float", "double")


class Overflow(HoldfastError):
    """An aggregate left the range of its type. Nothing of the batch was committed."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Reducer:
    """One aggregate, bound to the type of its input.

    `fields` are its columns in the store's row: the result, then hidden ones. `partials` are the columns that Spark's
    pre-aggregation delivers, in this order.
    """

    name: str
    function: Function
    fields: tuple[Field, ...]
    partials: tuple[Field, ...]
    input: str = ""
    """The type of the values, of a sketch or of collected values."""
    parameters: tuple[float, ...] = ()
    several: bool = False
    position: tuple[str, ...] = ()
    """The types of the source position, by which collected values are ordered after their time."""

    @property
    def is_large(self) -> bool:
        """Whether it keeps kilobytes per key."""
        return self.function in SKETCHES or self.function is Function.COLLECT

    def merge(
        self, old: Sequence[pa.Array], new: Sequence[pa.Array], takes_new: pa.BooleanArray | None = None
    ) -> list[pa.Array]:
        """The row's columns after the batch. `old` is in the order of `fields`, `new` in that of `partials`.

        `takes_new` is what `chosen_records` has found for a first or last value.
        """
        match self.function:
            case Function.COUNT:
                return [add(pc.fill_null(old[0], 0), new[0], self.fields[0].field_type.arrow)]
            case Function.SUM:
                return [add(old[0], new[0], self.fields[0].field_type.arrow)]
            case Function.MIN:
                return [smaller(old[0], new[0])]
            case Function.MAX:
                return [larger(old[0], new[0])]
            case Function.MEAN:
                total = add(old[1], new[0], self.fields[1].field_type.arrow)
                number = add(pc.fill_null(old[2], 0), new[1], pa.int64())
                return [quotient(total, number, self.fields[0].field_type.arrow), total, number]
            case Function.FIRST | Function.LAST:
                if takes_new is None:
                    (takes_new,) = chosen_records([self], [old], [new])
                pairs = zip([new[-1], *new[:-1]], old, strict=True)
                return [pc.if_else(takes_new, n, o) for n, o in pairs]
            case Function.APPROX_COUNT_DISTINCT:
                return sketches.distinct(old[1], new[0])
            case Function.APPROX_QUANTILE:
                return sketches.quantiles(old[1], new[0], self.parameters, several=self.several)
            case Function.FREQUENT:
                return sketches.frequent(old[1], new[0], int(self.parameters[0]))
            case Function.COLLECT:
                (limit,) = map(int, self.parameters)
                return collected(old[1], new[0], self.input, limit, 1 + len(self.position))

    def as_partials(self, row: Sequence[pa.Array]) -> list[pa.Array]:
        """The columns of a row, in the order of `fields`, as partial results: so two rows can be merged."""
        match self.function:
            case Function.COUNT | Function.SUM | Function.MIN | Function.MAX:
                return list(row)
            case Function.FIRST | Function.LAST:
                return [*row[1:], row[0]]
            case _:
                return list(row[1:])


Columns = Sequence[pa.Array]


def chosen_records(
    reducers: Sequence[Reducer], old: Sequence[Columns], new: Sequence[Columns]
) -> list[pa.BooleanArray | None]:
    """Where each first or last value is that of the new record from now on; None for other aggregates.

    `old` and `new` have the columns of each reducer, as in `Reducer.merge`.
    """
    found: list[pa.BooleanArray | None] = [None] * len(reducers)
    for function in (Function.FIRST, Function.LAST):
        places = [n for n, reducer in enumerate(reducers) if reducer.function is function]
        rows = [_Picked([old[n][1:] for n in places], [old[n][0] for n in places])]
        rows.append(_Picked([new[n][:-1] for n in places], [new[n][-1] for n in places]))
        if all(each.is_one_record for each in rows):
            chosen = [_is_chosen(function, *(each.of(0) for each in rows))] * len(places) if places else []
        else:
            chosen = [_is_chosen(function, *(each.of(n) for each in rows)) for n in range(len(places))]
        for place, takes_new in zip(places, chosen, strict=True):
            found[place] = takes_new
    return found


@dataclass(frozen=True)
class _Picked:
    """The values that all first or all last aggregates have picked, each with event time and source position."""

    orders: Sequence[Columns]
    values: Columns

    @cached_property
    def is_one_record(self) -> bool:
        """Whether the values of each row are those of one record. Of an aggregate that was added later, they aren't."""
        return all(a.equals(b) for order in self.orders[1:] for a, b in zip(order, self.orders[0], strict=True))

    def of(self, number: int) -> Columns:
        """What the record of one aggregate is ordered by: time, position, and the values of the same record."""
        order = self.orders[number]
        if self.is_one_record:
            return [*order, *self.values]
        return [*order, *(self._if_same(order, *each) for each in zip(self.orders, self.values, strict=True))]

    def _if_same(self, order: Columns, other: Columns, value: pa.Array) -> pa.Array:
        same = reduce(pc.and_, (compared(a, b)[1] for a, b in zip(order, other, strict=True)))
        return pc.if_else(same, value, pa.scalar(None, value.type))


def _is_chosen(function: Function, old: Columns, new: Columns) -> pa.BooleanArray:
    is_new_key = pc.is_null(old[0])  # event time is never null in a row that exists
    if function is Function.LAST:
        return pc.or_(is_new_key, beats(new, old))
    return pc.or_(is_new_key, pc.and_(pc.is_valid(new[0]), beats(old, new)))


def bind(name: str, aggregate: Aggregate, input_type: str | None, position: Sequence[str] = ()) -> Reducer:
    """The reducer of `aggregate` over an input of Spark type `input_type` (None for `count()`).

    >>> bind("avg", Aggregate(Function.MEAN, "x"), "int").fields[0]
    Field(name='avg', type='double')
    """
    function = aggregate.function
    if function is Function.COUNT:
        return Reducer(name, function, (Field(name, "bigint"),), (Field(name, "bigint"),))
    assert input_type is not None
    if function is Function.SUM:
        summed = Field(name, _sum_type(name, aggregate, input_type))
        return Reducer(name, function, (summed,), (summed,))
    if function in (Function.MIN, Function.MAX):
        kept = Field(name, _storable(name, aggregate, input_type))
        return Reducer(name, function, (kept,), (kept,))
    if function is Function.MEAN:
        total, result = _mean_types(name, aggregate, input_type)
        hidden = (_hidden(name, "sum", total), _hidden(name, "count", "bigint"))
        return Reducer(name, function, (Field(name, result), *hidden), hidden)
    if function in SKETCHES:
        result, what = _sketch_types(name, aggregate, input_type)
        sketch = _hidden(name, what, "binary")
        fields = (Field(name, result), sketch)
        return Reducer(name, function, fields, (sketch,), input_type, aggregate.parameters, aggregate.several)
    if function is Function.COLLECT:
        _check_collected(name, aggregate, input_type, position)
        items = _hidden(name, "days" if input_type == "date" else "items", "string")
        fields = (Field(name, "string"), items)
        return Reducer(name, function, fields, (items,), input_type, aggregate.parameters, position=tuple(position))
    kept = Field(name, _storable(name, aggregate, input_type))
    order = (
        _hidden(name, "time", "bigint"),
        *(_hidden(name, str(n), _storable(name, aggregate, kind)) for n, kind in enumerate(position)),
    )
    return Reducer(name, function, (kept, *order), (*order, kept))


def _hidden(aggregate: str, what: str, type_: str) -> Field:
    """A column that only the merges of an aggregate need. No column of a user can have this name."""
    return Field(f"{aggregate}#{what}", type_, aggregate)


def _decimal(text: str) -> tuple[int, int] | None:
    if not text.startswith("decimal("):
        return None
    precision, scale = text[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _sum_type(name: str, aggregate: Aggregate, text: str) -> str:
    if text in _WHOLE:
        return "bigint"
    if text in _FLOATING:
        return "double"
    if (decimal := _decimal(text)) is not None:
        return f"decimal({min(38, decimal[0] + 10)},{decimal[1]})"
    raise _not_a_number(name, aggregate, text)


def _mean_types(name: str, aggregate: Aggregate, text: str) -> tuple[str, str]:
    if text in _WHOLE or text in _FLOATING:
        return "double", "double"
    if (decimal := _decimal(text)) is not None:
        precision, scale = decimal
        return f"decimal({min(38, precision + 10)},{scale})", f"decimal({min(38, precision + 4)},{min(38, scale + 4)})"
    raise _not_a_number(name, aggregate, text)


def _check_collected(name: str, aggregate: Aggregate, text: str, position: Sequence[str]) -> None:
    if text not in (*_WHOLE, *_FLOATING, "string", "boolean", "date"):
        raise TopologyError(
            f"{name}={aggregate}: its result is a JSON list, and values of type {text} have no fixed text there. Cast "
            "the column to a string as you want to see it."
        )
    for kind in position:
        if kind not in (*_WHOLE, "date"):
            raise TopologyError(
                f"{name}={aggregate} orders records by their source position, and a column of it is of type {kind}. "
                "Use whole numbers or dates as position, such as Kafka's partition and offset."
            )


def _sketch_types(name: str, aggregate: Aggregate, text: str) -> tuple[str, str]:
    """The type of the result, and the name of the sketch. It says how values become inputs, so a change is seen."""
    kind = FieldType.parse(_storable(name, aggregate, text)).name
    match aggregate.function:
        case Function.APPROX_COUNT_DISTINCT:
            return "bigint", f"hll_{'bigint' if kind in _WHOLE else 'double' if kind in _FLOATING else kind}"
        case Function.APPROX_QUANTILE:
            if kind not in (*_WHOLE, *_FLOATING, "decimal"):
                raise _not_a_number(name, aggregate, text)
            return "string" if aggregate.several else "double", "kll"
        case _:
            if kind in ("binary", "timestamp", "timestamp_ntz"):
                raise TopologyError(
                    f"{name}={aggregate}: the values of its result are texts, and a {text} has no fixed text. Cast it "
                    "to a string as you want to see it."
                )
            return "string", "items"


def _storable(name: str, aggregate: Aggregate, text: str) -> str:
    try:
        return str(FieldType.parse(text))
    except HoldfastError as error:
        raise TopologyError(f"{name}={aggregate}: a column of type {text} can't be stored. {error}") from error


def _not_a_number(name: str, aggregate: Aggregate, text: str) -> TopologyError:
    return TopologyError(
        f"{name}={aggregate} needs numbers, and its column is of type {text}. Cast it first, or use hf.count, "
        "hf.min, hf.max, hf.first or hf.last, which accept other types."
    )
