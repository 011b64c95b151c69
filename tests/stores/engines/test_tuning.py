"""Profiles, hooks, one cache per store, and RocksDB's metrics."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rocksdict as rd

from holdfast import metrics
from holdfast.errors import TopologyError
from holdfast.stores.engines import rocksdb_families, rocksdb_metrics
from holdfast.stores.engines.base import Changes, Engine, Mark, Resources
from holdfast.stores.engines.memory import MemoryEngine
from holdfast.stores.engines.profiles import PROFILES, profile
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.engines.rocksdb_errors import BadOptions
from holdfast.stores.engines.tuning import Tunable, Tuning
from holdfast.words import Version
from tests.stores import history
from tests.stores.making import specs

MIB = 1 << 20
ROWS = 20_000


def opened(folder: Path, *stores: str, memory: int = 32 * MIB, **options: Any) -> RocksEngine:
    return opened_with(folder, Resources(memory), *stores, **options)


def opened_with(folder: Path, resources: Resources, *stores: str, **options: Any) -> RocksEngine:
    engine = open_engine("rocksdb", folder, specs(stores, **options), resources)
    assert isinstance(engine, RocksEngine)
    return engine


def fill(engine: Engine, *families: str, rows: int = ROWS, version: int = 1) -> None:
    keys, values = pa.array([b"\x01%06d" % n for n in range(rows)]), pa.array([b"%0100d" % n for n in range(rows)])
    engine.apply(
        [(family, Changes(keys, values)) for family in families], Mark(Version(version), f"c{version}", "log-1")
    )
    engine.flush()


def read(engine: Engine, family: str, rows: int = ROWS) -> None:
    keys = pa.array([b"\x01%06d" % n for n in range(rows)])
    assert engine.get_many(family, keys).null_count == 0


def test_an_unknown_profile_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(TopologyError, match="balanced, write-heavy"):
        profile("fast")


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_works_and_reads_the_files_of_others(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "state"
    version = 0
    for each in (name, "balanced", name, "write-heavy", name):
        engine = open_engine("rocksdb", folder, specs(history.FAMILIES, profile=each), Resources(history.SMALL_MEMORY))
        assert history.state_of(engine) == history.state_at(version)
        version += 2
        history.catch_up(engine, version)
        engine.drop("counts", b"\x09", b"\x0a")
        assert history.state_of(engine) == history.state_at(version)
        engine.close()


called: list[tuple[str, Tunable]] = []


def tune(store: str, rocks: Tunable) -> None:
    called.append((store, rocks))
    rocks.options.set_disable_auto_compactions(True)
    rocks.table.set_block_size(8_192)
    rocks.database.set_max_open_files(123)


def fail(store: str, rocks: Tunable) -> None:
    raise ValueError("not today")


def contradict(store: str, rocks: Tunable) -> None:
    rocks.table.disable_cache()  # but indexes and filters need it


def test_contradicting_options_are_not_reported_as_damage(tmp_path: Path) -> None:
    opened(tmp_path / "a", "scores").close()
    with pytest.raises(BadOptions, match="Fix the hook"):
        opened(tmp_path / "a", "scores", options_hook="tests.stores.engines.test_tuning:contradict")
    opened(tmp_path / "a", "scores").close()


def test_a_hook_is_called_with_the_store_and_its_options(tmp_path: Path) -> None:
    called.clear()
    engine = opened(tmp_path / "a", "scores", options_hook="tests.stores.engines.test_tuning:tune")
    assert [store for store, _ in called] == ["scores"]
    text = next((tmp_path / "a").glob("OPTIONS-*")).read_text()
    section = text[text.index('[CFOptions "scores"]') :]
    assert "disable_auto_compactions=true" in section
    assert " block_size=8192" in section
    assert "max_open_files=123" in text
    engine.close()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("tests.stores.engines.test_tuning:fail", "not today"),
        ("tests.stores.engines.test_tuning:nothing", "can't be imported"),
        ("tests.stores.nothing:tune", "can't be imported"),
        ("tests.stores.engines.test_tuning:MIB", "can't be called"),
        ("nowhere", "module:name"),
    ],
)
def test_a_hook_that_fails_is_named_with_its_store(tmp_path: Path, place: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says) as raised:
        opened(tmp_path / "a", "scores", options_hook=place)
    assert "'scores'" in str(raised.value)


class OwnEngine(MemoryEngine):
    """A user's own engine."""


def test_a_users_own_engine_is_named_by_module_and_class(tmp_path: Path) -> None:
    place = "tests.stores.engines.test_tuning:OwnEngine"
    engine = open_engine(place, tmp_path / "a", specs(["scores"]), Resources(MIB))
    assert isinstance(engine, OwnEngine)
    engine.close()
    with pytest.raises(TopologyError, match="can't be imported"):
        open_engine("tests.stores.engines.test_tuning:Other", tmp_path / "b", specs(["scores"]), Resources(MIB))


def test_every_store_has_its_own_cache_and_its_tasks_share_it(tmp_path: Path) -> None:
    resources = Resources(32 * MIB)
    one = opened_with(tmp_path / "0", resources, "read", "unread")
    two = opened_with(tmp_path / "1", resources, "read", "unread")
    for engine in (one, two):
        fill(engine, "read", "unread")
        read(engine, "read")
    seen = {store: one.properties(store) for store in ("read", "unread")}
    assert seen["read"]["block-cache-usage"] > 2_000_000 > seen["unread"]["block-cache-usage"]
    assert one.properties("read")["block-cache-usage"] == two.properties("read")["block-cache-usage"]
    capacities = resources.shared(Tuning, Tuning).caches.capacities()
    assert sum(capacities.values()) == 24 * MIB
    assert capacities == {store: values["block-cache-capacity"] for store, values in seen.items()}
    one.close()
    two.close()


