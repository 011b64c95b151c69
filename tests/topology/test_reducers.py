"""Reducers merge columns by Spark's rules, for any batches."""

import builtins
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import TopologyError
from holdfast.topology.aggregates import Aggregate, Function, count, first, last, max, mean, min, sum
from holdfast.topology.reducers import Reducer, bind
from holdfast.topology.row_merging import merged as merged_rows
from holdfast.topology.row_merging import rows_of

floats = st.one_of(st.none(), st.floats(allow_nan=True, width=64))
whole = st.one_of(st.none(), st.integers(-(2**40), 2**40))


def column(reducer: Reducer, at: int, values: list[object]) -> pa.Array:
    return pa.array(values, reducer.partials[at].field_type.arrow)


def empty(reducer: Reducer, rows: int) -> list[pa.Array]:
    return [pa.nulls(rows, field.field_type.arrow) for field in reducer.fields]


def merged(reducer: Reducer, batches: list[list[object]]) -> list[object]:
    """One key's state after these batches, each pre-aggregated as by Spark."""
    state = empty(reducer, 1)
    for partials in batches:
        state = reducer.merge(state, [column(reducer, n, [value]) for n, value in enumerate(partials)])
    return [part.to_pylist()[0] for part in state]


def spark_max(values: list[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    if any(math.isnan(v) for v in present):
        return math.nan
    return sorted(present)[-1] if present else None


def spark_min(values: list[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    numbers = [v for v in present if not math.isnan(v)]
    return sorted(numbers)[0] if numbers else (math.nan if present else None)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


@given(st.lists(floats, min_size=1, max_size=8))
def test_max_follows_spark_nan_is_largest_and_nulls_are_ignored(values: list[float | None]) -> None:
    assert same(merged(bind("x", max("x"), "double"), [[v] for v in values])[0], spark_max(values))


@given(st.lists(floats, min_size=1, max_size=8))
def test_min_follows_spark_nan_only_if_there_is_no_number(values: list[float | None]) -> None:
    assert same(merged(bind("x", min("x"), "double"), [[v] for v in values])[0], spark_min(values))


@given(st.lists(whole, min_size=1, max_size=8))
def test_a_sum_is_null_only_if_all_values_are(values: list[int | None]) -> None:
    present = [v for v in values if v is not None]
    total = builtins.sum(present) if present else None
    assert merged(bind("x", sum("x"), "bigint"), [[v] for v in values])[0] == total


def test_a_sum_of_more_than_64_bits_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        merged(bind("x", sum("x"), "bigint"), [[2**63 - 1], [1]])


def test_a_decimal_sum_with_too_many_digits_is_an_error() -> None:
    reducer = bind("x", sum("x"), "decimal(38,0)")
    with pytest.raises(pa.ArrowInvalid):
        merged(reducer, [[Decimal(10**38 - 1)], [Decimal(1)]])


def test_decimals_add_exactly() -> None:
    reducer = bind("x", sum("x"), "decimal(10,2)")
    assert reducer.fields[0].type == "decimal(20,2)"
    assert merged(reducer, [[Decimal("0.10")]] * 3)[0] == Decimal("0.30")


def test_the_mean_of_decimals_has_four_more_digits_rounded_half_up() -> None:
    reducer = bind("x", mean("x"), "decimal(10,1)")
    assert reducer.fields[0].type == "decimal(14,5)"
    assert merged(reducer, [[Decimal("2.0"), 3]])[0] == Decimal("0.66667")
    assert merged(reducer, [[Decimal("-2.0"), 3]])[0] == Decimal("-0.66667")


def test_the_mean_of_nothing_is_null() -> None:
    assert merged(bind("x", mean("x"), "int"), [[None, 0]])[0] is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 3))), min_size=1))
@pytest.mark.parametrize("aggregate", [first("x"), last("x")], ids=str)
def test_first_and_last_are_ordered_by_time_position_and_value(
    aggregate: Aggregate, records: list[tuple[int, int, int | None]]
) -> None:
    reducer = bind("x", aggregate, "int", ["bigint"])
    in_order = sorted(records, key=lambda r: (r[0], r[1], -1 if r[2] is None else r[2]))
    expected = in_order[-1 if aggregate.function is Function.LAST else 0]
    found = merged(reducer, [list(record) for record in records])
    assert found == [expected[2], expected[0], expected[1]]


@pytest.mark.parametrize("function", [first, last])
def test_an_aggregate_that_was_added_later_breaks_ties_with_the_others(function: Callable[[str], Aggregate]) -> None:
    """A row that has had no record since has no value and no time for it."""
    reducers = [bind(name, function(name), "string") for name in ("x", "y")]
    before = rows_of(reducers[:1], [pa.array([5, 5]), pa.array(["b", "b"])])
    nothing = {field.name: pa.nulls(2, field.field_type.arrow) for field in reducers[1].fields}
    rows = pa.table({**{name: before[name] for name in before.column_names}, **nothing})
    times = pa.array([5, 7 if function is last else 3])
    batch = rows_of(reducers, [times, pa.array(["b", "c"]), times, pa.array(["y", "z"])])
    for found in (merged_rows(reducers, rows, batch), merged_rows(reducers, batch, rows)):
        assert [(row["x"], row["y"]) for row in found.to_pylist()] == [("b", "y"), ("c", "z")]


@given(st.lists(whole, min_size=2, max_size=10), st.data())
def test_the_result_does_not_depend_on_batches(values: list[int | None], data: st.DataObject) -> None:
    reducer = bind("x", mean("x"), "bigint")

    def partial(part: list[int | None]) -> list[object]:
        present = [v for v in part if v is not None]
        return [float(builtins.sum(present)) if present else None, len(present)]

    cut = data.draw(st.integers(1, len(values) - 1))
    assert merged(reducer, [partial(values)]) == merged(reducer, [partial(values[:cut]), partial(values[cut:])])


def test_text_can_be_compared_and_not_summed() -> None:
    assert merged(bind("x", max("x"), "string"), [["a"], ["ä"], ["b"]])[0] == "ä"
    with pytest.raises(TopologyError, match="string"):
        bind("x", sum("x"), "string")


def test_counts_are_added() -> None:
    assert merged(bind("n", count(), None), [[2], [3]]) == [5]


VALUES: dict[str, tuple[object, object]] = {
    "tinyint": (-1, 2),
    "smallint": (-1, 2),
    "int": (-1, 2),
    "bigint": (-1, 2**40),
    "float": (-1.5, 2.5),
    "double": (-1.5, 2.5),
    "boolean": (False, True),
    "string": ("a", "b"),
    "binary": (b"a", b"b"),
    "date": (date(1969, 1, 1), date(2026, 1, 1)),
    "timestamp": (datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
    "timestamp_ntz": (datetime(1969, 1, 1), datetime(2026, 1, 1)),  # noqa: DTZ001
    "decimal(10,2)": (Decimal("-1.50"), Decimal("2.50")),
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_type_has_min_max_first_and_last(kind: str) -> None:
    low, high = VALUES[kind]
    for order in ([low, None, high], [high, None, low]):
        assert merged(bind("x", max("x"), kind), [[value] for value in order])[0] == high
        assert merged(bind("x", min("x"), kind), [[value] for value in order])[0] == low
    for aggregate, expected in ((first("x"), high), (last("x"), low)):
        reducer = bind("x", aggregate, kind, [kind])
        assert merged(reducer, [[7, low, high], [7, high, low]])[0] == expected
        assert merged(reducer, [[7, high, low], [7, low, high]])[0] == expected
