"""The documented behaviour of Kafka Streams' stores, as tests."""

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadSpan, BadValue
from holdfast.stores.engines.base import Changes, Mark, Resources
from holdfast.stores.engines.registry import ENGINES, open_engine
from holdfast.testing import ProcessorTest
from holdfast.words import Version
from tests.stores.kinds.worlds import Reading, Writing

NOW = hf.Now(wall=0, event=0)


def bound(store: Any, event: int = 0, bytes_: hf.DictBytes | None = None, counted: Counter[str] | None = None) -> Any:
    seen = Counter[str]() if counted is None else counted
    return store.bind(bytes_ or hf.DictBytes(), hf.Now(wall=0, event=event), lambda n, k: seen.update({n: k}))


# Changelogs


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_restored_changelog_has_the_latest_values(engine: str, tmp_path: Any) -> None:
    """Alice 100, Bob 200, Alice 150, Bob deleted: a restore has Alice at 150, and nothing else."""
    balances = hf.KeyValueStore("balances", value=int)
    log: list[Changes] = []
    first = open_engine(engine, tmp_path / "first", [balances.spec()], Resources(16 << 20))
    for version, (name, balance) in enumerate([("alice", 100), ("bob", 200), ("alice", 150), ("bob", None)], start=1):
        view = first.view()
        written = Writing(Reading(view, first, "balances"))
        balances.bind(written, NOW).put(name, balance)
        view.close()
        keys, values = list(written.changes), list(written.changes.values())
        log.append(Changes(pa.array(keys, pa.binary()), pa.array(values, pa.binary())))
        first.apply([("balances", log[-1])], Mark(Version(version), f"c{version}", "log"))
    restored = open_engine(engine, tmp_path / "restored", [balances.spec()], Resources(16 << 20))
    for version, changes in enumerate(log, start=1):
        restored.apply([("balances", changes)], Mark(Version(version), f"c{version}", "log"))
    for replica in (first, restored):
        view = replica.view()
        found = balances.bind(Writing(Reading(view, replica, "balances")), NOW)
        assert dict(found.items()) == {"alice": 150}
        view.close()
        replica.close()


# Windows


def test_a_window_fetch_includes_both_times() -> None:
    """Windows of ten at 0, 10, 20 and 30: a fetch from 10 to 20 gives those that start at 10 and at 20."""
    store = bound(hf.WindowStore("w", value=str, size="10ms"))
    for start in (0, 10, 20, 30):
        store.put("A", f"at {start}", start)
    assert list(store.fetch("A", from_=10, to=20)) == [(10, "at 10"), (20, "at 20")]
    assert list(store.fetch("A", from_=5, to=25)) == [(10, "at 10"), (20, "at 20")]
    assert list(store.fetch("A", from_=10, to=10)) == [(10, "at 10")]
    assert list(store.fetch("A", from_=31)) == []
    assert list(store.fetch("A", to=9, reverse=True)) == [(0, "at 0")]
    assert list(store.fetch("A", from_=10, to=20, reverse=True)) == [(20, "at 20"), (10, "at 10")]
    assert store.fetch("A", 10) == "at 10"
    assert store.fetch("A", 11) is None


def test_all_keys_of_a_span_come_with_their_windows() -> None:
    store = bound(hf.WindowStore("w", value=int, size="10ms"))
    for key in ("A", "B", "C"):
        store.put(key, 1, 0)
        store.put(key, 2, 10)
    assert list(store.fetch_all(0, 0)) == [(hf.Windowed(key, 0, 10), 1) for key in ("A", "B", "C")]
    assert list(store.fetch_keys("A", "B", 10, 10)) == [(hf.Windowed(key, 10, 20), 2) for key in ("A", "B")]
    assert [window.key for window, _ in store.fetch_all(10, 10, reverse=True)] == ["C", "B", "A"]


def test_putting_none_deletes_a_window() -> None:
    store = bound(hf.WindowStore("w", value=int, size="10ms"))
    store.put("A", 1, 0)
    store.put("A", None, 0)
    assert store.fetch("A", 0) is None


def test_windows_are_kept_for_exactly_the_retention() -> None:
    counted = Counter[str]()
    declared, bytes_ = hf.WindowStore("w", value=int, size="10s", retention="60s"), hf.DictBytes()
    bound(declared, 0, bytes_).put("A", 1, 0)
    assert bound(declared, 59_999, bytes_).fetch("A", 0) == 1
    late = bound(declared, 60_000, bytes_, counted)
    assert late.fetch("A", 0) is None
    assert list(late.fetch("A")) == list(late.fetch_all()) == []
    late.put("A", 2, 0)
    assert counted == {"expired": 1}
    late.put("A", 3, 1)
    assert late.fetch("A", 1) == 3


