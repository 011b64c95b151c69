"""Many entries at a time: the same answers as one by one, and never a wrong one."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadKey, BadValue, DamagedObject
from holdfast.stores.codecs.base import UnreadableValue
from holdfast.stores.formats import cells
from holdfast.stores.formats.cells import Cell, all_begin_with
from holdfast.stores.formats.keys import MAX_KEY_BYTES, key_schema
from holdfast.stores.formats.times import time_bytes, times_at
from holdfast.stores.formats.typed_keys import (
    key_decoder,
    key_encoder,
    keys_decoder,
    keys_encoder,
)
from holdfast.stores.kinds import view_of
from holdfast.stores.kinds.base import Store
from holdfast.stores.scans import FIRST_ROWS, ROWS

TEXTS = st.text(st.sampled_from("ab\x00\x01\x02é漢"), max_size=4)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
SECOND, MINUTE = 1_000, 60_000


class Player(msgspec.Struct):
    name: str
    best: int = 0


def bound(declared: Store[Any, Any], wall: int = 0, bytes_: hf.DictBytes | None = None) -> Any:
    return declared.bind(bytes_ or hf.DictBytes(), hf.Now(wall=wall))


@given(st.lists(TEXTS, max_size=6))
def test_many_texts_are_encoded_and_decoded_like_one(keys: list[str]) -> None:
    schema = key_schema(str)
    stored = [key_encoder(schema)(key) for key in keys]
    assert keys_encoder(schema)(keys) == stored
    for order in (sorted(stored), sorted(stored, reverse=True)):
        assert keys_decoder(schema)(order) == [key_decoder(schema)(key) for key in order]


@given(st.lists(NUMBERS, max_size=6))
def test_many_numbers_are_encoded_like_one(keys: list[int]) -> None:
    schema = key_schema(int)
    assert keys_encoder(schema)(keys) == [key_encoder(schema)(key) for key in keys]


@pytest.mark.parametrize("wrong", [3, None, b"ann", "\ud800", "x" * MAX_KEY_BYTES])
def test_one_wrong_key_among_many_is_refused(wrong: Any) -> None:
    with pytest.raises(BadKey):
        keys_encoder(key_schema(str))(["ann", wrong, "bob"])


@pytest.mark.parametrize("damaged", [b"\x01\xff", b"\x01a\xc3", b"\x02a"])
def test_one_damaged_key_among_many_is_never_a_wrong_answer(damaged: bytes) -> None:
    with pytest.raises(DamagedObject):
        keys_decoder(key_schema(str))(sorted([b"\x01a", b"\x01a\x00\x01b", damaged]))


@given(st.sets(NUMBERS | st.integers(0, 2**57), min_size=1, max_size=9), st.booleans(), st.sampled_from([-8, -16]))
def test_many_times_are_read_like_one(times: set[int], reverse: bool, place: int) -> None:
    ordered = sorted(times, reverse=reverse)
    rows = [(b"key" + time_bytes(time) + bytes(-8 - place), b"") for time in ordered]
    assert list(times_at(rows, place)) == ordered


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=5), st.binary(max_size=2))
def test_the_smallest_and_largest_cell_show_whether_all_have_a_prefix(found: list[bytes], beginning: bytes) -> None:
    assert all_begin_with(beginning, found) == all(each.startswith(beginning) for each in found)


@pytest.mark.parametrize("options", [{}, {"ttl": "1h"}, {"max_entries": 5_000}])
@pytest.mark.parametrize("size", [3, ROWS + FIRST_ROWS + 1])
def test_an_update_equals_single_puts(options: Any, size: int) -> None:
    players = {f"p{n:05d}": Player(str(n), n) for n in range(size)}
    at_once, pairs, one_by_one = (bound(hf.KeyValueStore("players", value=Player, **options)) for _ in range(3))
    at_once.update(players)
    pairs.update((key, player) for key, player in players.items())
    for key, player in players.items():
        one_by_one.put(key, player)
    for store in (at_once, pairs, one_by_one):
        store.end_of_version()
        assert dict(store.scan()) == players
        assert list(store.scan(reverse=True)) == list(players.items())[::-1]
        assert store.get_many([*players, "nobody"]) == players
    assert at_once._bytes.entries == pairs._bytes.entries == one_by_one._bytes.entries


def test_the_last_of_two_values_stays_and_none_deletes() -> None:
    counts = bound(hf.KeyValueStore("counts", value=int))
    counts.update([("a", 1), ("b", 2), ("a", 3)])
    counts.update([("b", None), ("c", 4)])
    assert dict(counts.items()) == {"a": 3, "c": 4}
    with pytest.raises(BadValue, match="'three'"):
        counts.update({"d": 3, "e": "three"})
    few = bound(hf.KeyValueStore("few", value=int, max_entries=1))
    few.update([("a", 1), ("b", 2), ("a", 3)])
    few.end_of_version()
    assert dict(few.items()) == {"a": 3}, "it was touched last"


def test_expired_entries_are_hidden_among_visible_ones() -> None:
    declared, bytes_ = hf.KeyValueStore("counts", value=int), hf.DictBytes()
    counts = bound(declared, 0, bytes_)
    names = [f"n{n:04d}" for n in range(ROWS + FIRST_ROWS)]
    for number, name in enumerate(names):
        counts.put(name, number, ttl=SECOND if number % 3 == 0 or number < FIRST_ROWS else None)
    later = bound(declared, 2 * SECOND, bytes_)
    left = {name: n for n, name in enumerate(names) if n % 3 and n >= FIRST_ROWS}
    assert dict(later.scan()) == left, "nothing is left of the first batch, and some entries of the others"
    assert later.get_many(names) == left


GOOD = cells.pack(Cell(msgspec.msgpack.encode(7)))
DAMAGED = [
    b"",
    GOOD[:1],
    GOOD[:16],
    GOOD[:17],
    GOOD[:-1] + b"\xc1",
    GOOD + b"\x07",
    GOOD[:-1] + b"\xa1x",
    b"\x02" + GOOD,
    b"\x03" + GOOD[1:],
]


@pytest.mark.parametrize("cell", DAMAGED)
def test_one_damaged_cell_among_many_is_never_a_wrong_answer(cell: bytes) -> None:
    counts = bound(hf.KeyValueStore("counts", value=int))
    counts.update({"a": 1, "b": 2, "c": 3})
    counts._bytes.put(b"\x01b", cell)
    plays = bound(hf.WindowStore("plays", value=int, size="1m"), 10 * MINUTE)
    for n in range(9):
        plays.put("ann", n, n * MINUTE)
    fifth = next(key for key in list(plays._bytes.entries) if key.endswith(time_bytes(5 * MINUTE)))
    plays._bytes.put(fifth, cell)
    for read in (
        lambda: counts.get("b"),
        lambda: counts.get_many(["a", "b", "nobody"]),
        lambda: counts.get_many(["a", "b", "c"]),
        lambda: list(counts.scan()),
        lambda: list(plays.fetch("ann", from_=0, to=9 * MINUTE)),
        lambda: plays.fetch("ann", 5 * MINUTE),
    ):
        with pytest.raises((DamagedObject, UnreadableValue)):
            read()


Reads = dict[str, Callable[[Any], Any]]

OF_ENTRIES: Reads = {
    "get": lambda store: store.get("b"),
    "[]": lambda store: store["b"],
    "get_many": lambda store: store.get_many(["a", "b", "c"]),
    "get_many, one missing": lambda store: store.get_many(["a", "b", "nobody"]),
    "scan": lambda store: list(store.scan()),
    "scan back": lambda store: list(store.scan(reverse=True)),
    "range": lambda store: list(store.range("a", "c")),
    "items": lambda store: list(store.items()),
    "values": lambda store: list(store.values()),
}
KINDS: dict[str, tuple[Store[Any, Any], Callable[[Any, str, int], Any], Reads]] = {
    "key-value": (
        hf.KeyValueStore("s", value=int),
        lambda store, key, n: store.put(key, n),
        {**OF_ENTRIES, "default": lambda store: store.get("b", 0)},
    ),
    "ttl": (hf.KeyValueStore("s", value=int, ttl="1d"), lambda store, key, n: store.put(key, n), OF_ENTRIES),
    "own ttl": (hf.KeyValueStore("s", value=int), lambda store, key, n: store.put(key, n, ttl="1d"), OF_ENTRIES),
    "max entries": (
        hf.KeyValueStore("s", value=int, max_entries=9),
        lambda store, key, n: store.put(key, n),
        OF_ENTRIES,
    ),
    "timestamped": (
        hf.TimestampedKeyValueStore("s", value=int),
        lambda store, key, n: store.put(key, n, n),
        OF_ENTRIES,
    ),
    "versioned": (
        hf.VersionedKeyValueStore("s", value=int, retention="1h"),
        lambda store, key, n: (store.put(key, n, MINUTE), store.put(key, n, 2 * MINUTE)),
        {
            "get": lambda store: store.get("b"),
            "as of": lambda store: store.get("b", as_of=3 * MINUTE),
            "as of, old": lambda store: store.get("b", as_of=MINUTE),
            "history": lambda store: list(store.history("b")),
            "history back": lambda store: list(store.history("b", reverse=True)),
            "history, old": lambda store: list(store.history("b", MINUTE, MINUTE)),
        },
    ),
    **{
        f"window{', duplicates' if duplicates else ''}": (
            hf.WindowStore("s", value=int, size="1m", duplicates=duplicates),
            lambda store, key, n: [store.put(key, n, at * MINUTE) for at in range(3)],
            {
                "one": lambda store: store.fetch("b", MINUTE),
                "fetch": lambda store: list(store.fetch("b", from_=0, to=2 * MINUTE)),
                "fetch back": lambda store: list(store.fetch("b", from_=0, to=2 * MINUTE, reverse=True)),
                "fetch, open": lambda store: list(store.fetch("b")),
                "fetch_all": lambda store: list(store.fetch_all()),
                "fetch_keys": lambda store: list(store.fetch_keys("b", "c", reverse=True)),
            },
        )
        for duplicates in (False, True)
    },
    "session": (
        hf.SessionStore("s", value=int, gap="1m"),
        lambda store, key, n: store.put(hf.Session(key, 0, MINUTE), n),
        {
            "get": lambda store: store.get("b", 0, MINUTE),
            "find": lambda store: list(store.find("b", 0, MINUTE)),
            "fetch back": lambda store: list(store.fetch("b", reverse=True)),
            "find_keys": lambda store: list(store.find_keys("a", "c")),
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_of_an_unknown_format_is_refused_by_every_read(kind: str) -> None:
    """A release that doesn't know a format reports it, and doesn't read the bytes after it as a value."""
    declared, put, reads = KINDS[kind]
    bytes_ = hf.DictBytes()
    store = bound(declared, 0, bytes_)
    for number, key in enumerate("abc"):
        put(store, key, number)
    store.end_of_version()
    now = hf.Now(wall=0)
    for read in reads.values():
        read(bound(declared, 0, bytes_))
    entries = [key for key in bytes_.entries if key[:1] in (b"\x01", b"\x02") and b"\x01b" in key]
    assert entries
    for key in entries:
        bytes_.put(key, b"\x03" + bytes_.entries[key][1:])
    for each in (
        bound(declared, 0, bytes_),
        bound(declared, 0, bytes_).read_only(),
        view_of(declared.spec(), bytes_, now),
    ):
        for name, read in reads.items():
            with pytest.raises(DamagedObject, match="has format 3"):
                pytest.fail(f"{name} of {each} gave {read(each)}")


@pytest.mark.parametrize("cell", [b"", GOOD[:1], GOOD[:16]])
def test_a_truncated_cell_is_not_an_empty_value(cell: bytes) -> None:
    blobs = bound(hf.KeyValueStore("blobs", value=bytes, codec="bytes"))
    blobs["a"] = b""
    assert blobs.get_many(["a"]) == {"a": b""}
    blobs._bytes.put(b"\x01a", cell)
    shots = bound(hf.WindowStore("shots", value=bytes, size="1m", codec="bytes"))
    shots.put("ann", b"", 0)
    for place in [key for key in shots._bytes.entries if key.endswith(time_bytes(0))]:
        shots._bytes.put(place, cell)
    for read in (
        lambda: blobs.get("a"),
        lambda: blobs.get_many(["a"]),
        lambda: list(blobs.scan()),
        lambda: shots.fetch("ann", 0),
        lambda: list(shots.fetch("ann", from_=0, to=5)),
    ):
        with pytest.raises(DamagedObject):
            read()


@pytest.mark.parametrize("windows", [0, 1, FIRST_ROWS - 1, FIRST_ROWS, FIRST_ROWS + ROWS + 1])
@pytest.mark.parametrize("retention", ["30d", "2h"])
def test_a_fetch_of_any_length_in_one_slice_or_several(windows: int, retention: str) -> None:
    step = 10
    declared = hf.WindowStore("plays", value=int, size="1m", retention=retention)
    plays = bound(declared, windows * step)
    for n in range(windows):
        plays.put("ann", n, n * step)
        plays.put("anna", -n, n * step)
    expected = [(n * step, n) for n in range(windows)]
    for to in (None, windows * step):
        assert list(plays.fetch("ann", from_=0, to=to)) == expected
        assert list(plays.fetch("ann", from_=0, to=to, reverse=True)) == expected[::-1]
    assert list(plays.fetch("ann", from_=step, to=3 * step)) == expected[1:4]


class Counting(hf.DictBytes):
    """Counts the entries that were taken from scans."""

    taken = 0
    ended = 0

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Any:
        try:
            for row in super().scan(start, stop, reverse=reverse):
                self.taken += 1
                yield row
        finally:
            self.ended += 1


def test_a_long_fetch_reads_lazily_and_closes_its_scan() -> None:
    bytes_ = Counting()
    plays = bound(hf.WindowStore("plays", value=int, size="1m", retention="30d"), 9_000, bytes_)
    for n in range(2_000):
        plays.put("ann", n, n)
    with plays.fetch("ann", from_=0, to=1_999) as found:
        assert next(found) == (0, 0)
        assert bytes_.taken == FIRST_ROWS
        assert bytes_.ended == 0
    assert bytes_.ended == 1
    assert list(found) == []
    found = plays.fetch("ann", from_=0, to=5)
    assert bytes_.ended == 2, "a short fetch leaves no scan open, even if it isn't iterated"
