"""A month of windows and of entries with a TTL: what is on disk doesn't grow with the time that has passed."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from holdfast.instance.replica import ReplicaSettings
from holdfast.log.commits import Clocks
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.kinds.keyvalue import KeyValueStore
from holdfast.stores.kinds.window import WindowStore
from holdfast.words import Version
from tests.instance.app_log import TASK, AppLog, Place, new_url
from tests.instance.processes import until

HOUR = 3_600_000
DAYS = 30
KEYS = [f"player-{number:03d}" for number in range(40)]
WINDOWS = WindowStore("plays", value=int, size="1h", retention="1d")
RECENT = KeyValueStore("recent", value=int, ttl="1d")
STORES = (WINDOWS, RECENT)


class Written(DictBytes):
    """What one version writes."""

    def changes(self) -> dict[bytes, bytes | None]:
        return dict(self.entries)


def slope(series: list[float]) -> float:
    """By how much of its mean a series grows from its first to its last value, by the straight line closest to it."""
    per_step = np.polyfit(np.arange(len(series)), np.array(series, dtype=float), 1)[0]
    return float(per_step * (len(series) - 1) / np.mean(series))


def data_bytes(place: Place) -> int:
    """What RocksDB's tables take. Beside them it has a text log of its own, which grows to 1 MiB and begins anew."""
    total = 0
    for file in place.folder.rglob("*.sst"):
        with contextlib.suppress(FileNotFoundError):  # compacted while we look
            total += file.stat().st_size
    return total


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_a_month_leaves_no_more_than_a_day(
    engine: str, place: Place, record_property: Callable[[str, object], None]
) -> None:
    app = AppLog(new_url(), specs=tuple(store.spec(default_engine=engine) for store in STORES))
    replica = place.replica(app, ReplicaSettings(overlay_bytes=200_000, flush_versions=6))
    most = 2 * len(KEYS) * 24 * 1.25 + 4  # a day and a slice of each store, and their notes
    counts: list[float] = []
    disk: list[float] = []
    for hour in range(DAYS * 24):
        time = hour * HOUR
        windows, recent = Written(), Written()
        bound = WINDOWS.bind(windows, Now(time, time))
        latest = RECENT.bind(recent, Now(time, time))
        for number, key in enumerate(KEYS):
            bound.put(key, number, time)
            latest.put(f"{key}-{hour}", number)
        changes = {"plays": windows.changes(), "recent": recent.changes()}
        replica.catch_up(app.commit({TASK: changes}, Clocks(time, time, {"0": time})))
        if replica.fold_due():
            replica.fold()
        if hour % 24 == 23 and hour >= 72:
            replica.fold()
            until(lambda: sum(map(replica.approximate_count, app.stores)) <= most, "room of dropped slices is free")
            counts.append(sum(map(replica.approximate_count, app.stores)))
            disk.append(data_bytes(place) or replica.disk_bytes())
    with replica.picture(Version(app.version)) as picture:
        there = sum(1 for store in app.stores for _ in picture.footing.scan(store, b"", None, reverse=False))
    growth = {"keys": slope(counts), "disk": slope(disk) if engine == "rocksdb" else 0.0}  # the other has none
    record_property("growth over a month, as a share of the mean", str(growth))
    assert there <= most
    assert abs(growth["keys"]) < 0.1, (growth, counts)
    assert growth["disk"] < 0.2, (growth, disk)
    replica.close()
