"""Keys in URLs: a key as shown in an answer finds its entry, and an invalid key is refused with an example."""

import datetime as dt
import math
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.query.keytext import BadKeyText, example, key_text, parse_key, render_scalar
from holdfast.stores.formats.keys import decode_key, encode_key
from holdfast.stores.formats.scalars import from_whole_number
from holdfast.stores.formats.types import Field, Schema
from tests.stores.making import decimals


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


VALUES: dict[str, st.SearchStrategy[object]] = {
    "string": st.text(),
    "binary": st.binary(),
    "tinyint": _ints(8),
    "smallint": _ints(16),
    "int": _ints(32),
    "bigint": _ints(64),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(1,1)": decimals(1, 1),
    "decimal(5,0)": decimals(5, 0),
    "decimal(38,10)": decimals(38, 10),
}


@st.composite
def keys(draw: st.DrawFn) -> tuple[Schema, tuple[object, ...]]:
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    schema = Schema(tuple(Field(f"k{n}", kind) for n, kind in enumerate(types)))
    return schema, tuple(draw(VALUES[kind]) for kind in types)


def _same(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack("d", left) == struct.pack("d", right)
    return type(left) is type(right) and left == right


@given(keys())
def test_a_key_as_shown_in_an_answer_finds_its_entry(key: tuple[Schema, tuple[object, ...]]) -> None:
    schema, values = key
    read = parse_key(schema, key_text(schema, values))
    assert len(read) == len(values)
    assert all(_same(a, b) for a, b in zip(read, values, strict=True)), (read, values)


@given(st.sampled_from(["date", "timestamp", "timestamp_ntz"]), _ints(64), st.booleans())
def test_every_date_and_time_that_is_shown_finds_its_entry(kind: str, number: int, several: bool) -> None:
    """Python has none before the year 1 and after 9999."""
    schema = Schema.of(at=kind, n="int") if several else Schema.of(at=kind)
    value = from_whole_number(schema.fields[0], number >> 32 if kind == "date" else number)
    values = (value, 7) if several else (value,)
    assert parse_key(schema, key_text(schema, values)) == values
    assert decode_key(schema, encode_key(schema, values)) == values


@given(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
def test_the_example_of_every_schema_is_a_valid_key(types: list[str]) -> None:
    schema = Schema(tuple(Field(f"k{n}", kind) for n, kind in enumerate(types)))
    assert len(parse_key(schema, example(schema))) == len(types)


@given(st.text(), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
def test_any_text_is_a_key_or_an_error_with_an_example(text: str, types: list[str]) -> None:
    schema = Schema(tuple(Field(f"k{n}", kind) for n, kind in enumerate(types)))
    try:
        parse_key(schema, text)
    except BadKeyText as error:
        refused = error
    else:
        return
    assert refused.schema == str(schema)
    assert refused.example in refused.what_to_do


INVALID = {
    "decimal(5,2)": ["1000", "1.001", "1e2", "NaN", "Infinity", "1,5", "", ".", "-", "0x1", "٣", "9" * 5000, " 1"],
    "tinyint": ["128"],
    "smallint": ["-32769"],
    "int": ["2147483648"],
    "bigint": ["9223372036854775808", "1.0", "", "1_000", " 1", "٣", "9" * 5000],
    "double": ["nan", "1e999", "1,5"],
    "float": ["1e39"],
    "boolean": ["True"],
    "date": ["31.01.2026", "2026-02-30", "10000-02-30", "+10000-01-01", "02026-01-31", "9999999-01-01", "NaT", "now"],
    "timestamp": ["2026-01-31T12:00:00", "10000-01-31T12:00:00", "10000-01-31", "300000-01-01T00:00:00Z", "Infinity"],
    "timestamp_ntz": ["2026-01-31T12:00:00Z", "10000-01-31T12:00:00Z", "10000-01-31T12:00:00.50"],
    "binary": ["a", "ä==="],
    "string": ["\ud800"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in INVALID.items() for text in texts])
def test_an_invalid_key_is_refused_with_schema_and_example(kind: str, text: str) -> None:
    with pytest.raises(BadKeyText, match=r"The key is \(k ") as caught:
        parse_key(Schema.of(k=kind), text)
    assert caught.value.schema == f"k {kind}"
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "text", ["alice", '"alice"', "{}", '["alice"]', '["alice",7,8]', '["alice","7"]', "[1,7]", "[]"]
)
def test_a_key_of_two_components_is_a_json_array_of_two(text: str) -> None:
    with pytest.raises(BadKeyText) as caught:
        parse_key(Schema.of(player="string", level="int"), text)
    assert caught.value.example == '["alice",42]'


def test_true_is_not_a_number() -> None:
    with pytest.raises(BadKeyText):
        parse_key(Schema.of(a="int", b="int"), "[true,1]")


def test_a_bound_may_have_the_first_components_only() -> None:
    schema = Schema.of(player="string", level="int")
    assert parse_key(schema, '["alice"]', whole=False) == ("alice",)
    with pytest.raises(BadKeyText):
        parse_key(schema, "[]", whole=False)


def test_times_with_offsets_are_converted_to_utc() -> None:
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert parse_key(Schema.of(t="timestamp"), "2026-01-31T13:00:00+01:00") == (noon,)


def test_a_float_key_is_rounded_to_32_bits() -> None:
    assert parse_key(Schema.of(f="float"), "0.1") == (struct.unpack("f", struct.pack("f", 0.1))[0],)


def test_both_base64_alphabets_are_read() -> None:
    schema = Schema.of(b="binary")
    assert parse_key(schema, "+/8=") == parse_key(schema, "-_8") == parse_key(schema, " /8") == (b"\xfb\xff",)


def test_nan_and_infinity_are_text_in_json() -> None:
    assert [render_scalar(x) for x in (math.nan, math.inf, -math.inf, 1.5)] == ["NaN", "Infinity", "-Infinity", 1.5]


@pytest.mark.parametrize("text", ["12.5", "12.50", "012.500", "12.5000000000000000000000000"])
def test_a_decimal_is_the_same_key_with_other_zeros(text: str) -> None:
    assert parse_key(Schema.of(k="decimal(10,2)"), text) == (Decimal("12.50"),)


@pytest.mark.parametrize("written", ["12345678901234567890.12", '"12345678901234567890.12"'])
def test_a_decimal_in_an_array_keeps_its_digits_as_number_and_as_text(written: str) -> None:
    schema = Schema.of(k="string", spent="decimal(30,2)", rate="double")
    found = parse_key(schema, f'["ann", {written}, 1.5]')
    assert found == ("ann", Decimal("12345678901234567890.12"), 1.5)
    assert isinstance(found[2], float)
    assert key_text(schema, found) == '["ann","12345678901234567890.12",1.5]'


@pytest.mark.parametrize("kind", ["double", "float", "decimal(10,2)", "bigint", "string"])
@pytest.mark.parametrize("number", ["1e9999999999999999999", "1.0e400", "9" * 5000 + ".5"])
def test_any_number_in_an_array_is_a_key_or_refused(kind: str, number: str) -> None:
    with pytest.raises(BadKeyText):
        parse_key(Schema.of(a="string", b=kind), f'["a",{number}]')