def test_the_default_retention_is_a_day_or_what_a_window_needs() -> None:
    assert hf.WindowStore("w", value=int, size="1h").spec().retention_ms == 86_400_000
    assert hf.WindowStore("w", value=int, size="7d", grace="1d").spec().retention_ms == 8 * 86_400_000
    assert hf.SessionStore("s", value=int, gap="1h").spec().retention_ms == 86_400_000


def test_duplicates_are_kept_where_asked_for() -> None:
    """As a stream-stream join needs it: two records of one key and one time are two entries."""
    declared, bytes_ = hf.WindowStore("w", value=str, size="10ms", duplicates=True), hf.DictBytes()
    store = bound(declared, 0, bytes_)
    store.put("A", "one", 5)
    store.put("A", "two", 5)
    store.put("A", None, 5)  # does nothing
    bound(declared, 0, bytes_).put("A", "three", 5)  # in a later version
    again = bound(declared, 0, bytes_)
    assert list(again.fetch("A", from_=0, to=10)) == [(5, "one"), (5, "two"), (5, "three")]
    assert again.fetch("A", 5) == "three"
    assert [value for _, value in again.fetch_all()] == ["one", "two", "three"]
    again.delete("A", 5)
    assert list(again.fetch("A")) == []


def test_times_may_be_datetimes() -> None:
    store = bound(hf.WindowStore("w", value=int, size="1s"))
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    store.put("A", 1, second)
    assert store.fetch("A", 1_000) == 1
    with pytest.raises(BadValue, match="no time zone"):
        store.put("A", 1, second.replace(tzinfo=None))
    with pytest.raises(BadValue, match="not a time"):
        store.put("A", 1, "soon")


def test_a_window_far_in_the_future_does_not_slow_down_searches() -> None:
    store = bound(hf.WindowStore("w", value=int, size="1s", retention="8s"))
    store.put("A", 1, 0)
    store.put("A", 2, 10**14)
    store.put("B", 3, 5_000)
    assert list(store.fetch("A")) == [(0, 1), (10**14, 2)]
    assert [key.key for key, _ in store.fetch_all()] == ["A", "A", "B"]
    assert list(store.fetch("B", reverse=True)) == [(5_000, 3)]


# Sessions


def test_sessions_are_found_where_they_overlap() -> None:
    """A session is found if it ends at the earliest end or later, and starts at the latest start or earlier."""
    store = bound(hf.SessionStore("s", value=str, gap="10ms"))
    for start, end in ((0, 10), (20, 30), (40, 50)):
        store.put(hf.Session("A", start, end), f"{start}-{end}")
    store.put(hf.Session("B", 0, 100), "long")

    def found(earliest_end: int, latest_start: int, **options: Any) -> list[str]:
        return [value for _, value in store.find("A", earliest_end, latest_start, **options)]

    assert found(10, 20) == ["0-10", "20-30"]
    assert found(11, 19) == []
    assert found(11, 20) == ["20-30"]
    assert found(25, 25) == ["20-30"]
    assert found(0, 100) == ["0-10", "20-30", "40-50"]
    assert found(0, 100, reverse=True) == ["40-50", "20-30", "0-10"]
    assert [s.key for s, _ in store.find_keys("A", "B", 31, 39)] == ["B"]
    assert [value for _, value in store.fetch("B")] == ["long"]
    assert store.get("A", 20, 30) == "20-30"
    assert store.get("A", 20, 31) is None
    store.remove(hf.Session("A", 20, 30))
    assert found(0, 100) == ["0-10", "40-50"]
    store.put(hf.Session("A", 0, 10), None)
    assert found(0, 100) == ["40-50"]


