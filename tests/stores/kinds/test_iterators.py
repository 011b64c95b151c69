"""What an iterator shows: the store as it was when the method was called, whatever is written, closed or read later.

Every kind, every method that returns an iterator, over every place a store's bytes can be: a dictionary, and a task's
writes over the state of either engine.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.log.segments import STATE_SCHEMA
from holdfast.pipeline import store_state
from holdfast.pipeline.store_state import Budget, StoreState
from holdfast.pipeline.task_state import TaskState
from holdfast.stores import scans
from holdfast.stores.access import OrderedBytes
from holdfast.stores.engines.base import Changes, Engine, Resources
from holdfast.stores.engines.registry import ENGINES, open_engine
from holdfast.stores.ranges import Ranges
from holdfast.testing.engines import mark_of
from tests.stores.kinds.models import MODELS

Read = Callable[[Any], Any]

BY_KEY: dict[str, Read] = {
    "items": lambda store: store.items(),
    "range": lambda store: store.range("a", "b"),
    "reverse_range": lambda store: store.reverse_range("a", "b"),
    "prefix": lambda store: store.prefix("a"),
    "prefix back": lambda store: store.prefix("a", reverse=True),
    "scan": lambda store: store.scan(),
    "scan back": lambda store: store.scan(reverse=True),
    "keys": lambda store: store.keys(),
    "values": lambda store: store.values(),
    "iter": iter,
}
METHODS: dict[str, dict[str, Read]] = {
    "window": {
        "fetch in one slice": lambda store: store.fetch("a", from_=5_000, to=5_999),
        "fetch": lambda store: store.fetch("a"),
        "fetch back": lambda store: store.fetch("a", from_=0, to=60_000, reverse=True),
        "fetch_all": lambda store: store.fetch_all(),
        "fetch_all back": lambda store: store.fetch_all(0, 60_000, reverse=True),
        "fetch_keys": lambda store: store.fetch_keys("a", "b", 0, 60_000),
    },
    "session": {
        "fetch": lambda store: store.fetch("a"),
        "find": lambda store: store.find("a", 0, 60_000),
        "find back": lambda store: store.find("a", reverse=True),
        "find_keys": lambda store: store.find_keys("a", "b"),
        "find_keys back": lambda store: store.find_keys(None, None, 0, 60_000, reverse=True),
    },
    "versioned": {
        "history": lambda store: store.history("a"),
        "history of a span": lambda store: store.history("a", 1_000, 50_000),
        "history back": lambda store: store.history("a", reverse=True),
    },
}
METHODS["window-duplicates"] = METHODS["window"]
NOW = hf.Now(wall=20_000, event=20_000)
FILLED: list[Any] = [("put", key, 1, None) for key in ("a", "ab")]
FILLING: dict[str, list[Any]] = {
    "window": [("put", key, 1, time) for key in ("a", "b") for time in (5_000, 5_500, 15_000)],
    "session": [("put", key, time, 100, 1) for key in ("a", "b") for time in (5_000, 15_000)],
    "versioned": [("put", "a", 1, time) for time in (5_000, 15_000, 25_000)],
}
FILLING["window-duplicates"] = FILLING["window"]
FILLING |= {kind: [("put", "a", 1, 5, None), ("put", "ab", 1, 5, None)] for kind in MODELS if kind.startswith("times")}


class EngineState(TaskState):
    """The state at `v-1`, in a view of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.view = engine, engine.view()

    def get(self, store: str, keys: pa.BinaryArray) -> pa.BinaryArray:
        return self.engine.get_many(store, keys)

    def scan(self, store: str, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int) -> pa.Table:
        rows = list(islice(self.view.scan(store, start, stop, reverse=reverse), limit))
        return pa.table([[key for key, _ in rows], [value for _, value in rows]], schema=STATE_SCHEMA)

    def scan_many(self, store: str, ranges: Ranges) -> pa.Table:
        return pa.concat_tables([self.scan(store, *each, limit=1 << 30) for each in ranges.pairs()])

    def approximate_count(self, store: str) -> int:
        return self.engine.approximate_count(store)


