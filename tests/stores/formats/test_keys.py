"""Keys: bytes sort like values, columns give the same bytes as single keys, and format 1 never changes."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from holdfast.errors import BadKey, BadValue, DamagedObject, TopologyError
from holdfast.stores.formats.keys import (
    MAX_KEY_BYTES,
    decimal,
    decode_key,
    decode_keys,
    encode_key,
    encode_keys,
    key_schema,
    key_schema_of,
    prefix_range,
)
from holdfast.stores.formats.rows import encode_rows
from holdfast.stores.formats.types import Schema
from tests.stores.making import KEY_TYPES, columns, keys, order, same

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC)

GOLDEN: list[tuple[Schema, tuple[Any, ...], str]] = [
    (Schema.of(k="string"), ("añ\0b",), "0161c3b10062"),
    (Schema.of(k="binary"), (b"\x00\xff",), "0100ff"),
    (Schema.of(k="tinyint"), (-128,), "017fffffffffffff80"),
    (Schema.of(k="smallint"), (1,), "018000000000000001"),
    (Schema.of(k="int"), (-1,), "017fffffffffffffff"),
    (Schema.of(k="bigint"), (-(2**63),), "010000000000000000"),
    (Schema.of(k="bigint"), (2**63 - 1,), "01ffffffffffffffff"),
    (Schema.of(k="float"), (1.5,), "01bff8000000000000"),
    (Schema.of(k="double"), (-1.5,), "014007ffffffffffff"),
    (Schema.of(k="double"), (-0.0,), "018000000000000000"),
    (Schema.of(k="double"), (math.nan,), "01fff8000000000000"),
    (Schema.of(k="double"), (-math.inf,), "01000fffffffffffff"),
    (Schema.of(k="boolean"), (True,), "0101"),
    (Schema.of(k="date"), (dt.date(1969, 12, 31),), "017fffffffffffffff"),
    (Schema.of(k="timestamp"), (NOON,), "0180061283ffaff001"),
    (Schema.of(k="timestamp_ntz"), (NOON.replace(tzinfo=None),), "0180061283ffaff001"),
    (Schema.of(k="decimal(4,2)"), (Decimal("1.5"),), "018000000000000096"),
    (Schema.of(k="decimal(18,2)"), (Decimal("-0.01"),), "017fffffffffffffff"),
    (Schema.of(k="decimal(19,2)"), (Decimal("-0.01"),), "017f" + "ff" * 15),
    (Schema.of(k="decimal(38,0)"), (Decimal(10**38 - 1),), "01cb3b4ca85a86c47a098a223fffffffff"),
    (Schema.of(a="decimal(9,2)", b="string"), (Decimal("2.00"), "x"), "0180000000000000c878"),
    (Schema.of(a="string", b="bigint"), ("a\0", 5), "016100ff00008000000000000005"),
    (Schema.of(a="binary", b="string", c="boolean"), (b"", "x", False), "0100007800" + "0000"),
]


@pytest.mark.parametrize(("schema", "values", "data"), GOLDEN)
def test_format_1_never_changes(schema: Schema, values: tuple[Any, ...], data: str) -> None:
    assert encode_key(schema, values).hex() == data
    assert all(map(same, decode_key(schema, bytes.fromhex(data)), values))
    assert encode_keys(schema, columns(schema, [values])).to_pylist() == [bytes.fromhex(data)]


@given(keys())
def test_keys_sort_like_their_values(made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    encoded = [encode_key(schema, row) for row in rows]
    compared = [tuple(map(order, row)) for row in rows]
    for one, a in zip(encoded, compared, strict=True):
        for other, b in zip(encoded, compared, strict=True):
            assert (one < other, one == other) == (a < b, a == b)


@given(keys(rows=1))
def test_a_key_decodes_to_its_values(made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    for row in rows:
        assert all(map(same, decode_key(schema, encode_key(schema, row)), row))


@given(keys(rows=0))
def test_columns_give_the_same_bytes_as_single_keys(made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    encoded = encode_keys(schema, columns(schema, rows))
    assert encoded.to_pylist() == [encode_key(schema, row) for row in rows]
    decoded = decode_keys(schema, encoded)
    assert [column.type for column in decoded] == [field.field_type.arrow for field in schema.fields]
    for n, column in enumerate(decoded):
        column.validate(full=True)
        assert all(map(same, column.to_pylist(), [row[n] for row in rows]))


@given(keys(rows=4))
def test_slices_of_columns_are_encoded_and_decoded(made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    encoded = encode_keys(schema, [column.slice(1, 2) for column in columns(schema, rows)])
    assert encoded.to_pylist() == [encode_key(schema, row) for row in rows[1:3]]
    whole = encode_keys(schema, columns(schema, rows))
    for n, column in enumerate(decode_keys(schema, whole.slice(1, 2))):
        assert all(map(same, column.to_pylist(), [row[n] for row in rows[1:3]]))


@given(keys(rows=2))
def test_a_prefix_of_complete_components_finds_only_its_keys(made: tuple[Schema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    given_ = len(schema.fields) - 1
    wanted = tuple(map(order, rows[0][:given_]))
    start, stop = prefix_range(schema, rows[0][:given_])
    for row in rows:
        key = encode_key(schema, row)
        within = start <= key and (stop is None or key < stop)
        assert within == (tuple(map(order, row[:given_])) == wanted)


@pytest.mark.parametrize("others", [{}, {"b": "bigint"}])
def test_a_prefix_of_a_text_finds_the_keys_that_begin_with_it(others: dict[str, str]) -> None:
    schema = Schema.of(a="string", **others)
    rest = (7,) * len(others)
    start, stop = prefix_range(schema, ["ab\0"], partial=True)
    assert stop is not None
    inside = ["ab\0", "ab\0\0", "ab\0c", "ab\0😀"]
    outside = ["ab", "abc", "a", "b", "", "ab\x01"]
    assert all(start <= encode_key(schema, (text, *rest)) < stop for text in inside)
    assert not any(start <= encode_key(schema, (text, *rest)) < stop for text in outside)


def test_columns_of_a_related_type_are_cast() -> None:
    schema = Schema.of(a="string", b="bigint", c="timestamp")
    given_ = [
        pa.array(["x"], pa.large_string()),
        pa.array([3], pa.int16()),
        pa.array([NOON], pa.timestamp("us", "Europe/Berlin")),
    ]
    assert encode_keys(schema, given_).to_pylist() == [encode_key(schema, ("x", 3, NOON))]
    chunked = [pa.chunked_array([column, column]) for column in given_]
    assert len(encode_keys(schema, chunked)) == 2


@pytest.mark.parametrize("value", ["0.001", "100", "-100", "NaN", "Infinity", "1e9999999", "1." + "0" * 90 + "1"])
def test_a_decimal_with_more_digits_than_the_type_is_rejected(value: str) -> None:
    with pytest.raises(BadKey, match="k="):
        encode_key(Schema.of(k="decimal(4,2)"), (Decimal(value),))


def test_a_decimal_of_other_digits_is_the_same_key() -> None:
    """Whatever zeros it is written with, in Python and in a column of another scale."""
    schema = Schema.of(k="decimal(10,2)")
    wanted = encode_key(schema, (Decimal("1.50"),))
    assert {encode_key(schema, (each,)) for each in (Decimal("1.5"), Decimal("1.5000"), Decimal("15e-1"))} == {wanted}
    column = pa.array([Decimal("1.5")], pa.decimal128(30, 1))
    assert encode_keys(schema, [column]).to_pylist() == [wanted]
    with pytest.raises(BadKey, match="doesn't fit decimal"):
        encode_keys(schema, [pa.array([Decimal("1.555")], pa.decimal128(10, 3))])


def test_the_digits_of_a_declared_decimal_are_named() -> None:
    assert str(key_schema_of((str, decimal(12, 2)))) == "key_1 string, key_2 decimal(12,2)"
    with pytest.raises(TopologyError, match=r"Decimal alone is not a key type.*hf.decimal\(12, 2\)"):
        key_schema_of(Decimal)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", b"x"),
        ("string", None),
        ("string", "\ud800"),
        ("binary", "x"),
        ("int", 1.0),
        ("int", True),
        ("int", 2**31),
        ("tinyint", -129),
        ("bigint", 2**63),
        ("double", "1"),
        ("double", True),
        ("float", 1e39),
        ("double", 10**400),
        ("boolean", 1),
        ("date", NOON),
        ("timestamp", NOON.replace(tzinfo=None)),
        ("timestamp", dt.date(2024, 1, 1)),
        ("timestamp_ntz", NOON),
    ],
)
def test_a_value_that_does_not_fit_is_rejected(type_: str, value: object) -> None:
    with pytest.raises(BadKey, match="player"):
        encode_key(Schema.of(player=type_), (value,))


@pytest.mark.parametrize("type_", KEY_TYPES)
def test_a_null_in_a_key_column_is_rejected(type_: str) -> None:
    schema = Schema.of(player=type_)
    with pytest.raises(BadKey, match="1 of 1 values of player are null"):
        encode_keys(schema, [pa.array([None], schema.fields[0].field_type.arrow)])


def test_columns_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(BadKey, match="player"):
        encode_keys(Schema.of(player="int"), [pa.array([2**40])])
    with pytest.raises(BadKey, match="player"):
        encode_keys(Schema.of(player="date"), [pa.array([[1]])])
    with pytest.raises(BadKey, match="2 key columns"):
        encode_keys(Schema.of(player="int"), [pa.array([1]), pa.array([1])])
    with pytest.raises(BadKey, match="2 parts"):
        encode_key(Schema.of(player="int"), (1, 2))
    with pytest.raises(BadKey, match="prefix of 2"):
        prefix_range(Schema.of(player="int"), (1, 2))


def test_text_that_is_not_utf8_is_rejected() -> None:
    """It could never be decoded again. (Spark's text columns can have any bytes.)"""
    text = pa.array([b"ann", b"caf\xe9"], pa.binary()).view(pa.string())
    with pytest.raises(BadKey, match="player of type string doesn't fit string.*UTF8.*index 1"):
        encode_keys(Schema.of(player="string"), [text])
    with pytest.raises(BadValue, match="city of type string doesn't fit string.*UTF8.*index 1"):
        encode_rows(Schema.of(city="string"), [text])


def test_a_key_that_is_too_long_is_rejected_with_its_size() -> None:
    schema = Schema.of(k="string")
    fits = "x" * (MAX_KEY_BYTES - 1)
    assert len(encode_key(schema, (fits,))) == MAX_KEY_BYTES
    assert len(encode_keys(schema, [pa.array([fits])])[0].as_py()) == MAX_KEY_BYTES
    with pytest.raises(BadKey, match="65,537 bytes"):
        encode_key(schema, (fits + "x",))
    with pytest.raises(BadKey, match="65,537 bytes"):
        encode_keys(schema, [pa.array(["a", fits + "x"])])


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (Schema.of(k="string"), ""),
        (Schema.of(k="string"), "0261"),
        (Schema.of(k="string"), "01ff"),
        (Schema.of(k="bigint"), "01800000"),
        (Schema.of(k="bigint"), "01800000000000000000"),
        (Schema.of(a="string", b="bigint"), "0161"),
        (Schema.of(a="string", b="boolean"), "01610000"),
    ],
)
def test_damaged_keys_are_an_error_and_never_a_wrong_answer(schema: Schema, data: str) -> None:
    with pytest.raises(DamagedObject):
        decode_key(schema, bytes.fromhex(data))
    with pytest.raises(DamagedObject):
        decode_keys(schema, pa.array([bytes.fromhex(data)]))


def test_null_keys_are_rejected() -> None:
    with pytest.raises(BadKey, match="1 of 2 keys are null"):
        decode_keys(Schema.of(k="string"), pa.array([b"\x01a", None]))


def test_a_python_type_gives_a_key_schema() -> None:
    assert str(key_schema(dt.datetime)) == "key timestamp"
    assert str(key_schema(tuple[str, bytes, int, float, bool, dt.date])) == (
        "key_1 string, key_2 binary, key_3 bigint, key_4 double, key_5 boolean, key_6 date"
    )
    for wrong in (list, dict[str, int], tuple[int, ...], tuple[()], tuple):
        with pytest.raises(TopologyError, match="not a key type"):
            key_schema(wrong)
