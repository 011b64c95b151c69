"""The key-value store: typed keys and values, with the methods of Kafka Streams and of dictionaries."""

import datetime as dt
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadKey, BadValue, TopologyError
from holdfast.stores.formats.cells import unpack
from holdfast.stores.kinds import view_of
from holdfast.stores.layouts.base import EMPTY
from holdfast.stores.layouts.expiry import AT_MOST, index_key


class Player(msgspec.Struct):
    name: str
    best: int = 0


def store(key: Any, value: Any, **options: Any) -> hf.KeyValueStore[Any, Any]:
    return hf.KeyValueStore[Any, Any]("things", key=key, value=value, **options).bind(hf.DictBytes(), hf.Now(wall=0))


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
    for use in (lambda: players["bob"], lambda: players.__delitem__("bob"), lambda: players.pop("bob")):
        with pytest.raises(KeyError):
            use()


def test_a_store_behaves_like_a_dictionary() -> None:
    counts = store(str, int)
    assert counts.get("a", 7) == 7
    assert counts.setdefault("a", 1) == 1
    assert counts.setdefault("a", 2) == 1
    counts.update({"b": 2})
    counts.update([("c", 3), ("d", 4)])
    assert list(counts) == list(counts.keys()) == ["a", "b", "c", "d"]
    assert list(counts.values()) == [1, 2, 3, 4]
    assert list(counts.items("b", "c")) == [("b", 2), ("c", 3)]
    assert dict(counts.items()) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert counts.pop("d") == 4
    assert counts.pop("d", None) is None
    del counts["c"]
    assert counts.get_many(["a", "c", "b", "a"]) == {"a": 1, "b": 2}
    assert bool(counts)
    with pytest.raises(TypeError, match="approximate_count"):
        len(counts)


def test_put_if_absent_returns_the_existing_value() -> None:
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
    assert list(counts.scan()) == [(n, n) for n in (-2, -1, 0, 5, 7)]


def test_ends_of_a_range_may_be_the_first_components_of_a_key() -> None:
    """As over REST: all keys that begin with them."""
    moves = store((int, str), int)
    moves.update({(n, name): n for n in (1, 2, 3) for name in ("a", "b")})
    assert [key for key, _ in moves.items(to=(2,))] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert [key for key, _ in moves.range((2,), (2,))] == [(2, "a"), (2, "b")]
    assert [key for key, _ in moves.range((2, "b"), (3,))] == [(2, "b"), (3, "a"), (3, "b")]
    assert [key for key, _ in moves.reverse_range((3,))] == [(3, "b"), (3, "a")]
    for bad in (2, (), (1, "a", 2), ("a",)):
        with pytest.raises(BadKey):
            moves.items(to=bad)


def test_many_keys_of_several_components_may_be_lists() -> None:
    moves = store((int, str), int)
    moves[1, "a"] = 7
    assert moves.get_many([[1, "a"], (2, "b")]) == {(1, "a"): 7}


def test_iterators_close() -> None:
    counts = store(int, int)
    counts.update((n, n) for n in range(5))
    with counts.scan() as entries:
        assert next(entries) == (0, 0)
    assert list(entries) == []
    keys = counts.keys()
    assert next(keys) == 0
    keys.close()
    assert list(keys) == []


def test_prefixes_of_texts_and_of_tuples() -> None:
    words = store(str, int)
    for word in ("a", "ab", "abc", "ac", "b"):
        words[word] = 1
    assert [key for key, _ in words.prefix("ab")] == ["ab", "abc"]
    assert [key for key, _ in words.prefix("a", reverse=True)] == ["ac", "abc", "ab", "a"]
    pairs = store((str, int), int)
    for pair in (("a", 2), ("a", 1), ("ab", 1), ("b", 1)):
        pairs[pair] = 1
    assert [key for key, _ in pairs.prefix("a")] == [("a", 1), ("a", 2)]
    assert [key for key, _ in pairs.prefix(("a",), partial=True)] == [("a", 1), ("a", 2), ("ab", 1)]
    assert [key for key, _ in pairs.range(("a", 2), ("b", 0))] == [("a", 2), ("ab", 1)]


