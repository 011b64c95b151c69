"""The key-value store: typed keys and values over ordered bytes, as Kafka Streams' users know it."""

import dataclasses
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from holdfast.errors import BadKey, BadValue, DamagedObject, TopologyError
from holdfast.stores.cells import unpack
from holdfast.stores.keys import key_schema
from holdfast.stores.kv import KeyValueStore, ReadOnlyKeyValueStore
from holdfast.stores.spec import StoreSpec, differences
from holdfast.stores.types import Schema
from holdfast.stores.values import MessagePack, Rows, codec_of


class Sorted:
    """Ordered bytes in a dictionary."""

    def __init__(self) -> None:
        self.entries: SortedDict[bytes, bytes] = SortedDict()

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self.entries.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self.entries[key] = value

    def delete(self, key: bytes) -> None:
        self.entries.pop(key, None)

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for key in self.entries.irange(start, stop, inclusive=(True, False), reverse=reverse):
            yield key, self.entries[key]

    def approximate_count(self) -> int:
        return len(self.entries)


class Player(msgspec.Struct):
    name: str
    best: int = 0


@dataclasses.dataclass
class Visit:
    at: dt.datetime
    spent: Decimal


def store(key: Any, value: Any) -> KeyValueStore[Any, Any]:
    return KeyValueStore("things", Sorted(), key_schema(key), MessagePack(value))


def test_put_get_delete() -> None:
    players = store(str, Player)
    assert players.get("ann") is None
    players.put("ann", Player("Ann", 3))
    assert players.get("ann") == Player("Ann", 3)
    assert players["ann"] == Player("Ann", 3)
    assert "ann" in players
    assert "bob" not in players
    assert players.delete("ann") == Player("Ann", 3)
    assert players.delete("ann") is None
    players["bob"] = Player("Bob")
    assert players.approximate_count() == 1
    players.put("bob", None)
    assert players.get("bob") is None
    for use in (lambda: players["bob"], lambda: players.__delitem__("bob")):
        with pytest.raises(KeyError):
            use()


def test_put_if_absent_returns_what_was_there() -> None:
    counts = store(int, int)
    assert counts.put_if_absent(1, 10) is None
    assert counts.put_if_absent(1, 11) == 10
    assert counts.get(1) == 10


def test_ranges_include_both_ends() -> None:
    counts = store(int, int)
    for n in (-2, -1, 0, 5, 7):
        counts[n] = n
    assert [key for key, _ in counts.range(-1, 5)] == [-1, 0, 5]
    assert [key for key, _ in counts.range(None, 0)] == [-2, -1, 0]
    assert [key for key, _ in counts.range(1)] == [5, 7]
    assert [key for key, _ in counts.reverse_range(-1, 5)] == [5, 0, -1]
    assert [key for key, _ in counts.scan(reverse=True)] == [7, 5, 0, -1, -2]
    assert list(counts.range(5, -1)) == []
    assert list(counts) == [(n, n) for n in (-2, -1, 0, 5, 7)]


def test_prefixes_of_texts_and_of_tuples() -> None:
    words = store(str, int)
    for word in ("a", "ab", "abc", "ac", "b"):
        words[word] = 1
    assert [key for key, _ in words.prefix("ab")] == ["ab", "abc"]
    assert [key for key, _ in words.prefix("a", reverse=True)] == ["ac", "abc", "ab", "a"]
    pairs = store(tuple[str, int], int)
    for pair in (("a", 2), ("a", 1), ("ab", 1), ("b", 1)):
        pairs[pair] = 1
    assert [key for key, _ in pairs.prefix("a")] == [("a", 1), ("a", 2)]
    assert [key for key, _ in pairs.prefix(("a",), partial=True)] == [("a", 1), ("a", 2), ("ab", 1)]
    assert [key for key, _ in pairs.range(("a", 2), ("b", 0))] == [("a", 2), ("ab", 1)]


@given(st.dictionaries(st.tuples(st.text(max_size=3), st.integers(-3, 3)), st.integers()), st.data())
def test_it_agrees_with_a_sorted_dictionary(entries: dict[tuple[str, int], int], data: st.DataObject) -> None:
    things = store(tuple[str, int], int)
    for key, value in entries.items():
        things[key] = value if -(2**63) <= value < 2**64 else 0
    edges = st.none() | st.tuples(st.text(max_size=3), st.integers(-3, 3))
    low, high = data.draw(edges), data.draw(edges)
    wanted = [key for key in sorted(entries) if (low is None or key >= low) and (high is None or key <= high)]
    assert [key for key, _ in things.range(low, high)] == wanted
    assert [key for key, _ in things.reverse_range(low, high)] == wanted[::-1]


