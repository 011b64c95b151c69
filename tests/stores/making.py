"""Helpers of the store tests: values of every type, schemas of them, and their expected order."""

import datetime as dt
import math
import struct
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.spec import StoreSpec

KEY_TYPES = (
    "string",
    "binary",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(1,1)",
    "decimal(18,2)",
    "decimal(19,0)",
    "decimal(38,10)",
)

_texts = st.one_of(st.text(max_size=12), st.text(alphabet="a\0\x01ÿ😀", max_size=6))
_bytes = st.one_of(st.binary(max_size=12), st.lists(st.sampled_from([0, 1, 97, 254, 255]), max_size=6).map(bytes))
_naive = st.datetimes()
_reals = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, 1e300]))
_singles = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]))


def whole(bits: int) -> st.SearchStrategy[int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, -1, 0, 1, high]))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """All digits that the type has, and those around zero."""
    most = 10**precision - 1
    edges = [-most, -1, 0, 1, most]
    return st.one_of(
        st.integers(-most, most), st.integers(-300, 300).filter(lambda n: abs(n) <= most), st.sampled_from(edges)
    ).map(lambda number: Decimal(number).scaleb(-scale, Context(prec=76)))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": _texts,
    "binary": _bytes,
    "tinyint": whole(8),
    "smallint": whole(16),
    "int": whole(32),
    "bigint": whole(64),
    "float": _singles,
    "double": _reals,
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": _naive.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    "timestamp_ntz": _naive,
    "decimal(1,1)": decimals(1, 1),
    "decimal(10,2)": decimals(10, 2),
    "decimal(18,2)": decimals(18, 2),
    "decimal(19,0)": decimals(19, 0),
    "decimal(38,10)": decimals(38, 10),
}


def specs(names: Iterable[str], **options: Any) -> list[StoreSpec]:
    """Stores of these names with nothing special about them."""
    return [StoreSpec(name=name, key=Schema.of(k="string"), codec="bytes/1", **options) for name in names]


def schema_of(types: list[str]) -> Schema:
    return Schema(tuple(Field(f"f{n}", each) for n, each in enumerate(types)))


@st.composite
def keys(draw: st.DrawFn, *, rows: int = 2) -> tuple[Schema, list[tuple[Any, ...]]]:
    """A key schema of one to three components and some keys of it, often equal in their first ones."""
    types = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
    pools = [draw(st.lists(VALUES[each], min_size=1, max_size=4)) for each in types]
    one = st.tuples(*(st.one_of(st.sampled_from(pool), VALUES[each]) for pool, each in zip(pools, types, strict=True)))
    return schema_of(types), draw(st.lists(one, min_size=rows, max_size=max(rows, 8)))


def order(value: Any) -> Any:
    """The sort key of a value: as its type compares, NaN greatest, one zero."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value


def same(one: Any, other: Any) -> bool:
    """Equal, a NaN being equal to a NaN."""
    return bool(one == other or (one != one and other != other))


def columns(schema: Schema, rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[n] for row in rows], type=field.field_type.arrow) for n, field in enumerate(schema.fields)]


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


def columns_of(types: Mapping[str, str]) -> Schema:
    """Columns of an aggregate's rows; `mean#count` is one that only the merges of `mean` need."""
    return Schema(tuple(Field(name, type_, name.rpartition("#")[0]) for name, type_ in types.items()))