@given(st.dictionaries(st.tuples(st.text(max_size=3), st.integers(-3, 3)), st.integers()), st.data())
def test_a_store_equals_a_sorted_dictionary(entries: dict[tuple[str, int], int], data: st.DataObject) -> None:
    things = store(tuple[str, int], int)
    for key, value in entries.items():
        things[key] = value if -(2**63) <= value < 2**64 else 0
    edges = st.none() | st.tuples(st.text(max_size=3), st.integers(-3, 3))
    low, high = data.draw(edges), data.draw(edges)
    wanted = [key for key in sorted(entries) if (low is None or key >= low) and (high is None or key <= high)]
    assert [key for key, _ in things.range(low, high)] == wanted
    assert [key for key, _ in things.reverse_range(low, high)] == wanted[::-1]


def test_a_stored_value_is_a_cell() -> None:
    bytes_ = hf.DictBytes()
    declared = hf.KeyValueStore("things", value=int)
    declared.bind(bytes_, hf.Now(wall=0))["a"] = 5
    assert {key: unpack(data).payload for key, data in bytes_.entries.items()} == {b"\x01a": b"\x05"}
    view = view_of(declared.spec(), bytes_, hf.Now(wall=0))
    assert isinstance(view, hf.ReadOnlyKeyValueStore)
    assert view.get("a") == 5


def test_keys_of_another_type_are_refused() -> None:
    with pytest.raises(BadKey, match="key=5 is an int"):
        store(str, int).get(5)
    with pytest.raises(BadKey, match="1 part was given"):
        store(tuple[str, int], int).get(("a",))
    with pytest.raises(BadKey, match="2 parts"):
        store((str, int), int).get("a")
    with pytest.raises(BadKey, match="limit"):
        store(str, int).get("é" * 40_000)
    with pytest.raises(BadKey, match="UTF-8"):
        store(str, int).get("\ud800")


def test_a_declaration_has_no_data_and_says_so() -> None:
    declared = hf.KeyValueStore("things", value=int)
    for use in (lambda: declared.get("a"), lambda: declared.put("a", 1), declared.scan):
        with pytest.raises(hf.NotBound, match=r"KeyValueStore\('things'\) is a declaration"):
            use()
    assert not hasattr(declared, "nothing_of_the_kind")
    assert declared.name == "things"


def test_a_declaration_travels_to_tasks() -> None:
    declared = pickle.loads(pickle.dumps(hf.KeyValueStore("players", value=Player, ttl="1h")))
    bound = declared.bind(hf.DictBytes(), hf.Now(wall=0))
    bound["ann"] = Player("Ann")
    assert bound["ann"] == Player("Ann")


def test_read_only_views_cannot_write() -> None:
    counts = store(str, int)
    counts["a"] = 1
    view = counts.read_only()
    assert view["a"] == 1
    for name in ("put", "delete", "pop", "update", "setdefault", "put_if_absent", "bind", "__setitem__", "__delitem__"):
        assert not hasattr(view, name), name
    counts["b"] = 2
    assert dict(view.items()) == {"a": 1, "b": 2}


# Time


def test_every_entry_of_a_store_with_a_ttl_expires_after_it() -> None:
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("seen", value=int, ttl="8s")
    declared.bind(bytes_, hf.Now(wall=1_000))["a"] = 1
    assert declared.bind(bytes_, hf.Now(wall=8_999)).get("a") == 1
    assert declared.bind(bytes_, hf.Now(wall=9_000)).get("a") is None
    declared.bind(bytes_, hf.Now(wall=5_000))["a"] = 2
    assert declared.bind(bytes_, hf.Now(wall=12_999)).get("a") == 2
    assert list(declared.bind(bytes_, hf.Now(wall=12_999)).scan()) == [("a", 2)]
    assert declared.bind(bytes_, hf.Now(wall=12_999)).delete("a") == 2
    assert not [key for key in bytes_.entries if unpack(bytes_.entries[key]).expires > 12_999]


