"""A table's rows in codecs other than its own: what rows/1 gives, in bytes that stay."""

import datetime as dt
import io
import math
import re
import sys
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, DamagedObject, TopologyError
from holdfast.stores.codecs.packed import MessagePack
from holdfast.stores.codecs.values import codec_of
from holdfast.stores.formats.cells import Cell, pack, unpack_many
from holdfast.stores.formats.types import Field, Schema
from holdfast.stores.rowcodecs import DamagedRow, RefusedRow, check_rows, row_codec_id, rows_of
from holdfast.stores.schema.history import effective, merged, one_way, row_layouts, unreadable
from holdfast.stores.schema.row_columns import decode_layouts, newest_rows
from holdfast.stores.spec import StoreSpec, differences
from tests.codecs import Pickled, Zipped
from tests.stores.making import VALUES, columns, same

BUILT_IN = ("msgpack/1", "json/1", "avro/1")
CODECS = (*BUILT_IN, Zipped.id, Pickled.id)

EVERY = Schema(
    tuple(
        Field(name, type_)
        for name, type_ in (
            ("s", "string"),
            ("b", "binary"),
            ("i1", "tinyint"),
            ("i8", "bigint"),
            ("f4", "float"),
            ("f8", "double"),
            ("t", "boolean"),
            ("day", "date"),
            ("at", "timestamp"),
            ("local", "timestamp_ntz"),
            ("d", "decimal(12,10)"),
            ("f8#sum", "double"),
        )
    )
)
ROW = (
    "ü",
    b"\xff\x00",
    -128,
    2**63 - 1,
    0.1 + 2**-30,
    math.inf,
    True,
    dt.date(1969, 12, 31),
    dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC),
    dt.datetime.fromisoformat("2026-01-31T12:00:00"),
    Decimal("-0.0000000128"),
    -1.5,
)
SINGLE = float(pa.scalar(ROW[4], pa.float32()).as_py())


def spec_with(codec: str, schema: Schema, **options: Any) -> StoreSpec:
    return StoreSpec(name="t", key=Schema.of(k="string"), value=schema, codec=codec, **options)


def name_of(number: int) -> str:
    """Columns are called anything, and the hidden ones have a # in their names."""
    return ("n", "n#sum", "größe", "a b", "_", "1", 'x"', "n#0", "class", "f0")[number]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=10))
    row = st.tuples(*(st.none() | VALUES[each] for each in types))
    schema = Schema(tuple(Field(name_of(n), each) for n, each in enumerate(types)))
    return schema, draw(st.lists(row, max_size=5))


@pytest.mark.parametrize("codec", CODECS)
@given(tables(), st.lists(st.booleans(), min_size=5, max_size=5))
def test_columns_and_single_rows_come_back_as_rows_1_has_them(
    codec: str, made: tuple[Schema, list[tuple[Any, ...]]], there: list[bool]
) -> None:
    schema, given_ = made
    rows, own = rows_of(spec_with(codec, schema)), rows_of(spec_with("rows/1", schema))
    payloads = rows.encode(columns(schema, given_))
    assert payloads.type == pa.binary()
    single = [rows.encode_one(row) for row in given_]
    if codec in BUILT_IN:
        assert payloads.to_pylist() == single, "equal rows have equal bytes"
    kept = [data if is_there else None for data, is_there in zip(single, there, strict=False)]
    wanted = [own.encode_one(row) if is_there else None for row, is_there in zip(given_, there, strict=False)]
    for stored in (pa.array(kept, pa.binary()), pa.array([b"?", *kept], pa.binary()).slice(1)):
        for found, want in zip(rows.decode(stored), own.decode(pa.array(wanted, pa.binary())), strict=True):
            found.validate(full=True)
            assert found.type == want.type
            assert all(map(same, found.to_pylist(), want.to_pylist()))
    for data, row in zip(payloads.to_pylist(), given_, strict=True):
        assert all(map(_alike, rows.decode_one(data), own.decode_one(own.encode_one(row))))


