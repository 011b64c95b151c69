"""Counts of entries: what a store shows, without what is stored beside it. Beyond 1,000 entries they are estimates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.stores.engines.base import Changes, Resources
from holdfast.stores.engines.registry import ENGINES, open_engine
from holdfast.stores.kinds import view_of
from holdfast.testing.engines import mark_of
from tests.stores.kinds.models import entries_in
from tests.stores.kinds.worlds import Reading, Writing

MANY = 3_000
Puts = Callable[[Any, int], None]


def expiring(store: Any, n: int) -> None:
    store.put(f"k{n}", n, ttl="1h")


def window(store: Any, n: int) -> None:
    store.put("k", n, n)


def session(store: Any, n: int) -> None:
    store.put(hf.Session("k", n, n), n)


def price(store: Any, n: int) -> None:
    store.put(f"k{n % 100}", n, n)


def plain(store: Any, n: int) -> None:
    store.put(f"k{n}", n)


KINDS: dict[str, tuple[Any, Puts]] = {
    "key-value": (hf.KeyValueStore("s", value=int), plain),
    "own ttl": (hf.KeyValueStore("s", value=int), expiring),
    "ttl": (hf.KeyValueStore("s", value=int, ttl="8s"), plain),
    "max-entries": (hf.KeyValueStore("s", value=int, max_entries=2 * MANY), plain),
    "max-entries and ttl": (hf.KeyValueStore("s", value=int, max_entries=2 * MANY, ttl="1h"), plain),
    "window": (hf.WindowStore("s", value=int, size="1s"), window),
    "session": (hf.SessionStore("s", value=int), session),
    "versioned": (hf.VersionedKeyValueStore("s", value=int, retention="1d"), price),
}


class Versions:
    """A store on an engine, written version by version; each takes a second."""

    def __init__(self, engine: str, declared: Any, folder: Path) -> None:
        self.declared, self.version = declared, 0
        self.engine = open_engine(engine, folder, [declared.spec()], Resources(32 << 20))

    def write(self, numbers: range, put: Puts) -> None:
        self.version += 1
        view = self.engine.view()
        written = Writing(Reading(view, self.engine, "s"))
        store = self.declared.bind(written, hf.Now(wall=1_000 * self.version, event=0))
        store.begin_version()
        for n in numbers:
            put(store, n)
        store.end_of_version()
        view.close()
        columns = [pa.array(list(column), pa.binary()) for column in (written.changes, written.changes.values())]
        self.engine.apply([("s", Changes(*columns))], mark_of(self.version))

    def counts(self) -> tuple[int, int]:
        """The count, and how many entries the store shows."""
        view = self.engine.view()
        now = hf.Now(wall=1_000 * self.version, event=0)
        store = view_of(self.declared.spec(), Reading(view, self.engine, "s"), now)
        shown = sum(1 for n in range(100) for _ in store.history(f"k{n}")) if hasattr(store, "history") else None
        found = store.approximate_count(), entries_in(store) if shown is None else shown
        view.close()
        return found


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("kind", KINDS)
def test_it_counts_what_the_store_shows(kind: str, engine: str, tmp_path: Path) -> None:
    declared, put = KINDS[kind]
    versions = Versions(engine, declared, tmp_path / "state")
    versions.write(range(5), put)
    assert versions.counts() == (5, 5)
    for _ in range(3):
        versions.write(range(0), put)
    assert versions.counts() == (5, 5), "empty versions add nothing"
    for first in range(0, MANY, MANY // 6):
        versions.write(range(first, first + MANY // 6), put)
    count, shown = versions.counts()
    assert shown >= MANY
    assert count == pytest.approx(shown, rel=0.2), "an estimate, in which overwritten keys may count again"
    versions.engine.flush()
    assert versions.counts()[0] == pytest.approx(shown, rel=0.02)
    versions.engine.close()


def test_copies_in_older_slices_count_once(tmp_path: Path) -> None:
    declared, put = KINDS["ttl"]
    versions = Versions("memory", declared, tmp_path / "state")
    for _ in range(4):
        versions.write(range(MANY), put)
    count, shown = versions.counts()
    assert shown == MANY
    assert count == pytest.approx(shown, rel=0.02)
    versions.engine.close()


@pytest.mark.parametrize(
    ("store", "put", "left"),
    [
        (hf.WindowStore("s", value=int, size="1s", retention="10s"), window, 0),
        (hf.SessionStore("s", value=int, retention="10s"), session, 0),
        (hf.VersionedKeyValueStore("s", value=int, retention="10s"), window, 1),
    ],
)
def test_what_is_past_its_retention_is_not_counted(store: Any, put: Puts, left: int) -> None:
    """It is dropped in whole slices, some time after no reader sees it any more. The latest value of a key stays."""
    stored = hf.DictBytes()
    for n in range(5):
        put(store.bind(stored, hf.Now(wall=0, event=0)), n)
    at = [hf.Now(wall=0, event=event) for event in (0, 100_000)]
    assert [view_of(store.spec(), stored, now).approximate_count() for now in at] == [5, left]


def test_the_engine_counts_no_marks(tmp_path: Path) -> None:
    declared, put = KINDS["key-value"]
    versions = Versions("rocksdb", declared, tmp_path / "state")
    for n in range(50):
        versions.write(range(n, n + 1), put)
        assert versions.engine.approximate_count("s") == n + 1
    versions.engine.flush()
    assert versions.engine.approximate_count("s") == 50
    versions.engine.close()
    reopened = Versions("rocksdb", declared, tmp_path / "state")
    assert reopened.engine.approximate_count("s") == 50
    reopened.engine.close()


def test_a_task_counts_its_own_writes_exactly_while_they_are_few() -> None:
    store = hf.KeyValueStore("s", value=int).bind(hf.DictBytes(), hf.Now(wall=0))
    for n in range(999):
        store.put(f"k{n}", n, ttl="1h")
    assert store.approximate_count() == 999
    store.put("k0", 7)
    store.delete("k1")
    assert store.approximate_count() == 998