@pytest.mark.parametrize("most", [None, 10])
def test_an_entry_may_have_a_shorter_ttl_than_the_store(most: int | None) -> None:
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("seen", value=int, ttl="8s", max_entries=most)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first["a"] = 1
    first.put("a", 2, ttl="1s")
    assert first.get("a") == 2
    first.end_of_version()
    # The older copy, which hasn't expired, doesn't come back.
    assert declared.bind(bytes_, hf.Now(wall=1_000)).get("a") is None
    with pytest.raises(BadValue, match="ttl=9s is longer than the store's own of 8s"):
        first.put("a", 3, ttl="9s")


def test_the_newest_copy_is_visible_after_the_ttl_changed() -> None:
    bytes_ = hf.DictBytes()
    long = hf.KeyValueStore("seen", value=int, ttl="8s")
    short = hf.KeyValueStore("seen", value=int, ttl="2s")
    long.bind(bytes_, hf.Now(wall=1_500))["a"] = 1
    later = short.bind(bytes_, hf.Now(wall=2_500), spec=msgspec.structs.replace(short.spec(), slice_ms=1_000))
    later["a"] = 2
    assert later.get("a") == 2


def test_an_entry_with_a_ttl_of_its_own_is_hidden_then_removed() -> None:
    counted = Counter[str]()
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("seen", value=int)
    first = declared.bind(bytes_, hf.Now(wall=1_000))
    first.put("a", 1, ttl="1s")
    first.put("a", 2, ttl="2s")
    first.put("b", 3, ttl=dt.timedelta(seconds=1))
    first.put("c", 4, ttl=1_000)
    first.put("c", 5)
    assert len([key for key in bytes_.entries if key[0] == 3]) == 3
    later = declared.bind(bytes_, hf.Now(wall=2_000), lambda name, number: counted.update({name: number}))
    assert dict(later.items()) == {"a": 2, "c": 5}
    assert b"\x01b" in bytes_.entries
    later.begin_version()
    assert counted == {"removed": 1}
    assert b"\x01b" not in bytes_.entries
    last = declared.bind(bytes_, hf.Now(wall=3_000))
    last.begin_version()
    assert dict(last.items()) == {"c": 5}
    assert list(bytes_.entries) == [b"\x01c"]


def test_a_version_removes_a_limited_number_of_expired_entries() -> None:
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("seen", key=int, value=int)
    first = declared.bind(bytes_, hf.Now(wall=0))
    for n in range(AT_MOST + 5):
        first.put(n, n, ttl=1)
    declared.bind(bytes_, hf.Now(wall=10)).begin_version()
    assert len(bytes_.entries) == 10
    assert list(declared.bind(bytes_, hf.Now(wall=10)).scan()) == []


def test_expired_entries_do_not_pile_up() -> None:
    bytes_, declared, counted = hf.DictBytes(), hf.KeyValueStore("seen", key=int, value=int), Counter[str]()
    puts, rows = AT_MOST + AT_MOST // 2, []
    for version in range(8):
        bound = declared.bind(bytes_, hf.Now(wall=1_000 * version), lambda name, number: counted.update({name: number}))
        bound.begin_version()
        for n in range(puts if version < 6 else 0):
            bound.put(version * puts + n, n, ttl="1s")
        bound.end_of_version()
        rows.append(len(bytes_.entries))
    assert rows == [2 * puts] * 6 + [2 * (puts - AT_MOST), 0], "an entry and its row in the index, of the last version"
    assert counted == {"removed": 6 * puts}


@pytest.mark.parametrize("ttl", ["0s", "later", 0, -5])
def test_an_impossible_ttl_is_refused(ttl: Any) -> None:
    with pytest.raises(BadValue, match="ttl="):
        store(str, int).put("a", 1, ttl=ttl)


# Room


def test_the_least_recently_written_entries_are_evicted() -> None:
    counted = Counter[str]()
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("recent", value=int, max_entries=2)

    def version(*puts: tuple[str, int]) -> None:
        bound = declared.bind(bytes_, hf.Now(wall=0), lambda name, number: counted.update({name: number}))
        bound.begin_version()
        for key, value in puts:
            bound[key] = value
            assert bound[key] == value
        bound.end_of_version()

    version(("a", 1), ("b", 2))
    version(("a", 3))
    version(("c", 4))
    assert dict(declared.bind(bytes_, hf.Now(wall=0)).items()) == {"a": 3, "c": 4}
    assert counted == {"evicted": 1}
    version(("d", 5), ("e", 6), ("f", 7))
    assert dict(declared.bind(bytes_, hf.Now(wall=0)).items()) == {"e": 6, "f": 7}
    assert len(bytes_.entries) == 2 + 2 + 1, "two entries, their places in the index, and the count"


