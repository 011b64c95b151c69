"""Results of SQL as text: in parts as all at once, within the memory of the text."""

import tracemalloc
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest

from holdfast.query.result_texts import csv_of, json_rows
from holdfast.sql.errors import SqlTooLarge

MOST = 64 << 20


@pytest.mark.parametrize("number", [0, 1, 999, 1_000, 1_001, 3_500])
def test_all_rows_are_there_in_order(number: int) -> None:
    table = pa.table({"n": pa.array(range(number), pa.int64()), "x": pa.array([[n] for n in range(number)])})
    assert msgspec.json.decode(json_rows(table, MOST)) == [[n, [n]] for n in range(number)]
    assert csv_of(table, MOST).decode().splitlines() == ['"n","x"', *(f'{n},"[{n}]"' for n in range(number))]


def test_whole_numbers_of_64_bits_are_numbers_in_json() -> None:
    big = 2**63
    sums = pa.array([4, None, big - 1, -big, big], pa.decimal128(38, 0))
    table = pa.table({"sum": sums, "paid": pa.array([Decimal("4.00")] * 5, pa.decimal128(10, 2))})
    whole = [4, None, big - 1, -big, str(big)]
    assert msgspec.json.decode(json_rows(table, MOST)) == [[each, "4.00"] for each in whole]


@pytest.mark.parametrize(("columns", "length"), [(20, 8), (1, 1_000)])
def test_the_memory_is_that_of_the_text(columns: int, length: int) -> None:
    """Also of wide values, of which a batch has fewer."""
    rows = 1_000_000 // columns // length
    column = pa.array([[*range(n, n + length)] for n in range(rows)], pa.list_(pa.int64()))
    table = pa.table({f"c{n}": column for n in range(columns)})
    tracemalloc.start()
    try:
        text = json_rows(table, MOST)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(text)


@pytest.mark.parametrize("of", [json_rows, csv_of])
def test_a_text_beyond_the_limit_is_refused(of: object) -> None:
    table = pa.table({"n": pa.array(range(300_000), pa.int64())})
    with pytest.raises(SqlTooLarge, match="more than 1 MiB as (JSON|CSV). Select fewer rows or columns"):
        of(table, 1 << 20)  # type: ignore[operator]
