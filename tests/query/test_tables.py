"""A store as a table has the entries that the store itself shows, for every kind, codec and layout."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import DamagedObject
from holdfast.query.pruning import indexed, key_ranges, times_of
from holdfast.query.tables import StoreTable, table_of
from holdfast.query.value_columns import NotAsColumns
from holdfast.sql.messages import Condition
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key, key_schema, prefix_range
from holdfast.stores.formats.rows import encode_row
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.blocks import ALL_KEYS, ALWAYS
from holdfast.stores.spec import NumberedSchema, StoreSpec
from tests.query.fake_tasks import SCORES
from tests.stores.kinds.sketch import Sketch

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NOW = Now(wall=100_000, event=100_000)


def ms(number: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=number)


def rows(spec: StoreSpec, bytes_: DictBytes, now: Now = NOW, keys: Any = (ALL_KEYS,)) -> list[dict[str, Any]]:
    table = table_of(spec)
    batches = list(table.read(bytes_, now, table.schema.names, keys))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == table.schema
    return [row for batch in batches for row in batch.to_pylist()]


class Address(msgspec.Struct):
    town: str


@dataclass
class Player:
    name: str
    score: int
    ratio: float | None = None
    since: dt.datetime | None = None
    born: dt.date | None = None
    tags: list[str] = field(default_factory=list)
    home: Address | None = None
    data: dict[str, int] = field(default_factory=dict)
    key: bytes = b""


ANN = Player("Ann", 3, 0.5, ms(7), dt.date(2000, 2, 29), ["a", "b"], Address("Bern"), {"x": 1}, b"\x00\xff")
BOB = Player("Bob 😀", -(2**63))


@pytest.mark.parametrize("codec", ["msgpack", "json", "avro"])
def test_fields_of_a_record_are_columns(codec: str) -> None:
    store = hf.KeyValueStore("players", value=Player, codec=codec)
    bytes_ = DictBytes()
    bound = store.bind(bytes_, NOW)
    bound["ann"], bound["bob"] = ANN, BOB
    assert rows(store.spec(), bytes_) == [
        {
            "key": "ann",
            "name": "Ann",
            "score": 3,
            "ratio": 0.5,
            "since": ms(7),
            "born": dt.date(2000, 2, 29),
            "tags": ["a", "b"],
            "home": '{"town":"Bern"}',
            "data": '{"x":1}',
            "value_key": b"\x00\xff",
        },
        {
            "key": "bob",
            "name": "Bob 😀",
            "score": -(2**63),
            "ratio": None,
            "since": None,
            "born": None,
            "tags": [],
            "home": None,
            "data": "{}",
            "value_key": b"",
        },
    ]


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        (int, 5, 5),
        (str, "a,b]", "a,b]"),
        (float, 1.5, 1.5),
        (bool, True, True),
        (list[int], [1, 2], [1, 2]),
        (int | str, "x", '"x"'),
        (tuple[int, str], (1, "a"), '[1,"a"]'),
        (dict[str, Any], {"a": [1]}, '{"a":[1]}'),
    ],
)
def test_other_values_are_one_column(codec: str, type_: Any, value: Any, shown: Any) -> None:
    store = hf.KeyValueStore("values", value=type_, codec=codec)
    bytes_ = DictBytes()
    store.bind(bytes_, NOW)["k"] = value
    assert rows(store.spec(), bytes_) == [{"key": "k", "value": shown}]


def test_bytes_are_themselves() -> None:
    store = hf.KeyValueStore("values", value=bytes, codec="bytes", key=(str, int))
    bytes_ = DictBytes()
    store.bind(bytes_, NOW)["k", 1] = b"\x00"
    assert rows(store.spec(), bytes_) == [{"key_1": "k", "key_2": 1, "value": b"\x00"}]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(0, 30_000)), max_size=40))
def test_a_store_with_a_ttl_shows_the_newest_copy_of_each_key(puts: Sequence[tuple[str, int, int]]) -> None:
    store = hf.KeyValueStore("recent", value=int, ttl="16s")
    bytes_, wall = DictBytes(), 0
    for key, value, later in puts:
        wall += later
        store.bind(bytes_, Now(wall))[key] = value
    shown = dict(store.bind(bytes_, Now(wall)).items())
    assert {row["key"]: row["value"] for row in rows(store.spec(), bytes_, Now(wall))} == shown


def test_entries_with_a_ttl_of_their_own_and_bounded_ones() -> None:
    for store in (hf.KeyValueStore("some", value=int), hf.KeyValueStore("some", value=int, max_entries=3)):
        bytes_ = DictBytes()
        bound = store.bind(bytes_, Now(0))
        for n, key in enumerate("abc"):
            bound.put(key, n, ttl="1s" if key == "b" else None)
        bound.end_of_version()
        assert [row["key"] for row in rows(store.spec(), bytes_, Now(999))] == ["a", "b", "c"]
        assert rows(store.spec(), bytes_, Now(1_000)) == [{"key": "a", "value": 0}, {"key": "c", "value": 2}]


@pytest.mark.parametrize("duplicates", [False, True])
def test_windows_have_their_times_and_hide_those_past_the_retention(duplicates: bool) -> None:
    store = hf.WindowStore("plays", value=int, size="1m", retention="10m", duplicates=duplicates)
    bytes_ = DictBytes()
    bound = store.bind(bytes_, Now(0, 0))
    for n in range(20):
        bound.put("ann" if n % 2 else "bob", n, n * 60_000)
    now = Now(0, 19 * 60_000)
    found = rows(store.spec(), bytes_, now)
    assert sorted(row["value"] for row in found) == list(range(10, 20))
    assert sorted(row["value"] for row in found) == sorted(v for _, v in store.bind(bytes_, now).fetch_all())
    assert {"key": "bob", "window_start": ms(600_000), "window_end": ms(660_000), "value": 10} in found
    ann = prefix_range(store.spec().key, ["ann"], partial=False)
    assert {row["value"] for row in rows(store.spec(), bytes_, now, [ann])} == {11, 13, 15, 17, 19}


def test_a_key_may_be_called_as_a_time_of_windows() -> None:
    key: Any = Schema.of(window_start="bigint")
    store: hf.WindowStore[Any, int] = hf.WindowStore("plays", key=key, value=int, size="10s", retention="1h")
    bytes_ = DictBytes()
    bound = store.bind(bytes_, NOW)
    bound.put(7, 1, 90_000)
    bound.put(8, 2, 95_000)
    found = {"value_window_start": ms(90_000), "window_end": ms(100_000), "value": 1}
    assert rows(store.spec(), bytes_)[0] == {"window_start": 7, **found}
    table, wanted = table_of(store.spec()), [Condition(column="window_start", op="=", values=(7,))]
    assert indexed(table) == ["window_start", "value_window_start", "window_end"]
    assert times_of(table, wanted) == ALWAYS, "it is no condition on the time"
    key_bytes = key_ranges(table, wanted)
    assert [row["value"] for row in rows(store.spec(), bytes_, keys=key_bytes)] == [1]


def test_sessions_have_their_times() -> None:
    store = hf.SessionStore("visits", value=int, gap="10s", retention="1m")
    bytes_ = DictBytes()
    bound = store.bind(bytes_, Now(0, 0))
    for time in (0, 5_000, 50_000, 90_000):
        bound.merge("ann", time, None, lambda one, other: one + other, 1)
    expected = [(s.start, s.end, v) for s, v in store.bind(bytes_, NOW).fetch("ann")]
    found = [(row["window_start"], row["window_end"], row["value"]) for row in rows(store.spec(), bytes_)]
    assert found == [(ms(start), ms(end), value) for start, end, value in expected]
    assert len(found) == 2, "the first has ended too long ago"


def test_a_versioned_store_has_its_latest_values() -> None:
    store = hf.VersionedKeyValueStore("prices", value=int, retention="1h")
    bytes_ = DictBytes()
    bound = store.bind(bytes_, NOW)
    bound.put("tea", 3, 1_000)
    bound.put("tea", 4, 5_000)
    bound.put("milk", 1, 2_000)
    bound.put("milk", None, 3_000)
    assert rows(store.spec(), bytes_) == [{"key": "tea", "value": 4, "valid_from": ms(5_000)}]


def test_a_timestamped_store_has_its_timestamps() -> None:
    store = hf.TimestampedKeyValueStore("audit", value=str)
    bytes_ = DictBytes()
    store.bind(bytes_, NOW).put("a", "x", 1_234)
    assert rows(store.spec(), bytes_) == [{"key": "a", "value": "x", "timestamp": ms(1_234)}]


def row_bytes(*entries: tuple[str, tuple[Any, ...], int | None], spec: StoreSpec = SCORES) -> DictBytes:
    bytes_ = DictBytes()
    for player, row, time in entries:
        payload = encode_row(spec.columns, row)
        bytes_.put(encode_key(spec.key, [player]), pack(Cell(payload) if time is None else Cell(payload, time)))
    return bytes_


def test_the_row_of_an_aggregate_is_its_columns_without_hidden_ones() -> None:
    day = dt.date(2026, 1, 2)
    bytes_ = row_bytes(("ann", (3, 1.5, None, day, 2), 5_000), ("bob", (None, 0.0, None, None, 1), None))
    assert rows(SCORES, bytes_) == [
        {"player": "ann", "points": 3, "best": 1.5, "money": None, "day": day, "timestamp": ms(5_000)},
        {"player": "bob", "points": None, "best": 0.0, "money": None, "day": None, "timestamp": None},
    ]


def test_only_the_wanted_columns_are_decoded() -> None:
    bytes_ = row_bytes(("ann", (3, 1.5, None, None, 2), 5_000))
    table = table_of(SCORES)
    for names in (["points"], ["best", "player"], ["timestamp"], []):
        (batch,) = table.read(bytes_, NOW, names)
        assert batch.schema.names == names and batch.num_rows == 1
    with pytest.raises(NotAsColumns, match="no column 'nope'. It has player, points"):
        table.columns(["points", "nope"])


def test_a_column_of_the_store_wins_over_its_timestamp() -> None:
    spec = msgspec.structs.replace(SCORES, key=key_schema(str), value=hf_rows("Timestamp bigint, KEY bigint"))
    assert StoreTable(spec).schema.names == ["key", "Timestamp", "value_KEY"]


def hf_rows(text: str) -> Any:
    from holdfast.stores.formats.types import Field, Schema
    from holdfast.stores.spec import RowValues

    return RowValues(Schema(tuple(Field(*each.split()) for each in text.split(", "))))


@dataclass
class First:
    user: str
    score: int


def test_a_renamed_field_has_its_new_name_and_one_that_needs_code_is_refused() -> None:
    store = hf.KeyValueStore("players", value=First)
    bytes_ = DictBytes()
    store.bind(bytes_, NOW)["a"] = First("Ann", 3)
    first = store.spec().schemas[0]
    renamed = NumberedSchema(1, "", "{user/player: str, score: int, team?: str}")
    spec = msgspec.structs.replace(store.spec(), schemas=(first, renamed))
    assert rows(spec, bytes_) == [{"key": "a", "player": "Ann", "score": 3, "team": None}]
    tenths = NumberedSchema(2, "", "{player: str, score: float}", upcast_from=(1,))
    with pytest.raises(NotAsColumns, match="only the upcasters of the code can turn into schema 2"):
        rows(msgspec.structs.replace(spec, schema=2, schemas=(first, renamed, tenths)), bytes_)


def test_a_value_that_does_not_fit_is_an_error_that_names_the_store() -> None:
    store = hf.KeyValueStore("players", value=First)
    for damaged in (b"\xc1", msgspec.msgpack.encode({"user": "Ann", "score": "three"}), b"\x01\x02"):
        bytes_ = DictBytes()
        bytes_.put(encode_key(store.spec().key, ["a"]), pack(Cell(damaged)))
        with pytest.raises(DamagedObject, match="'players'"):
            rows(store.spec(), bytes_)


def test_an_own_kind_without_keys_is_refused() -> None:
    with pytest.raises(NotAsColumns, match="only its own code can read"):
        StoreTable(Sketch("sketch").spec())
