"""Rows of all types, with nulls: columns give the same bytes as single rows."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, DamagedObject
from holdfast.stores.formats.rows import DamagedRow, decode_row, decode_rows, encode_row, encode_rows
from holdfast.stores.formats.types import Schema
from tests.stores.making import VALUES, columns, same, schema_of

GOLDEN: list[tuple[Schema, tuple[Any, ...], str]] = [
    (Schema.of(n="bigint"), (-2,), "00feffffffffffffff"),
    (Schema.of(n="bigint", x="double"), (None, 1.5), "01" + "00" * 8 + "000000000000f83f"),
    (Schema.of(a="string", b="binary"), ("añ", b"\0"), "00" + "0000000003000000" + "0300000001000000" + "61c3b100"),
    (Schema.of(a="string", b="string"), (None, "x"), "01" + "00" * 8 + "0000000001000000" + "78"),
    (Schema.of(d="decimal(10,2)"), (Decimal("-0.01"),), "00" + "ff" * 16),
    (Schema.of(t="boolean", d="date"), (True, dt.date(1970, 1, 2)), "00" + "01" + "00" * 7 + "01" + "00" * 7),
    (Schema.of(**{f"f{n}": "tinyint" for n in range(9)}), (None,) * 9, "ff01" + "00" * 72),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=10))
    row = st.tuples(*(st.none() | VALUES[each] for each in types))
    return schema_of(types), draw(st.lists(row, max_size=6))


@pytest.mark.parametrize(("schema", "values", "data"), GOLDEN)
def test_format_rows_1_never_changes(schema: Schema, values: tuple[Any, ...], data: str) -> None:
    assert encode_row(schema, values).hex() == data
    assert decode_row(schema, bytes.fromhex(data)) == values
    assert encode_rows(schema, columns(schema, [values])).to_pylist() == [bytes.fromhex(data)]


@given(tables(), st.lists(st.booleans(), min_size=6, max_size=6))
def test_columns_give_the_same_bytes_as_single_rows(
    made: tuple[Schema, list[tuple[Any, ...]]], there: list[bool]
) -> None:
    schema, rows = made
    encoded = encode_rows(schema, columns(schema, rows))
    single = [encode_row(schema, row) for row in rows]
    assert encoded.to_pylist() == single
    for row, data in zip(rows, single, strict=True):
        assert all(map(same, decode_row(schema, data), row))
    some = [data if kept else None for data, kept in zip(single, there, strict=False)]
    for stored in (encoded, pa.array(some, pa.binary()), pa.array([b"?", *some], pa.binary()).slice(1)):
        decoded = decode_rows(schema, stored)
        for n, column in enumerate(decoded):
            column.validate(full=True)
            assert column.type == schema.fields[n].field_type.arrow
            wanted = [None if data is None else row[n] for data, row in zip(stored.to_pylist(), rows, strict=True)]
            assert all(map(same, column.to_pylist(), wanted))


def test_sliced_columns_and_columns_of_a_related_type_are_encoded() -> None:
    schema = Schema.of(n="bigint", who="string", spent="decimal(10,2)", on="boolean")
    given_ = [
        pa.array([9, 1, None], pa.int32()),
        pa.array(["?", "ann", None], pa.large_string()),
        pa.array([None, Decimal("1.5"), None], pa.decimal128(5, 1)),
        pa.array([False, True, None]),
    ]
    rows = encode_rows(schema, [column.slice(1) for column in given_])
    assert [decode_row(schema, row) for row in rows.to_pylist()] == [
        (1, "ann", Decimal("1.50"), True),
        (None, None, None, None),
    ]


@pytest.mark.parametrize("value", [Decimal("0.001"), Decimal(10**8), Decimal("NaN"), 0.5, True, "1"])
def test_a_decimal_that_does_not_fit_is_rejected(value: object) -> None:
    with pytest.raises(BadValue, match="spent"):
        encode_row(Schema.of(spent="decimal(10,2)"), (value,))


def test_values_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(BadValue, match="n="):
        encode_row(Schema.of(n="int"), ("1",))
    with pytest.raises(BadValue, match="column n"):
        encode_rows(Schema.of(n="int"), [pa.array([2**40])])
    with pytest.raises(BadValue, match="2 columns"):
        encode_rows(Schema.of(n="int"), [pa.array([1]), pa.array([1])])
    with pytest.raises(BadValue, match="2 values"):
        encode_row(Schema.of(n="int"), (1, 2))


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (Schema.of(n="bigint"), b""),
        (Schema.of(n="bigint"), bytes(8)),
        (Schema.of(n="bigint"), bytes(10)),
        (Schema.of(a="string"), bytes(8)),
        (Schema.of(a="string"), bytes.fromhex("00" + "0000000002000000" + "61")),
        (Schema.of(a="string"), bytes.fromhex("00" + "ffffffff02000000" + "61")),
        (Schema.of(a="string"), bytes.fromhex("00" + "0000000001000000" + "ff")),
    ],
)
def test_damaged_rows_are_an_error_and_never_a_wrong_answer(schema: Schema, data: bytes) -> None:
    with pytest.raises(DamagedObject):
        decode_row(schema, data)
    with pytest.raises(DamagedObject):
        decode_rows(schema, pa.array([data]))
    with pytest.raises(DamagedObject):
        decode_rows(schema, pa.array([None, data]))


@pytest.mark.parametrize(
    ("schema", "good", "damaged"),
    [
        (Schema.of(n="bigint"), bytes(9), bytes(8)),
        (Schema.of(a="string"), bytes(9), bytes.fromhex("00" + "0000000002000000" + "61")),
        (Schema.of(a="string"), bytes(9), bytes.fromhex("00" + "0000000001000000" + "ff")),
    ],
)
def test_a_damaged_row_is_reported_with_its_number_in_the_column(schema: Schema, good: bytes, damaged: bytes) -> None:
    with pytest.raises(DamagedRow) as raised:
        decode_rows(schema, pa.array([good, None, good, damaged, good]))
    assert raised.value.row == 3