def test_an_entry_that_came_and_went_in_one_version_is_never_written() -> None:
    class Written(hf.DictBytes):
        touched: set[bytes] = set()

        def put(self, key: bytes, value: bytes) -> None:
            self.touched.add(key)
            super().put(key, value)

        def delete(self, key: bytes) -> None:
            self.touched.add(key)
            super().delete(key)

    bytes_ = Written()
    bound = hf.KeyValueStore("recent", key=int, value=int, max_entries=10).bind(bytes_, hf.Now(wall=0))
    for n in range(10_000):
        bound[n] = n
    bound.end_of_version()
    assert len(bytes_.entries) == len(bytes_.touched) == 21
    assert [key for key, _ in bound.scan()] == list(range(9_990, 10_000))


@pytest.mark.parametrize("store_ttl", [None, "10s"])
def test_expired_entries_take_no_room_from_visible_ones(store_ttl: str | None) -> None:
    counted = Counter[str]()
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("recent", value=int, max_entries=2, ttl=store_ttl)

    def version(wall: int, key: str, ttl: str | None = None) -> None:
        bound = declared.bind(bytes_, hf.Now(wall=wall), lambda name, number: counted.update({name: number}))
        bound.begin_version()
        bound.put(key, 1, ttl=ttl)
        bound.end_of_version()

    version(0, "live")
    version(0, "over", "10ms")
    version(1_000, "new")
    assert sorted(declared.bind(bytes_, hf.Now(wall=1_000)).keys()) == ["live", "new"]
    assert counted == {"removed": 1}
    assert not any(b"over" in key for key in bytes_.entries)
    version(20_000, "last")
    assert counted == ({"removed": 3} if store_ttl else {"removed": 1, "evicted": 1})


def test_all_expired_entries_make_room_beyond_the_limit_per_version() -> None:
    bytes_, most = hf.DictBytes(), AT_MOST + 10
    declared = hf.KeyValueStore("recent", key=int, value=int, max_entries=most)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first[-1] = 0
    for n in range(most - 1):
        first.put(n, n, ttl=1)
    first.end_of_version()
    second = declared.bind(bytes_, hf.Now(wall=10))
    second.begin_version()
    second.update((most + n, n) for n in range(most - 1))
    second.end_of_version()
    assert list(declared.bind(bytes_, hf.Now(wall=10)).keys()) == [-1, *range(most, 2 * most - 1)]
    assert len(bytes_.entries) == 2 * most + 1


def test_an_expiry_row_with_another_time_removes_nothing() -> None:
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("recent", value=int, max_entries=2)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first["a"] = 1
    first.end_of_version()
    bytes_.put(index_key(5, b"\x01a"), EMPTY)
    second = declared.bind(bytes_, hf.Now(wall=10))
    second.begin_version()
    second.end_of_version()
    assert dict(second.items()) == {"a": 1}
    assert index_key(5, b"\x01a") not in bytes_.entries


def test_of_the_entries_that_a_version_touches_the_last_stay() -> None:
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("recent", value=int, max_entries=2)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first["a"], first["b"] = 1, 2
    first.end_of_version()
    second = declared.bind(bytes_, hf.Now(wall=0))
    second["a"], second["c"] = 3, 4
    assert dict(second.items()) == {"a": 3, "b": 2, "c": 4}, "earlier entries make room when the version ends"
    second["d"] = 5
    assert dict(second.items()) == {"b": 2, "c": 4, "d": 5}, "two were touched after a"
    assert second.get_many(["a", "d"]) == {"d": 5}
    second["a"] = 6
    second.end_of_version()
    assert dict(second.items()) == {"a": 6, "d": 5}