def test_an_event_between_two_sessions_makes_them_one() -> None:
    """With a gap of five minutes: visits at 0 and 6 min are two sessions, until one at 3 min joins them."""
    minute = 60_000
    store = bound(hf.SessionStore("s", value=int, gap="5m"))

    def visit(at: int) -> Any:
        return store.merge("A", at, None, lambda one, other: one + other, 1)

    assert visit(0) == hf.Session("A", 0, 0)
    assert visit(6 * minute) == hf.Session("A", 6 * minute, 6 * minute)
    assert len(list(store.fetch("A"))) == 2
    assert visit(3 * minute) == hf.Session("A", 0, 6 * minute)
    assert list(store.fetch("A")) == [(hf.Session("A", 0, 6 * minute), 3)]
    assert visit(11 * minute) == hf.Session("A", 0, 11 * minute), "a gap of just five minutes is within"
    assert visit(16 * minute + 1) == hf.Session("A", 16 * minute + 1, 16 * minute + 1)


def test_a_session_too_old_to_keep_is_refused() -> None:
    counted = Counter[str]()
    declared = hf.SessionStore("s", value=int, gap="1s", retention="10s")
    store = bound(declared, 20_000, counted=counted)
    assert store.merge("A", 9_999, None, max, 1) is None
    store.put(hf.Session("A", 5_000, 9_999), 1)
    assert counted == {"expired": 2}
    assert store.merge("A", 10_000, "2s", max, 1) == hf.Session("A", 10_000, 10_000)
    with pytest.raises(BadValue, match="starts after it ends"):
        store.put(hf.Session("A", 30_000, 20_000), 1)
    with pytest.raises(BadValue, match="has no gap"):
        bound(hf.SessionStore("s", value=int)).merge("A", 0, None, max, 1)


# Histories


def test_late_values_are_inserted_by_their_time() -> None:
    """Put at 10, then at 30, then late at 20: as of 25 the late one is right, and the latest stays the latest."""
    store = bound(hf.VersionedKeyValueStore("v", value=str, retention="1m"))
    assert store.put("k", "v10", 10)
    assert store.put("k", "v30", 30)
    assert store.put("k", "v20", 20)
    assert store.get("k") == hf.VersionedRecord("v30", 30, None)
    assert store.get("k", as_of=9) is None
    assert store.get("k", as_of=10) == store.get("k", as_of=19) == hf.VersionedRecord("v10", 10, 20)
    assert store.get("k", as_of=25) == hf.VersionedRecord("v20", 20, 30)
    assert store.get("k", as_of=1_000) == hf.VersionedRecord("v30", 30, None)
    assert [record.value for record in store.history("k")] == ["v10", "v20", "v30"]
    assert [record.value for record in store.history("k", 15, 25)] == ["v10", "v20"]
    assert [record.value for record in store.history("k", 20, 29, reverse=True)] == ["v20"]


def test_a_value_of_the_same_time_is_replaced() -> None:
    store = bound(hf.VersionedKeyValueStore("v", value=str, retention="1m"))
    for value, time in (("a", 10), ("b", 20), ("A", 10), ("B", 20)):
        store.put("k", value, time)
    assert [tuple(record) for record in store.history("k")] == [("A", 10, 20), ("B", 20, None)]


def test_a_delete_is_a_version_too() -> None:
    """Deleted at 20: as of 15 the value is there, as of 25 it isn't; a late value before the delete ends with it."""
    store = bound(hf.VersionedKeyValueStore("v", value=str, retention="1m"))
    store.put("k", "v10", 10)
    assert store.delete("k", 20) == hf.VersionedRecord("v10", 10, None)
    assert store.get("k") is None
    assert store.get("k", as_of=15) == hf.VersionedRecord("v10", 10, 20)
    assert store.get("k", as_of=25) is None
    store.put("k", "v15", 15)
    assert store.get("k") is None, "the delete came after it in time, though before it in the log"
    assert store.get("k", as_of=16) == hf.VersionedRecord("v15", 15, 20)
    store.put("k", "v30", 30)
    assert store.get("k", as_of=25) is None
    store.put("new", None, 50)
    store.put("new", "before", 40)
    assert store.get("new") is None
    assert store.get("new", as_of=45) == hf.VersionedRecord("before", 40, 50)


def test_times_before_the_history_are_refused_and_return_none() -> None:
    counted = Counter[str]()
    declared, bytes_ = hf.VersionedKeyValueStore("v", value=str, retention="10s"), hf.DictBytes()
    first = bound(declared, 0, bytes_)
    first.put("k", "old", 1_000)
    first.put("k", "new", 2_000)
    later = bound(declared, 12_500, bytes_, counted)
    assert later.get("k", as_of=1_500) is None, "older than the history"
    assert later.get("k", as_of=2_500) == hf.VersionedRecord("new", 2_000, None)
    assert later.get("k") == hf.VersionedRecord("new", 2_000, None), "the latest stays, however old"
    assert not later.put("k", "too late", 2_400)
    assert counted == {"expired": 1}
    assert later.put("k", "just in time", 2_500)