def test_a_stored_value_is_a_cell() -> None:
    bytes_ = Sorted()
    KeyValueStore[str, int]("things", bytes_, key_schema(str), MessagePack(int))["a"] = 5
    assert {key: unpack(data).payload for key, data in bytes_.entries.items()} == {b"\x01a": b"\x05"}
    assert ReadOnlyKeyValueStore[str, int]("things", bytes_, key_schema(str), MessagePack(int)).get("a") == 5


def test_keys_of_another_type_are_refused() -> None:
    with pytest.raises(BadKey, match="key=5 is an int"):
        store(str, int).get(5)
    with pytest.raises(BadKey, match="1 parts"):
        store(tuple[str, int], int).get(("a",))


@pytest.mark.parametrize(
    ("type_", "value", "data"),
    [
        (int, 300, "cd012c"),
        (str, "añ", "a361c3b1"),
        (Player, Player("Ann", 3), "82a46e616d65a3416e6ea46265737403"),
        (tuple[int, str], (1, "x"), "9201a178"),
        (dict[str, float], {"a": 0.5}, "81a161cb3fe0000000000000"),
        (Visit, Visit(dt.datetime(2024, 1, 1, tzinfo=dt.UTC), Decimal("1.50")), None),
        (int | None, 7, "07"),
    ],
)
def test_msgpack_1_reads_and_writes_as_it_always_did(type_: Any, value: Any, data: str | None) -> None:
    codec = MessagePack[Any](type_)
    encoded = codec.encode(value)
    assert data is None or encoded.hex() == data
    assert codec.decode(encoded) == value


@pytest.mark.parametrize(
    ("type_", "value"),
    [(int, "1"), (Player, {"best": 1}), (int | str, 1.5), (list[int], 3), (str, object()), (int, 2**70)],
)
def test_values_of_another_type_are_refused(type_: Any, value: Any) -> None:
    with pytest.raises(BadValue):
        MessagePack[Any](type_).encode(value)


def test_bytes_of_another_type_are_never_a_wrong_answer() -> None:
    with pytest.raises(DamagedObject, match="Player"):
        MessagePack(Player).decode(b"\x05")
    with pytest.raises(TopologyError, match="value type"):
        codec_of(StoreSpec(name="a", key=key_schema(str), codec="msgpack/1"), dict[str, int] | dict[int, int])


def test_codecs_follow_from_the_spec() -> None:
    key, value = key_schema(str), Schema.of(plays="bigint", who="string")
    rows = codec_of(StoreSpec(name="a", key=key, value=value, codec="rows/1"))
    assert isinstance(rows, Rows)
    assert rows.decode(rows.encode({"plays": 1})) == {"plays": 1, "who": None}
    with pytest.raises(BadValue, match="has score, and the store has plays bigint, who string"):
        rows.encode({"score": 1})
    plain = codec_of(StoreSpec(name="a", key=key, codec="msgpack/1"))
    assert plain.decode(MessagePack(Player).encode(Player("Ann", 3))) == {"name": "Ann", "best": 3}
    for spec in (StoreSpec(name="a", key=key, codec="rows/1"), StoreSpec(name="a", key=key, codec="avro/1")):
        with pytest.raises(TopologyError, match="store 'a'"):
            codec_of(spec)


def test_specs_survive_json_as_they_always_did() -> None:
    spec = StoreSpec(name="scores", key=Schema.of(player="string"), value=Schema.of(n="bigint"), codec="rows/1")
    data = (
        b'{"name":"scores","kind":"key-value","key":{"fields":[{"name":"player","type":"string"}]},'
        b'"value":{"fields":[{"name":"n","type":"bigint"}]},"codec":"rows/1","engine":"rocksdb","format":1}'
    )
    assert msgspec.json.encode(spec) == data
    assert msgspec.json.decode(data, type=StoreSpec) == spec


def test_differences_are_sentences() -> None:
    old = StoreSpec(name="scores", key=Schema.of(player="string"), codec="msgpack/1")
    new = StoreSpec(
        name="scores", key=Schema.of(player="bigint"), value=Schema.of(n="int"), codec="rows/1", engine="memory"
    )
    assert differences([old], [old]) == []
    assert differences([old], [new, StoreSpec(name="a", key=old.key, codec="rows/1")]) == [
        "store 'a' is in the code and not in the log",
        "store 'scores' has codec msgpack/1 in the log and rows/1 in the code",
        "store 'scores' has engine rocksdb in the log and memory in the code",
        "store 'scores' has key (player string) in the log and (player bigint) in the code",
        "store 'scores' has value (no schema) in the log and (n int) in the code",
    ]


@pytest.mark.parametrize("name", ["", "Scores", "-a", "a b", "a/b", "x" * 101, "é"])
def test_a_name_that_cannot_be_a_folder_everywhere_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="can't name a store"):
        StoreSpec(name=name, key=key_schema(str), codec="msgpack/1")
