"""A month of windows and of entries with a TTL: the stored state doesn't grow with time.

Once per day, after a flush and the compaction of dropped entries, everything is measured. Nothing waits for a number
to be small.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.log.commits import Clocks
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.words import Version
from tests.apps import ENGINES
from tests.instance.app_log import TASK, AppLog, Place, new_url
from tests.stores.kinds.worlds import Writing

HOUR = 3_600_000
DAYS = 30
KEYS = [f"player-{number:03d}" for number in range(25)]
WINDOWS = WindowStore("plays", value=int, size="1h", retention="1d")
RECENT = KeyValueStore("recent", value=int, ttl="1d")
SINGLE = KeyValueStore("single", value=int)
"""Its entries have their own TTL."""
STORES = (WINDOWS, RECENT, SINGLE)
A_DAY = len(KEYS) * 24
MOST = {"plays": 1.25 * A_DAY + 1, "recent": 1.25 * A_DAY + 1, "single": 2 * (A_DAY + len(KEYS) + 1)}
"""A day of entries. Sliced stores may have two more slices, of eight per day; others have one row of the expiry index
per entry."""


def slope(series: list[float]) -> float:
    """The growth of a series from its first to its last value, as a share of its mean, by linear regression."""
    per_step = np.polyfit(np.arange(len(series)), np.array(series, dtype=float), 1)[0]
    return float(per_step * (len(series) - 1) / np.mean(series))


def put_an_hour(stores: dict[str, Any], hour: int) -> None:
    """Puts new keys, and one key that is put every hour."""
    for number, key in enumerate(KEYS):
        stores["plays"].put(key, number, hour * HOUR)
        stores["recent"].put(f"{key}-{hour}", number)
        stores["single"].put(f"{key}-{hour}", number, ttl="1d")
    stores["single"].put("again", hour, ttl="1d")


def engines(replica: Replica) -> list[Any]:
    assert replica._engines is not None
    return [opened.engine for opened in replica._engines._all]


def table_bytes(place: Place) -> int:
    """Bytes of RocksDB's tables, without its text log, which grows to 1 MiB and starts over."""
    total = 0
    for file in place.folder.rglob("*.sst"):
        with contextlib.suppress(FileNotFoundError):  # compacted meanwhile
            total += file.stat().st_size
    return total


def measure(replica: Replica, place: Place, version: Version) -> dict[str, float]:
    """Rows per store, the engine's estimate of them, and their bytes."""
    replica.flush_overlay()
    for engine in engines(replica):
        if isinstance(engine, RocksEngine):
            assert engine.wait_until_reclaimed(60)
    found: dict[str, float] = {}
    with replica.read_view(version) as view:
        for store in replica.stores:
            found[f"rows of {store}"] = sum(1 for _ in view.pinned.scan(store, b"", None, reverse=False))
            found[f"estimate of {store}"] = view.approximate_count(store)
    found["bytes"] = table_bytes(place) or sum(engine.memory_bytes() for engine in engines(replica))
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_a_month_leaves_no_more_state_than_a_day(
    engine: str, place: Place, record_property: Callable[[str, object], None]
) -> None:
    app = AppLog(new_url(), specs=tuple(store.spec(default_engine=engine) for store in STORES))
    replica = place.replica(app, ReplicaSettings(overlay_bytes=200_000, flush_versions=6))
    single = DictBytes()
    series: dict[str, list[float]] = defaultdict(list)
    for hour in range(DAYS * 24):
        now = Now(hour * HOUR, hour * HOUR)
        written = {store.name: Writing(single if store is SINGLE else DictBytes()) for store in STORES}
        bound: dict[str, Any] = {store.name: store.bind(written[store.name], now) for store in STORES}
        bound["single"].begin_version()
        put_an_hour(bound, hour)
        changes = {name: dict(each.changes) for name, each in written.items()}
        for key, value in changes["single"].items():
            if value is None:
                single.delete(key)
            else:
                single.put(key, value)
        replica.catch_up(app.commit({TASK: changes}, Clocks(now.wall, now.event, {"0": now.wall})))
        app.history[TASK, app.version] = {name: {} for name in app.stores}  # the expected state is not needed
        if replica.flush_due():
            replica.flush_overlay()
        if hour % 24 == 23 and hour >= 72:
            for name, number in measure(replica, place, app.version).items():
                series[name].append(number)
    with replica.read_view(app.version) as view:
        assert dict(view.pinned.scan("single", b"", None, reverse=False)) == single.entries
    growth = {name: slope(numbers) for name, numbers in series.items()}
    record_property("growth over a month, as a share of the mean", str(growth))
    for name, most in MOST.items():
        assert max(series[f"rows of {name}"]) <= most, series
        assert abs(growth[f"rows of {name}"]) < 0.02, growth
        assert abs(growth[f"estimate of {name}"]) < 0.1, (growth, series)
    assert growth["bytes"] < 0.2, (growth, series["bytes"])
    replica.close()