def test_the_latest_value_never_expires() -> None:
    """It answers for a time before the history if it was valid then; earlier values are unknown."""
    counted = Counter[str]()
    declared, bytes_ = hf.VersionedKeyValueStore("v", value=str, retention="10s"), hf.DictBytes()
    first = bound(declared, 0, bytes_)
    first.put("k", "old", 1_000)
    first.put("k", "new", 2_000)
    first.put("gone", "was", 1_000)
    first.put("gone", None, 2_000)
    later, new = bound(declared, 60_000, bytes_, counted), hf.VersionedRecord("new", 2_000, None)
    assert later.get("k", as_of=2_000) == later.get("k", as_of=49_999) == later.get("k", as_of=50_000) == new
    assert later.get("k", as_of=1_999) is None
    assert later.get("gone", as_of=1_500) is None
    for reverse in (False, True):
        assert list(later.history("k", reverse=reverse)) == [new]
        assert list(later.history("k", 0, 2_000, reverse=reverse)) == [new]
        assert list(later.history("k", 30_000, 40_000, reverse=reverse)) == [new]
        assert list(later.history("k", 0, 1_999, reverse=reverse)) == []
        with pytest.raises(BadSpan):  # on purpose: Kafka Streams answers nothing
            later.history("k", 40_000, 30_000, reverse=reverse)
        assert list(later.history("gone", 0, 30_000, reverse=reverse)) == []
    assert later.delete("k", 40_000) is None, "it was refused"
    assert counted == {"expired": 1}
    assert later.get("k") == new


# Timestamps


def test_the_option_late_keeps_the_newest_or_the_last_value() -> None:
    counted = Counter[str]()
    newest = bound(hf.TimestampedKeyValueStore("t", value=str), counted=counted)
    last = bound(hf.TimestampedKeyValueStore("t", value=str, late="last"))
    for store in (newest, last):
        store.put("k", "later", 20)
        store.put("k", "earlier", 10)
    assert newest["k"] == hf.ValueAndTimestamp("later", 20)
    assert last["k"] == hf.ValueAndTimestamp("earlier", 10)
    assert counted == {"late": 1}
    newest.put("k", "same time", 20)
    assert newest["k"].value == "same time"
    newest.put("k", None, 10)
    assert "k" in newest, "a delete may be late as well"
    assert newest.delete("k") == ("same time", 20)
    newest["k"] = hf.ValueAndTimestamp("again", 5)
    assert newest.get("k") == ("again", 5)


def test_a_put_without_a_time_uses_the_time_of_its_record() -> None:
    class Audit(hf.Processor):
        trail: hf.TimestampedKeyValueStore[str, list[str]] = hf.TimestampedKeyValueStore("trail", value=list[str])

        def init(self, ctx: hf.Context) -> None:
            self.trail["begun"] = [f"version {ctx.version}"]

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.trail[key] = [event.what, "by itself"]
            self.trail.put(f"{key}, put", [event.what])
            self.trail[f"{key}, at 7"] = hf.ValueAndTimestamp([event.what], 7)

    test = ProcessorTest(Audit, wall=50_000)
    test.pipe("k", {"what": "later"}, timestamp=20_000)
    test.pipe("k", {"what": "earlier"}, timestamp=10_000)
    test.pipe("j", {"what": "next"}, timestamp=30_000)
    trail = test.store("trail")
    assert trail["k"] == hf.ValueAndTimestamp(["later", "by itself"], 20_000)
    assert trail["k, put"] == hf.ValueAndTimestamp(["later"], 20_000)
    assert trail["k, at 7"] == hf.ValueAndTimestamp(["earlier"], 7)
    assert trail["j"].timestamp == 30_000
    assert trail["begun"] == hf.ValueAndTimestamp(["version 1"], 50_000), "before the first record: the wall clock's"
    assert test.counts == {"trail/late": 2}


def test_outside_a_processor_a_time_has_to_be_given() -> None:
    store = bound(hf.TimestampedKeyValueStore("t", value=str))
    with pytest.raises(BadValue, match=r"store 't' .* put\(key, value, timestamp\)"):
        store["k"] = "plain"
    with pytest.raises(BadValue, match=r"put\(key, value, timestamp\)"):
        store.put("k", "plain")
    assert "k" not in store