def _alike(one: Any, other: Any) -> bool:
    """Equal to the sign of a zero and the zone of a time."""
    return same(one, other) and repr(one).lstrip("-") == repr(other).lstrip("-")


GOLDEN = {
    "json/1": (
        '{"s":"ü","b":"/wA=","i1":-128,"i8":9223372036854775807,"f4":0.10000000149011612,"f8":"Infinity","t":true,'
        '"day":"1969-12-31","at":"2026-01-31T12:00:00.000005Z","local":"2026-01-31T12:00:00","d":"-0.0000000128",'
        '"f8#sum":-1.5}'
    ).encode(),
    "msgpack/1": bytes.fromhex(
        "8ca173a2c3bca162c402ff00a26931d080a26938cf7fffffffffffffffa26634cb3fb99999a0000000a26638cb7ff0000000000000"
        "a174c3a3646179aa313936392d31322d3331a26174d7ff00004e20697deec0a56c6f63616cb3323032362d30312d33315431323a30"
        "303a3030a164ad2d302e30303030303030313238a666382373756dcbbff8000000000000"
    ),
    "avro/1": bytes.fromhex(
        "0204c3bc0204ff0002ff0102feffffffffffffffff0102000000a09999b93f02000000000000f07f02010201028ac0c9c4baeba406"
        "0280c0c9c4baeba40602028002000000000000f8bf"
    ),
}
GOLDEN_NULLS = {
    "json/1": (
        b'{"s":null,"b":null,"i1":null,"i8":null,"f4":null,"f8":null,"t":null,"day":null,"at":null,"local":null,'
        b'"d":null,"f8#sum":null}'
    ),
    "msgpack/1": bytes.fromhex(
        "8ca173c0a162c0a26931c0a26938c0a26634c0a26638c0a174c0a3646179c0a26174c0a56c6f63616cc0a164c0a666382373756dc0"
    ),
    "avro/1": bytes(12),
}


@pytest.mark.parametrize("codec", BUILT_IN)
def test_bytes_are_what_they_always_were(codec: str) -> None:
    rows = rows_of(spec_with(codec, EVERY))
    for golden, row in ((GOLDEN, ROW), (GOLDEN_NULLS, (None,) * 12)):
        assert rows.encode_one(row) == golden[codec]
        assert rows.encode(columns(EVERY, [row])).to_pylist() == [golden[codec]]
        assert rows.decode_one(golden[codec]) == tuple(SINGLE if value == ROW[4] else value for value in row)


def test_avro_has_dates_times_and_decimals_as_its_logical_types_do() -> None:
    types = ["string", "bytes", "int", "long", "double", "double", "boolean"]
    logical = [
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 10},
        "double",
    ]
    fields = [{"name": f"any{n}", "type": ["null", each]} for n, each in enumerate([*types, *logical])]
    schema = {"type": "record", "name": "of_another_tool", "fields": fields}
    found: Any = fastavro.schemaless_reader(io.BytesIO(GOLDEN["avro/1"]), schema, None)
    assert tuple(found.values()) == tuple(SINGLE if value == ROW[4] else value for value in ROW)


@pytest.mark.parametrize("codec", CODECS)
@given(st.data())
def test_damaged_rows_are_never_a_wrong_answer(codec: str, data: st.DataObject) -> None:
    rows = rows_of(spec_with(codec, EVERY))
    good = rows.encode_one(ROW)
    cut = good[: data.draw(st.integers(0, len(good) - 1))]
    more = good + b"x" if codec in BUILT_IN else b"x" + good  # neither zlib nor pickle looks at what comes after
    for bad in (cut, more):
        with pytest.raises(DamagedObject, match="store 't' can't be read by codec"):
            rows.decode_one(bad)
        with pytest.raises(DamagedRow) as told:
            rows.decode(pa.array([None, good, bad]))
        assert told.value.row == 2


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("tinyint", "300"),
        ("int", "1.5"),
        ("bigint", "true"),
        ("double", '"nan"'),
        ("decimal(4,2)", '"1.234"'),
        ("decimal(4,2)", '"NaN"'),
        ("timestamp", '"2026-01-31T12:00:00"'),
        ("timestamp_ntz", '"2026-01-31T12:00:00Z"'),
        ("date", '"2026-01-32"'),
        ("binary", '"?"'),
        ("string", "7"),
    ],
)
def test_what_another_tool_wrote_wrongly_is_damage(type_: str, text: str) -> None:
    rows = rows_of(spec_with("json/1", Schema.of(a=type_)))
    for data in (b'{"a":%s}' % text.encode(), b'{"b":null}', b"[]", b""):
        with pytest.raises(DamagedObject):
            rows.decode_one(data)
        with pytest.raises(DamagedRow) as told:
            rows.decode(pa.array([b'{"a":null}', data]))
        assert told.value.row == 1