def test_capacity_moves_to_the_store_that_is_read(tmp_path: Path) -> None:
    resources = Resources(16 * MIB)
    engine = opened_with(tmp_path / "0", resources, "busy", "idle")
    fill(engine, "busy", "idle", rows=100_000)
    read(engine, "idle", 100_000)
    before = engine.properties("busy")["block-cache-capacity"]
    for _ in range(12):
        read(engine, "busy", 100_000)
        resources.rebalance()
    busy, idle = (engine.properties(store)["block-cache-capacity"] for store in ("busy", "idle"))
    assert before == 6 * MIB
    assert busy > 8 * MIB > 4 * MIB > idle
    assert busy + idle == 12 * MIB
    assert engine.properties("idle")["block-cache-usage"] <= idle
    engine.close()


def test_write_buffers_of_all_stores_share_one_budget(tmp_path: Path) -> None:
    resources = Resources(16 * MIB)
    engines = [opened_with(tmp_path / str(n), resources, "a", "b", "c") for n in range(3)]
    for engine in engines:
        fill(engine, "a", "b", "c")
    tuning = resources.shared(Tuning, Tuning)
    assert tuning.write_bytes == 4 * MIB
    assert tuning.writes.get_buffer_size() == 4 * MIB
    assert sum(e.properties(s)["cur-size-all-mem-tables"] for e in engines for s in "abc") <= 8 * MIB
    for engine in engines:
        engine.close()


def test_a_view_keeps_no_large_write_buffers_beyond_the_budget(tmp_path: Path) -> None:
    engine = opened(tmp_path / "state", "a", "b", memory=16 * MIB)
    keys = pa.array([b"\x01%06d" % n for n in range(30_000)])
    views = []
    for version in range(1, 6):
        change = Changes(keys, pa.array([b"%0150d" % version] * len(keys)))
        engine.apply([("a", change), ("b", change)], Mark(Version(version), f"c{version}", "log-1"))
        views.append(engine.view())
    held = sum(engine.properties(store)["size-all-mem-tables"] for store in "ab")
    assert held < 16 * MIB  # the budget of 4, and buffers too small to flush; 32 without flushing
    assert [view.get("a", b"\x01000007") for view in views] == [b"%0150d" % version for version in range(1, 6)]
    engine.close()


def family_counts(db: rd.Rdict) -> dict[str, float]:
    return rocksdb_families.parse_counters(db.property_value(rocksdb_families.PROPERTY) or "")


def test_rocksdb_knows_every_property_and_counter(tmp_path: Path) -> None:
    """A name that RocksDB doesn't know would be 0 in every scrape."""
    options = rd.Options(raw_mode=True)
    options.create_if_missing(True)
    options.enable_statistics()
    db = rd.Rdict(str(tmp_path / "db"), options)
    names = [f"rocksdb.{name}" for name in (*rocksdb_metrics.PROPERTIES, *rocksdb_metrics.CACHE_PROPERTIES)]
    assert [name for name in names if db.property_int_value(name) is None] == []
    text = options.get_statistics() or ""
    parts = [part for parts in rocksdb_metrics.COUNTED.values() for part in parts]
    assert [part for part in parts if f"rocksdb.{part} COUNT : " not in text] == []
    for _ in range(2):
        for n in range(3 * 1024):
            db[b"%04d" % n] = random.Random(n).randbytes(1024)
        db.flush()
    counts = family_counts(db)
    assert set(counts) == set(rocksdb_families.COUNTED)
    assert counts["store_bytes_flushed"] == pytest.approx(6 * MIB, rel=0.3)
    assert counts["store_compactions"] == 0, "a flush is not a compaction"
    assert counts["store_bytes_written_compaction"] < 6 * MIB
    db.compact_range(None, None)
    assert family_counts(db)["store_compactions"] == 1
    db.close()


def test_properties_and_statistics_are_metrics(tmp_path: Path) -> None:
    one = opened(tmp_path / "0", "metered")
    two = opened(tmp_path / "1", "metered", "beside")
    for engine in (one, two):
        fill(engine, "metered")
        read(engine, "metered")
    assert metrics.value("holdfast_rocksdb_estimate_num_keys", store="metered") == pytest.approx(2 * ROWS, abs=10)
    assert metrics.value("holdfast_rocksdb_live_sst_files_size", store="metered") > 100_000
    for engine in (one, two):
        fill(engine, "metered", version=2)
        engine._families["metered"].compact_range(None, None)
    both = [engine.counts("metered")["store_compactions"] for engine in (one, two)]
    assert metrics.value("holdfast_rocksdb_store_compactions_total", store="metered") == sum(both) >= 2
    assert metrics.value("holdfast_rocksdb_store_compactions_total", store="beside") < sum(both)
    assert metrics.value("holdfast_rocksdb_store_write_stops_total", store="metered") == 0
    assert metrics.value("holdfast_rocksdb_block_cache_capacity", store="beside") == 12 * MIB
    assert metrics.value("holdfast_rocksdb_bytes_written_total", stores="metered") > 100 * ROWS
    assert metrics.value("holdfast_rocksdb_block_cache_data_miss_total", stores="beside+metered") > 0
    assert one.statistics()["bytes_read"] >= 100 * ROWS
    assert "holdfast_open_iterators" in metrics.expose()[0].decode()
    one.close()
    two.close()
    assert metrics.value("holdfast_rocksdb_store_compactions_total", store="metered") == sum(both), (
        "a counter never goes back"
    )
    del one, two, engine
    assert b'estimate_num_keys{store="metered"}' not in metrics.expose()[0]
