"""What stores refuse at the call: a key that is None, lengths and times that no number holds, and late sessions."""

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import BadKey, BadSpan, BadValue, TopologyError

NOW = hf.Now(wall=0, event=10_000_000)
TYPES: dict[str, Any] = {"text": str, "number": int, "bytes": bytes, "several": (str, int)}

CALLS: dict[type[Any], dict[str, Callable[[Any], object]]] = {
    hf.KeyValueStore: {
        "get": lambda store: store.get(None),
        "get_many": lambda store: store.get_many([None]),
        "[]": lambda store: store[None],
        "in": lambda store: None in store,
        "put": lambda store: store.put(None, 1),
        "put of None": lambda store: store.put(None, None),
        "[]=": lambda store: store.__setitem__(None, 1),
        "update": lambda store: store.update({None: 1}),
        "update with None": lambda store: store.update({None: None}),
        "delete": lambda store: store.delete(None),
        "del": lambda store: store.__delitem__(None),
        "pop": lambda store: store.pop(None, 0),
        "setdefault": lambda store: store.setdefault(None, 1),
        "put_if_absent": lambda store: store.put_if_absent(None, 1),
        "prefix": lambda store: store.prefix(None),
    },
    hf.TimestampedKeyValueStore: {
        "get": lambda store: store.get(None),
        "put": lambda store: store.put(None, 1, 1),
        "delete": lambda store: store.delete(None),
    },
    hf.WindowStore: {
        "put": lambda store: store.put(None, 1, 10_000_000),
        "late put": lambda store: store.put(None, 1, 0),
        "fetch": lambda store: store.fetch(None),
        "fetch one": lambda store: store.fetch(None, 1),
        "fetch in one slice": lambda store: store.fetch(None, from_=1, to=2),
        "delete": lambda store: store.delete(None, 1),
    },
    hf.SessionStore: {
        "put": lambda store: store.put(hf.Session(None, 1, 10_000_000), 1),
        "late put": lambda store: store.put(hf.Session(None, 1, 2), 1),
        "remove": lambda store: store.remove(hf.Session(None, 1, 2)),
        "get": lambda store: store.get(None, 1, 2),
        "find": lambda store: store.find(None),
        "fetch": lambda store: store.fetch(None),
        "merge": lambda store: store.merge(None, 1, None, max, 1),
    },
    hf.VersionedKeyValueStore: {
        "put": lambda store: store.put(None, 1, 10_000_000),
        "late put": lambda store: store.put(None, 1, 0),
        "get": lambda store: store.get(None),
        "get as of": lambda store: store.get(None, as_of=1),
        "history": lambda store: store.history(None),
        "history of an empty span": lambda store: store.history(None, 2, 1),
        "delete": lambda store: store.delete(None, 1),
    },
}
OPTIONS: dict[type[Any], tuple[dict[str, Any], ...]] = {
    hf.WindowStore: ({"size": "1m", "retention": "1h"},),
    hf.SessionStore: ({"gap": "1m", "retention": "1h"},),
    hf.VersionedKeyValueStore: ({"retention": "1h"},),
}


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", CALLS)
def test_a_key_that_is_none_is_refused_at_the_call(kind: type[Any], type_: str) -> None:
    for options in OPTIONS.get(kind, ({}, {"ttl": "1h"}, {"max_entries": 3})):
        store = kind("s", key=TYPES[type_], value=int, **options).bind(hf.DictBytes(), NOW)
        for name, call in CALLS[kind].items():
            with pytest.raises(BadKey, match=r"^key(_1)? is None, .*Leave out records"):
                pytest.fail(f"{name} returned {call(store)!r}")


def test_a_part_of_a_key_is_not_none_either() -> None:
    store = hf.KeyValueStore("s", key=(str, int), value=int).bind(hf.DictBytes(), NOW)
    with pytest.raises(BadKey, match="^key_2 is None"):
        store.get(("ann", None))  # type: ignore[arg-type]


def test_none_leaves_an_end_of_a_range_of_keys_open() -> None:
    store = hf.KeyValueStore("s", value=int).bind(hf.DictBytes(), NOW)
    store["ann"] = 1
    assert list(store.range(None, None)) == [("ann", 1)]


TOO_LONG = [10**30, "999999999999999999d", "9999999999d"]