def test_a_scan_of_a_bounded_store_reads_no_single_keys() -> None:
    class Asked(hf.DictBytes):
        asked = 0

        def get(self, key: bytes) -> bytes | None:
            self.asked += 1
            return super().get(key)

        def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
            self.asked += 1
            return super().get_many(keys)

    bytes_ = Asked()
    declared = hf.KeyValueStore("recent", key=int, value=int, max_entries=5_000)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first.update((n, n) for n in range(5_000))
    first.end_of_version()
    second = declared.bind(bytes_, hf.Now(wall=0))
    second[7] = 70
    del second[8]
    bytes_.asked = 0
    assert [value for _, value in second.scan()] == [*range(7), 70, *range(9, 5_000)]
    assert [key for key, _ in second.reverse_range(6, 10)] == [10, 9, 7, 6]
    assert list(second.read_only().keys()) == [*range(8), *range(9, 5_000)]
    assert bytes_.asked == 0
    assert second.read_only().get_many([7, 8, 9, 10]) == {7: 70, 9: 9, 10: 10}
    assert bytes_.asked == 1


def test_a_bounded_store_may_be_written_to_during_a_scan() -> None:
    bytes_, declared = hf.DictBytes(), hf.KeyValueStore("recent", key=int, value=int, max_entries=1_000)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first.update((n, n) for n in range(1_000))
    first.end_of_version()
    second = declared.bind(bytes_, hf.Now(wall=0))
    seen = []
    for key, _ in second.scan():
        seen.append(key)
        second[999 - key] = 0
    assert seen == list(range(1_000)), "an entry that is written during the scan isn't left out"


@pytest.mark.parametrize("refresh", [True, False])
def test_a_read_refreshes_with_refresh_on_read(refresh: bool) -> None:
    bytes_ = hf.DictBytes()
    declared = hf.KeyValueStore("recent", value=int, max_entries=2, refresh_on_read=refresh)
    first = declared.bind(bytes_, hf.Now(wall=0))
    first["a"], first["b"] = 1, 2
    first.end_of_version()
    second = declared.bind(bytes_, hf.Now(wall=0))
    assert second.read_only().get("b") == 2, "a read-only view refreshes nothing"
    assert second.get("a") == 1
    second["c"] = 3
    second.end_of_version()
    assert set(declared.bind(bytes_, hf.Now(wall=0))) == ({"a", "c"} if refresh else {"b", "c"})


def test_impossible_options_are_refused_at_the_declaration() -> None:
    with pytest.raises(TopologyError, match=r"KeyValueStore\('a'\): ttl=\"0s\" is too short"):
        hf.KeyValueStore("a", value=int, ttl="0s")
    with pytest.raises(TopologyError, match="max_entries=0"):
        hf.KeyValueStore("a", value=int, max_entries=0)
    with pytest.raises(TopologyError, match="Say max_entries"):
        hf.KeyValueStore("a", value=int, refresh_on_read=True)
    with pytest.raises(TopologyError, match='retention="1h" is shorter than a window\'s size of 2h'):
        hf.WindowStore("a", value=int, size="2h", retention="1h")
    with pytest.raises(TopologyError, match="can't be the name of a store"):
        hf.KeyValueStore("A b", value=int)
    with pytest.raises(TopologyError, match="names no types"):
        store((), int)


def test_the_app_chooses_the_engine_of_a_store_that_names_none() -> None:
    assert hf.KeyValueStore("a", value=int).spec(default_engine="memory").engine == "memory"
    assert hf.KeyValueStore("a", value=int, engine="rocksdb").spec(default_engine="memory").engine == "rocksdb"


def test_prefetch_names_every_place_an_entry_may_be() -> None:
    bytes_ = hf.DictBytes()
    plain = hf.KeyValueStore("a", value=int).bind(bytes_, hf.Now(wall=0))
    assert plain.prefetch(["x", "y", "x"], [0, 0, 0]).keys == [b"\x01x", b"\x01y"]
    for wall in (0, 3_500, 8_000):
        hf.KeyValueStore("a", value=int, ttl="8s").bind(bytes_, hf.Now(wall=wall))["x"] = wall
    sliced = hf.KeyValueStore("a", value=int, ttl="8s").bind(bytes_, hf.Now(wall=8_001))
    wanted = sliced.prefetch(["x"], [0])
    assert len(wanted.keys) == 9
    assert sum(key in bytes_.entries for key in wanted.keys) == 3
