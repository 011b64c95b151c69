"""The rewrite: it brings all old entries to the newest schema, also with crashes between, and has a progress."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DamagedObject
from holdfast.stores.access import BytesAsColumns, DictBytes, Now
from holdfast.stores.formats.cells import Cell, pack, unpack
from holdfast.stores.layouts.base import REWRITE_NOTE
from holdfast.stores.layouts.recency import with_seq
from holdfast.stores.layouts.rewriter import STEP, RewriteProgress, Rewriter, progress_of
from holdfast.stores.layouts.slices import slice_prefix
from tests.stores.schemas import First, Named, Tenths, spec_of, typed

NOW = Now(wall=10_000)


def rewriter(type_: Any = Tenths, now: Now = NOW, **options: Any) -> Rewriter:
    return Rewriter(spec_of(type_, **options), now, typed(type_))


def stepped(store: DictBytes, limit: int = STEP, type_: Any = Tenths, **options: Any) -> RewriteProgress:
    """The progress after one step, which is written as a task does it."""
    step = rewriter(type_, **options).step(BytesAsColumns(store), limit)
    if step is not None:
        store.put_many(step.part["key"].to_pylist(), step.part["value"].to_pylist())
    progress = progress_of(store)
    assert progress is not None
    return progress


def entry(value: Any, **parts: Any) -> bytes:
    codec = typed(type(value))
    return pack(Cell(codec.encode(value), schema=codec.schema, **parts))


def store_of(entries: dict[bytes, bytes]) -> DictBytes:
    store = DictBytes()
    for key, data in entries.items():
        store.put(key, data)
    return store


def values(store: DictBytes, type_: Any = Tenths) -> dict[bytes, Any]:
    found = {key: unpack(data) for key, data in store.entries.items() if key < b"\x03"}
    return {key: typed(type_).decode(cell.payload, cell.schema) for key, cell in found.items()}


def schemas(store: DictBytes) -> set[int]:
    return {unpack(data).schema for key, data in store.entries.items() if key < b"\x03"}


def finish(store: DictBytes, limit: int, type_: Any = Tenths) -> list[RewriteProgress]:
    steps = [stepped(store, limit, type_)]
    while not steps[-1].finished:
        steps.append(stepped(store, limit, type_))
    return steps


def test_old_entries_are_rewritten_in_limited_steps_with_progress() -> None:
    store = store_of({b"\x01%d" % n: entry(First(f"p{n}", n), timestamp=n, expires=20_000) for n in range(5)})
    before = values(store)
    steps = finish(store, 2)
    assert [(step.seen, step.rewritten, step.finished) for step in steps] == [
        (2, 2, False),
        (4, 4, False),
        (5, 5, True),
    ]
    assert [step.share for step in steps] == [0.4, 0.8, 1.0]
    assert values(store) == before
    assert schemas(store) == {2}
    assert unpack(store.entries[b"\x013"]).timestamp == 3
    assert unpack(store.entries[b"\x013"]).expires == 20_000
    assert progress_of(store) == steps[-1]


def test_a_finished_rewrite_writes_nothing_and_a_new_schema_starts_another() -> None:
    store = store_of({b"\x01a": entry(First("a", 10))})
    finish(store, 10)
    before = dict(store.entries)
    assert stepped(store).finished
    assert dict(store.entries) == before
    assert finish(store, 10, Named)[-1].rewritten == 1
    assert schemas(store) == {3}


def test_older_code_rewrites_nothing_to_its_older_schema() -> None:
    store = store_of({b"\x01a": entry(First("a", 10))})
    finish(store, 10, Named)
    before = dict(store.entries)
    assert stepped(store).schema == 3
    assert dict(store.entries) == before


def test_the_bytes_of_the_note_are_unchanged() -> None:
    store = store_of({b"\x01a": entry(First("a", 10))})
    stepped(store, 1)
    payload = (
        "87a6736368656d6102a46e657874c403016100a47365656e01a97265777269747465"
        "6e01aa756e7265616461626c6500a5746f74616c01a866696e6973686564c2"
    )
    assert unpack(store.entries[REWRITE_NOTE]).payload.hex() == payload
    store.put(REWRITE_NOTE, pack(Cell(b"\x01")))
    with pytest.raises(DamagedObject, match="the note of the rewrite"):
        stepped(store)


def test_an_entry_that_cannot_be_upcast_stays_and_is_counted() -> None:
    bad = pack(Cell(b"\xc1"))
    store = store_of({b"\x01a": bad, b"\x01b": entry(First("b", 10))})
    done = stepped(store)
    assert (done.seen, done.rewritten, done.unreadable, done.finished) == (2, 1, 1, True)
    assert store.entries[b"\x01a"] == bad


def test_indexes_notes_deletes_and_expired_entries_are_not_rewritten() -> None:
    delete, over = pack(Cell(b"")), entry(First("x", 1), expires=NOW.wall)
    left = {b"\x01a": delete, b"\x01b": over, b"\x03i": pack(Cell(b"")), b"\x04i": pack(Cell(b"")), b"\x05n": delete}
    store = store_of(left)
    stepped(store)
    assert {key: data for key, data in store.entries.items() if key != REWRITE_NOTE} == left


def test_nothing_is_written_into_a_hidden_slice() -> None:
    old, live = slice_prefix(3) + b"\x01a", slice_prefix(9) + b"\x01a"
    store = store_of({old: entry(First("a", 10)), live: entry(First("a", 20))})
    done = stepped(store, retention_ms=2_000, slice_ms=1_000, clock="wall")
    assert (done.seen, done.rewritten) == (1, 1)
    assert unpack(store.entries[old]).schema == 1
    assert unpack(store.entries[live]).schema == 2


def test_bytes_of_the_layout_before_a_value_stay() -> None:
    payload = with_seq(77, typed(First).encode(First("a", 10)))
    store = store_of({b"\x01a": pack(Cell(payload))})
    stepped(store, max_entries=5)
    assert unpack(store.entries[b"\x01a"]) == Cell(with_seq(77, typed(Tenths).encode(Tenths("a", 1.0))), schema=2)


@given(
    st.dictionaries(st.binary(min_size=1, max_size=3), st.tuples(st.booleans(), st.integers(0, 99)), max_size=12),
    st.integers(1, 5),
    st.lists(st.one_of(st.just("crash"), st.tuples(st.binary(min_size=1, max_size=3), st.booleans())), max_size=8),
)
def test_a_crash_between_steps_changes_nothing(
    made: dict[bytes, tuple[bool, int]], limit: int, events: list[Any]
) -> None:
    """Old and new code writes between the steps. A crash loses a whole step, which is then made again."""

    def value(is_new: bool, n: int) -> bytes:
        return entry(Tenths("p", n / 10)) if is_new else entry(First("p", n))

    store = store_of({b"\x01" + key: value(*each) for key, each in made.items()})
    twin = store_of(dict(store.entries))
    for event in events:
        if event == "crash":
            stepped(store_of(dict(store.entries)), limit)  # its version is never committed
            continue
        key, is_new = event
        for each in (store, twin):
            each.put(b"\x01" + key, value(is_new, 50))
            stepped(each, limit)
        assert values(store) == values(twin)
    finish(store, limit)
    finish(twin, limit)
    assert dict(store.entries) == dict(twin.entries)


@given(st.dictionaries(st.binary(min_size=1, max_size=3), st.integers(0, 99), max_size=20), st.integers(1, 7))
def test_a_rewrite_changes_no_answer(made: dict[bytes, int], limit: int) -> None:
    store = store_of({b"\x01" + key: entry(First("p", n)) for key, n in made.items()})
    before = values(store)
    done = finish(store, limit)[-1]
    assert values(store) == before
    assert (done.seen, done.rewritten) == (len(made), len(made))
    assert schemas(store) <= {2}