@pytest.mark.parametrize("codec", BUILT_IN)
@pytest.mark.parametrize(("type_", "number"), [("date", 2**31 - 1), ("timestamp", 2**62), ("timestamp_ntz", -(2**62))])
def test_a_time_that_python_has_no_form_for_is_refused_with_its_row(codec: str, type_: str, number: int) -> None:
    schema = Schema.of(n="bigint", at=type_)
    storage = pa.int32() if type_ == "date" else pa.int64()
    times = pa.array([0, None, number], storage).view(schema.fields[1].field_type.arrow)
    with pytest.raises(RefusedRow, match=r"at is a .* outside the years 1 to 9999 .* store without codec=") as told:
        rows_of(spec_with(codec, schema)).encode([pa.array([1, 2, 3]), times])
    assert told.value.row == 2
    own = rows_of(spec_with("rows/1", schema))
    assert own.decode(own.encode([pa.array([1, 2, 3]), times]))[1].equals(times)


@pytest.mark.parametrize("codec", CODECS)
def test_columns_that_do_not_fit_are_refused(codec: str) -> None:
    rows = rows_of(spec_with(codec, Schema.of(n="int")))
    with pytest.raises(BadValue, match="column n"):
        rows.encode([pa.array([2**40])])
    with pytest.raises(BadValue, match="2 columns"):
        rows.encode([pa.array([1]), pa.array([1])])
    with pytest.raises(BadValue, match="n="):
        rows.encode_one(["1"])
    assert rows.encode([pa.chunked_array([[1], [None]], pa.int8())]).to_pylist() == [
        rows.encode_one([1]),
        rows.encode_one([None]),
    ]


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        ("tests.codecs:Afraid", "can't write the row {'n': 101}: ZeroDivisionError: of all numbers. Mend the codec"),
        ("tests.codecs:Rounding", "can't write the row {'n': 101}: it reads back as {'n': 100}. Mend the codec"),
    ],
)
def test_a_codec_that_fails_or_gives_back_something_else_is_told_with_the_row(codec: str, says: str) -> None:
    rows = rows_of(spec_with(codec, Schema.of(n="bigint")))
    fine = pa.array([99, None])
    assert rows.decode(rows.encode([fine]))[0].equals(fine)
    with pytest.raises(RefusedRow, match=re.escape(says)) as told:
        rows.encode([pa.array([None, 99, 101])])
    assert told.value.row == 2


