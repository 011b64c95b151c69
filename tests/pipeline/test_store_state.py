"""A store in a task: its writes over the state at v-1, prefetched or read on demand, are one ordered map."""

from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.pipeline import store_state as states
from holdfast.pipeline.store_state import Budget, StoreState, TooMuchState
from holdfast.pipeline.task_state import EmptyState
from holdfast.stores.access import DictBytes
from holdfast.stores.ranges import Range, Ranges, Spans, united
from tests.pipeline.outcomes import ReplicaState

KEYS = st.binary(min_size=1, max_size=2)
PLENTY = 1 << 30


class Before(ReplicaState):
    """The state at v-1. Checks that reads are in order and without repeats."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        super().__init__("store")
        self.stores["store"].entries.update(entries)

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        assert keys.to_pylist() == sorted(set(keys.to_pylist()))
        return super().get(store, keys)

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        assert ranges.pairs() == united(ranges.pairs())
        return super().scan_many(store, ranges)


def ranges() -> st.SearchStrategy[Range]:
    return st.tuples(KEYS, st.none() | KEYS)


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("put_many"), st.lists(st.tuples(KEYS, st.binary(max_size=2)), max_size=4)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("get_many"), st.lists(KEYS, max_size=4)),
    st.tuples(st.just("scan"), ranges(), st.booleans()),
    st.tuples(st.just("prefetch"), st.lists(KEYS, max_size=4), st.lists(ranges(), max_size=3)),
    st.just(("forget",)),
)


@given(st.dictionaries(KEYS, st.binary(max_size=2), max_size=12), st.lists(OPERATIONS, max_size=40), st.integers(1, 5))
def test_it_is_one_ordered_map(before: dict[bytes, bytes], operations: list[tuple[object, ...]], page: int) -> None:
    model = DictBytes()
    model.entries.update(before)
    state = StoreState("store", Before(before), Budget(PLENTY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "FIRST_PAGE", page)  # so that short ranges have several pages
        patch.setattr(states, "LATER_PAGES", page)
        for what, *given_ in operations:
            match what:
                case "put" | "delete":
                    getattr(model, what)(*given_)
                    getattr(state, what)(*given_)
                case "put_many":
                    pairs = cast(list[tuple[bytes, bytes]], given_[0])
                    for ordered in (model, state):
                        ordered.put_many([key for key, _ in pairs], [value for _, value in pairs])
                case "get" | "get_many":
                    assert getattr(state, what)(*given_) == getattr(model, what)(*given_)
                case "scan":
                    span, reverse = cast(tuple[Range, bool], tuple(given_))
                    assert list(state.scan(*span, reverse=reverse)) == list(model.scan(*span, reverse=reverse))
                case "prefetch":
                    state.prefetch(*given_)  # type: ignore[arg-type]
                case "forget":
                    state.forget()
    written = dict(zip(*[column.to_pylist() for column in state.table().columns], strict=True))
    applied = {**before, **written}
    assert {key: value for key, value in applied.items() if value is not None} == dict(model.entries)


def test_prefetched_entries_are_not_read_again() -> None:
    before = Before({b"a1": b"1", b"a3": b"3", b"b": b"4"})
    state = StoreState("store", before, Budget(PLENTY))
    state.prefetch([b"b", b"c", b"b"], [(b"a", b"b"), (b"x", b"z")])
    assert before.reads == 2
    assert [state.get(key) for key in (b"b", b"c", b"a1", b"a2", b"y")] == [b"4", None, b"1", None, None]
    assert list(state.scan(b"a2", b"a9")) == [(b"a3", b"3")]
    assert list(state.scan(b"x", b"y")) == []
    assert before.reads == 2
    assert list(state.scan(b"a", b"c")) == [(b"a1", b"1"), (b"a3", b"3"), (b"b", b"4")]
    assert list(state.scan(b"a", b"bb", reverse=True)) == [(b"b", b"4"), (b"a3", b"3"), (b"a1", b"1")]
    assert before.reads == 3, "a short range is cached"


def test_a_put_of_a_key_that_was_read_counts_once() -> None:
    state = StoreState("store", Before({b"a": b"1", b"b": b"2"}), Budget(PLENTY))
    assert state.get(b"a") == b"1"
    state.put(b"a", b"7")
    assert state.approximate_count() == 2
    state.put(b"new", b"8")
    assert state.approximate_count() == 3
    state.delete(b"a")
    assert state.approximate_count() == 2


def test_writes_are_allowed_during_a_scan() -> None:
    state = StoreState("store", Before({bytes([n]): b"" for n in range(1, 9)}), Budget(PLENTY))
    for key, _ in state.scan(b"\x01", None):
        state.delete(key)
        state.put(key + b"\x00", b"new")
    assert [key[0] for key, _ in state.scan(b"\x01", None)] == list(range(1, 9))
    assert all(value == b"new" for _, value in state.scan(b"\x01", None))


def test_put_many_is_visible_to_later_scans() -> None:
    state = StoreState("store", Before({b"b": b"2"}), Budget(PLENTY))
    state.put(b"c", b"3")
    assert [key for key, _ in state.scan(b"a", b"z")] == [b"b", b"c"]
    state.put_many([b"d", b"a"], [b"4", b"1"])
    assert list(state.scan(b"a", b"z")) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]
    assert state.get_many([b"d", b"b", b"x"]) == [b"4", b"2", None]


def write_many(state: StoreState) -> None:
    for n in range(1_000):
        state.put(b"%d" % n, b"x" * 10)


def test_more_changes_than_allowed_are_refused_with_the_setting() -> None:
    budget = Budget(10_000)
    one, other = StoreState("one", Before({}), budget), StoreState("other", Before({}), budget)
    for _ in range(1_000):
        one.put(b"same", b"x" * 100)  # one entry counts once
    left = budget.left
    one.put_many([b"same", b"more"], [b"x" * 100, b"y"])
    one.put_many([b"new", b"new"], [b"xx", b"x"])
    assert left - budget.left == len(b"more" + b"y" + b"new" + b"x") + 2 * states.ENTRY_BYTES
    with pytest.raises(TooMuchState, match=r"10,000 bytes.*'other'.*batch\.state_bytes"):
        write_many(other)
    with pytest.raises(TooMuchState, match="'one'"):
        one.put_many([b"large"], [b"x" * 10_000])


def test_a_bounded_store_is_charged_for_its_pending_entries() -> None:
    budget = Budget(100_000)
    state = StoreState("store", EmptyState(), budget)
    few = hf.KeyValueStore("few", key=int, value=int, max_entries=3).bind(state, hf.Now(wall=0))
    for n in range(50_000):
        few[n] = n
    assert 97_000 < budget.left < 100_000, "three are pending"
    few.delete(49_998)
    few.end_of_version()
    left = budget.left
    assert 100_000 - left == sum(len(k) + len(v or b"") + states.ENTRY_BYTES for k, v in state.changes.items())
    many = hf.KeyValueStore("many", key=int, value=int, max_entries=50_000).bind(state, hf.Now(wall=0))
    with pytest.raises(TooMuchState, match=r"100,000 bytes.*batch\.state_bytes"):
        many.update((n, n) for n in range(1_000))


@given(st.lists(ranges(), max_size=8), st.binary(min_size=1, max_size=3))
def test_spans_cover_exactly_the_added_ranges(added: list[Range], key: bytes) -> None:
    at_once, one_by_one = Spans(), Spans()
    at_once.add(united(added), [])
    for span in united(added)[::-1]:
        one_by_one.add([span], [])
    expected = any(start <= key and (stop is None or key < stop) for start, stop in added)
    assert at_once.covers(key) == one_by_one.covers(key) == expected


def test_a_new_key_that_is_deleted_leaves_nothing() -> None:
    before = Before({b"\x01there": b"1", b"\x01read": b"2"})
    state = StoreState("store", before, Budget(PLENTY))
    state.prefetch([b"\x01read", b"\x01missing"])
    for key in (b"\x01new", b"\x01missing", b"\x01there", b"\x01read", b"\x01put again", b"\x03 a row of an index"):
        state.put(key, b"x")
        state.delete(key)
    state.delete(b"\x01never there")
    state.put(b"\x01put again", b"y")
    reads = before.reads
    state.settle()
    assert state.changes == {b"\x01there": None, b"\x01read": None, b"\x01put again": b"y"}
    assert before.reads == reads + 1, "one request for all keys that were not known"
    assert [state.get(key) for key in (b"\x01new", b"\x01never there", b"\x01there")] == [None, None, None]
    assert list(state.scan(b"\x01", None)) == [(b"\x01put again", b"y")]


def test_deletes_of_known_keys_ask_for_nothing() -> None:
    before = Before({b"a1": b"1"})
    state = StoreState("store", before, Budget(PLENTY))
    state.prefetch([b"b"], [(b"a", b"b")])
    for key in (b"a1", b"a2", b"b"):
        state.put(key, b"x")
        state.delete(key)
    reads = before.reads
    state.settle()
    assert (state.changes, before.reads) == ({b"a1": None}, reads)