@pytest.mark.parametrize("length", TOO_LONG)
def test_a_length_that_no_number_holds_is_refused(length: Any) -> None:
    scores = hf.KeyValueStore("s", value=int).bind(hf.DictBytes(), NOW)
    visits = hf.SessionStore("s", value=int).bind(hf.DictBytes(), NOW)
    with pytest.raises(BadValue, match=r"store 's': ttl=.* is longer than 999,999,999 days"):
        scores.put("ann", 1, ttl=length)
    with pytest.raises(BadValue, match=r"store 's': gap=.* is longer than 999,999,999 days"):
        visits.merge("ann", 1, length, max, 1)


def test_a_declared_length_that_no_number_holds_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"ttl=.* is longer than 999,999,999 days"):
        hf.KeyValueStore("s", value=int, ttl="9999999999d")
    longest = hf.KeyValueStore("s", value=int, ttl=dt.timedelta.max).bind(hf.DictBytes(), NOW)
    longest["ann"] = 1
    assert longest["ann"] == 1


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1, 10**30])
def test_a_time_that_no_number_holds_is_refused(time: int) -> None:
    bytes_ = hf.DictBytes()
    calls: list[Callable[[], object]] = [
        lambda: hf.WindowStore("s", value=int, size="1m").bind(bytes_, NOW).put("ann", 1, time),
        lambda: hf.SessionStore("s", value=int).bind(bytes_, NOW).put(hf.Session("ann", 1, time), 1),
        lambda: hf.VersionedKeyValueStore("s", value=int, retention="1h").bind(bytes_, NOW).put("ann", 1, time),
        lambda: hf.TimestampedKeyValueStore("s", value=int).bind(bytes_, NOW).put("ann", 1, time),
    ]
    for call in calls:
        with pytest.raises(BadValue, match="64 bits"):
            call()
    assert not bytes_.entries


def test_a_history_of_no_length_is_refused_with_what_to_use() -> None:
    with pytest.raises(TopologyError, match=r'retention="0s" keeps no history.*TimestampedKeyValueStore'):
        hf.VersionedKeyValueStore("s", value=int, retention="0s")


def test_a_session_store_takes_records_as_late_as_gap_and_grace() -> None:
    """Kafka Streams closes a session when gap and grace have passed since its end, and not before."""
    visits = hf.SessionStore("s", value=int, gap="10s", grace="5s", retention="15s")
    seen = Counter[str]()
    bytes_ = hf.DictBytes()

    def at(event: int) -> Any:
        return visits.bind(bytes_, hf.Now(wall=0, event=event), lambda name, number: seen.update({name: number}))

    assert at(100_000).merge("ann", 85_000, None, max, 1) == hf.Session("ann", 85_000, 85_000)
    assert at(100_000).merge("ann", 84_999, None, max, 1) is not None, "it belongs to the session that is still open"
    assert list(at(100_000).fetch("ann")) == [(hf.Session("ann", 84_999, 85_000), 1)]
    assert at(100_000).merge("bob", 84_999, None, max, 1) is None
    assert seen == {"expired": 1}
    assert list(at(100_001).fetch("ann")) == []


def test_a_span_of_time_that_ends_before_it_begins_is_refused() -> None:
    windows = hf.WindowStore("plays", value=int, size="10s", retention="1h").bind(hf.DictBytes(), NOW)
    sessions = hf.SessionStore("visits", value=int, gap="5s", retention="1h").bind(hf.DictBytes(), NOW)
    prices = hf.VersionedKeyValueStore("prices", value=int, retention="1h").bind(hf.DictBytes(), NOW)
    calls: list[Callable[[], object]] = [
        lambda: windows.fetch("ann", from_=2_000, to=1_000),
        lambda: windows.fetch_all(2_000, 1_000),
        lambda: windows.fetch_keys("a", "b", 2_000, 1_000, reverse=True),
        lambda: sessions.find("ann", 2_000, 1_000),
        lambda: sessions.find_keys(None, None, 2_000, 1_000),
        lambda: prices.history("ann", 2_000, 1_000),
        lambda: windows.fetch("ann", from_=dt.datetime(1970, 1, 2, tzinfo=dt.UTC), to=0),
    ]
    for call in calls:
        with pytest.raises(
            BadSpan, match=r"ends at (1000|0), before it begins at .*\. Swap its ends, or leave one out"
        ):
            call()
    assert list(windows.fetch("ann", from_=1_000, to=1_000)) == []
