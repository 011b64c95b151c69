"""Values as JSON: nothing is lost, and every value is valid JSON."""

import datetime as dt
import json
import math
import uuid
from decimal import Decimal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.query.render import renderer, to_json
from holdfast.stores.formats.rows import ROWS, encode_row
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import RowValues, StoreSpec
from tests.stores.making import columns_of

KEY = Schema.of(k="string")


DIGITS = "1234567890123456789012345678901234.5678"
COLUMNS: dict[str, tuple[str, object, object]] = {
    "s": ("string", "ü", "ü"),
    "b": ("binary", b"\xff", "/w=="),
    "i": ("bigint", 2**63 - 1, 2**63 - 1),
    "d": ("double", math.inf, "Infinity"),
    "t": ("boolean", False, False),
    "day": ("date", dt.date(2026, 1, 31), "2026-01-31"),
    "at": ("timestamp", dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC), "2026-01-31T12:00:00.000005Z"),
    "local": ("timestamp_ntz", dt.datetime.fromisoformat("2026-01-31T12:00:00"), "2026-01-31T12:00:00"),
    "money": ("decimal(38,4)", Decimal(DIGITS), DIGITS),
}
"""Type, value, and the value in JSON."""


def test_every_type_of_column_is_shown_and_hidden_ones_are_not() -> None:
    schema = columns_of({**{name: column[0] for name, column in COLUMNS.items()}, "d#sum": "double"})
    spec = StoreSpec(name="x", key=KEY, value=RowValues(schema), codec=ROWS)
    row = encode_row(schema, [*(value for _, value, _ in COLUMNS.values()), 1.5])
    assert renderer(spec)(row) == {name: shown for name, (_, _, shown) in COLUMNS.items()}


class Session(msgspec.Struct):
    start: dt.datetime
    spent: Decimal
    id: uuid.UUID
    marks: dict[int, float]


def test_a_value_of_a_users_type_is_shown_as_it_was_packed() -> None:
    session = Session(dt.datetime(2026, 1, 31, tzinfo=dt.UTC), Decimal("0.10"), uuid.UUID(int=7), {1: math.nan})
    spec = StoreSpec(name="x", key=KEY, codec="msgpack/1")
    assert renderer(spec)(msgspec.msgpack.encode(session)) == {
        "start": "2026-01-31T00:00:00Z",
        "spent": "0.10",
        "id": "00000000-0000-0000-0000-000000000007",
        "marks": {"1": "NaN"},
    }


def test_a_decimal_has_all_its_digits_and_no_exponent() -> None:
    assert to_json([Decimal("1E+3"), Decimal("0.0000000000"), Decimal("-1.10")]) == ["1000", "0.0000000000", "-1.10"]


def test_a_value_of_an_unknown_codec_is_shown_as_bytes() -> None:
    assert renderer(StoreSpec(name="x", key=KEY, codec="pickle/9"))(b"hello") == "aGVsbG8="
    for codec in ("rows/9", "nowhere.at.all:Codec"):
        spec = StoreSpec(name="x", key=KEY, value=RowValues(Schema.of(n="bigint")), codec=codec)
        assert renderer(spec)(b"hello") == "aGVsbG8="


_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
_packable = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner), max_leaves=20
)


@given(_packable)
def test_any_packed_value_is_valid_json(value: object) -> None:
    rendered = to_json(msgspec.msgpack.decode(msgspec.msgpack.encode(value)))
    text = msgspec.json.encode(rendered)
    assert json.loads(text, parse_constant=_no_constant) == rendered


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