def test_a_codec_may_give_dates_and_decimals_back_as_texts() -> None:
    schema = Schema.of(day="date", spent="decimal(10,2)", at="timestamp", x="double")
    row = (dt.date(2026, 1, 31), Decimal("1.50"), dt.datetime(2026, 1, 31, tzinfo=dt.UTC), math.nan)
    rows = rows_of(spec_with("tests.codecs:Plain", schema))
    data = rows.encode(columns(schema, [row]))
    assert all(map(_alike, rows.decode_one(data[0].as_py()), row))
    assert rows.decode(data)[1].to_pylist() == [Decimal("1.50")]


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (
            "bytes",
            r"store\('t'\): codec='bytes' is for values of a type of yours.* take msgpack, json, avro or your own",
        ),
        ("protobuf/1", "codec='protobuf/1' is for values of a type of yours"),
        ("yaml", r"store\('t'\): there is no codec 'yaml'. Use rows, msgpack, json, avro, or your own"),
        ("nowhere.at.all:Codec", "can't be loaded"),
        ("tests.codecs:Unmade", "can't be made for .*: RuntimeError: not today"),
        ("tests.codecs:Empty", "can't write the row {'n': None, 'd': None}: it gave b''"),
        ("tests.stores.shaping:Opaque", "can't write the row .*AttributeError"),
    ],
)
def test_what_cannot_carry_rows_is_refused_when_the_app_is_built(codec: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        build(codec)


def build(codec: Any) -> StoreSpec:
    """What `.store("t", codec=)` does."""
    spec = spec_with(row_codec_id(codec, "store('t')"), Schema.of(n="bigint", d="decimal(10,2)"))
    check_rows(spec, "store('t')")
    return spec


def test_every_way_to_name_a_codec_leads_to_its_id() -> None:
    named = (None, "rows", "rows/1", "json", "msgpack/1", "avro", "tests.codecs:Zipped", Zipped(dict))
    assert [build(codec).codec for codec in named] == [
        *["rows/1"] * 3,
        "json/1",
        "msgpack/1",
        "avro/1",
        *[Zipped.id] * 2,
    ]
    with pytest.raises(TopologyError, match=r"store\('t'\): .* has the id 'msgpack/1'. A codec of your own"):
        build(MessagePack(dict))


def test_a_missing_extra_is_named_when_the_app_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(TopologyError, match=r"pip install 'holdfast\[avro\]'"):
        check_rows(spec_with("avro/1", Schema.of(nobody_has_asked_for="bigint")), "store('t')")


LAYOUTS = (Schema.of(n="bigint"), Schema.of(n="bigint", who="string"), Schema.of(peak="double", n="bigint"))


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_every_layout_are_read_as_those_of_the_newest(codec: str) -> None:
    log = spec_with(codec, LAYOUTS[0])
    for layout in LAYOUTS[1:]:
        code = spec_with(codec, layout, from_now=layout.names)
        assert unreadable(log, code) == []
        assert effective(log, code) == merged(log, code)
        log = merged(log, code)
    assert (log.schema, list(row_layouts(log))) == (3, [1, 2, 3])
    written = [(1, (5,)), (2, (6, "ann")), (3, (0.5, 7))]
    cells = [pack(Cell(rows_of(log, LAYOUTS[n - 1]).encode_one(row), schema=n)) for n, row in written]
    found = unpack_many(pa.array([*cells, None], pa.binary()))
    wanted = [(None, 5), (None, 6), (0.5, 7)]
    peak, n = decode_layouts(log, found.payloads, found.schemas)
    assert list(zip(peak.to_pylist(), n.to_pylist(), strict=True)) == [*wanted, (None, None)]
    newest = newest_rows(log, found.payloads, found.schemas).to_pylist()
    assert newest == [*(rows_of(log).encode_one(row) for row in wanted), None]
    codec_ = codec_of(log)
    single = [codec_.decode(rows_of(log, LAYOUTS[n - 1]).encode_one(row), n) for n, row in written]
    assert single == [{"peak": peak, "n": n} for peak, n in wanted]


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_table_cannot_become_it_cannot_under_any_codec(codec: str) -> None:
    log, gained = spec_with(codec, LAYOUTS[0]), spec_with(codec, LAYOUTS[1])
    assert "gained the aggregate who, and the records up to now" in unreadable(log, gained)[0]
    assert "column n bigint in the log and double" in unreadable(log, spec_with(codec, Schema.of(n="double")))[0]
    lost = merged(gained, log)
    assert (lost.schema, unreadable(gained, log), one_way(lost, log)) == (2, [], [])


def test_a_codec_of_another_release_is_told() -> None:
    with pytest.raises(TopologyError, match="no codec 'rows/9' for rows in this release"):
        codec_of(spec_with("rows/9", LAYOUTS[0]))


def test_a_codec_cannot_be_changed_in_place() -> None:
    log, code = (spec_with(codec, LAYOUTS[0]) for codec in ("rows/1", "json/1"))
    assert ["codec rows/1 in the log and json/1 in the code" in line for line in differences([log], [code])] == [True]