@contextmanager
def stored(place: str, declared: Any, before: Sequence[Any], model: Any) -> Iterator[OrderedBytes]:
    """Bytes of a store in which a version has written `before`."""
    if place == "dict":
        filled = hf.DictBytes()
        write(declared.bind(filled, NOW), before, model)
        yield filled
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-iterators-") as folder:
        engine = open_engine(place, Path(folder) / "e", [declared.spec()], Resources(16 << 20))
        try:
            first = EngineState(engine)
            state = StoreState("s", first, Budget(1 << 30))
            write(declared.bind(state, NOW), before, model)
            first.view.close()
            table = state.table().combine_chunks()
            changes = Changes(*(pa.array(table[name].to_pylist(), pa.binary()) for name in ("key", "value")))
            engine.apply([("s", changes)], mark_of(1))
            at = EngineState(engine)
            yield StoreState("s", at, Budget(1 << 30))
            at.view.close()
        finally:
            engine.close()


def write(store: Any, operations: Sequence[Any], model: Any) -> None:
    store.begin_version()
    for operation in operations:
        model.apply(store, operation)
    store.end_of_version()


@contextmanager
def small_pages(small: bool) -> Iterator[None]:
    """So that a few entries take several pages and batches."""
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(store_state, "FIRST_PAGE", 2)
            patch.setattr(store_state, "LATER_PAGES", 2)
            patch.setattr(scans, "FIRST_ROWS", 1)
            patch.setattr(scans, "ROWS", 2)
        yield


@pytest.mark.parametrize("place", ["dict", *sorted(ENGINES)])
@pytest.mark.parametrize("kind", MODELS)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_an_iterator_shows_the_store_as_it_was_at_the_call(kind: str, place: str, data: st.DataObject) -> None:
    model, methods = MODELS[kind](), METHODS.get(kind, BY_KEY)
    some = st.lists(model.operations(), max_size=12)
    before, within, later = data.draw(some), data.draw(some), data.draw(some)
    taken, small = data.draw(st.integers(0, 3)), data.draw(st.booleans())
    declared = model.declared()
    with small_pages(small), stored(place, declared, before, model) as bytes_:
        store = declared.bind(bytes_, NOW)
        for operation in within:
            model.apply(store, operation)
        expected = {name: list(read(store)) for name, read in methods.items()}
        opened = {name: read(store) for name, read in methods.items()}
        shown = {name: list(islice(rows, taken)) for name, rows in opened.items()}
        for operation in later:
            model.apply(store, operation)
        if isinstance(bytes_, StoreState):
            bytes_.forget()  # as before the next chunk of records
        assert {name: shown[name] + list(rows) for name, rows in opened.items()} == expected


@pytest.mark.parametrize("kind", MODELS)
def test_closing_an_iterator_within_its_loop_ends_the_loop(kind: str) -> None:
    model, methods = MODELS[kind](), METHODS.get(kind, BY_KEY)
    store = model.declared().bind(hf.DictBytes(), NOW)
    for operation in FILLING.get(kind, FILLED):
        model.apply(store, operation)
    for name, read in methods.items():
        assert len(list(read(store))) > 1, f"{name} has too few entries to tell"
        seen, rows = [], read(store)
        for row in rows:
            seen.append(row)
            if name != "iter":
                rows.close()
            else:
                break
        assert len(seen) == 1, f"{name} went on after close()"


def test_a_history_that_is_written_meanwhile_has_each_value_once() -> None:
    prices = hf.VersionedKeyValueStore("s", value=str, retention="1m").bind(hf.DictBytes(), NOW)
    for n in (1, 2, 3):
        prices.put("a", f"v{n}", n * 1_000)
    history = prices.history("a", reverse=True)
    seen = [next(history).value]
    prices.put("a", "v4", 4_000)
    assert seen + [record.value for record in history] == ["v3", "v2", "v1"]
