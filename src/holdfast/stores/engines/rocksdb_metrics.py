"""RocksDB's properties and counters as metrics, under the names that Kafka Streams uses.

Properties (`holdfast_rocksdb_estimate_num_keys`) and counters of flushes, compactions and waits (`rocksdb_families`)
belong to one store and are summed over the tasks of this process. RocksDB's other counters (hits, misses, bytes) are
per database, and the stores of a task share one. So these have the names of all its stores: `{stores="a+b"}`.

Values are read only when `/metrics` is scraped.
"""

import contextlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from holdfast import metrics
from holdfast.errors import HoldfastError
from holdfast.stores.engines import rocksdb_families
from holdfast.stores.engines.open_views import OPEN_VIEWS

PROPERTIES = (
    "num-immutable-mem-table",
    "cur-size-active-mem-table",
    "cur-size-all-mem-tables",
    "size-all-mem-tables",
    "num-entries-active-mem-table",
    "num-entries-imm-mem-tables",
    "num-deletes-active-mem-table",
    "num-deletes-imm-mem-tables",
    "mem-table-flush-pending",
    "num-running-flushes",
    "compaction-pending",
    "num-running-compactions",
    "estimate-pending-compaction-bytes",
    "total-sst-files-size",
    "live-sst-files-size",
    "num-live-versions",
    "estimate-num-keys",
    "estimate-table-readers-mem",
    "background-errors",
    "is-write-stopped",
)
"""RocksDB's own names, without the prefix `rocksdb.`."""

CACHE_PROPERTIES = ("block-cache-capacity", "block-cache-usage", "block-cache-pinned-usage")
"""All tasks of a store share its cache, so these aren't summed."""

COUNTED: Mapping[str, tuple[str, ...]] = {
    "bytes_written": ("bytes.written",),
    "bytes_read": ("bytes.read", "number.multiget.bytes.read", "db.iter.bytes.read"),
    "memtable_bytes_flushed": ("flush.write.bytes",),
    "memtable_hit": ("memtable.hit",),
    "memtable_miss": ("memtable.miss",),
    "block_cache_data_hit": ("block.cache.data.hit",),
    "block_cache_data_miss": ("block.cache.data.miss",),
    "block_cache_index_hit": ("block.cache.index.hit",),
    "block_cache_index_miss": ("block.cache.index.miss",),
    "block_cache_filter_hit": ("block.cache.filter.hit",),
    "block_cache_filter_miss": ("block.cache.filter.miss",),
    "bloom_filter_useful": ("bloom.filter.useful",),
    "write_stall_duration_microseconds": ("stall.micros",),
    "bytes_read_compaction": ("compact.read.bytes",),
    "bytes_written_compaction": ("compact.write.bytes",),
    "number_file_opens": ("no.file.opens",),
    "number_file_errors": ("no.file.errors",),
}
"""Counters: Holdfast's name, and the counters of RocksDB that it sums."""

Values = Mapping[str, float]

_LINE = re.compile(r"^rocksdb\.(\S+) COUNT : (\d+)$", re.MULTILINE)


class Measured(Protocol):
    """An engine that has RocksDB's properties and counters."""

    def stores(self) -> Sequence[str]: ...

    def properties(self, family: str) -> dict[str, int]: ...

    def counts(self, family: str) -> dict[str, float]: ...

    def statistics(self) -> dict[str, int]: ...


def parse_statistics(text: str) -> dict[str, int]:
    """RocksDB's statistics, parsed from its text.

    >>> parse_statistics("rocksdb.memtable.hit COUNT : 7\\nrocksdb.memtable.miss COUNT : 2\\n")["memtable_hit"]
    7
    """
    found = {name: int(number) for name, number in _LINE.findall(text)}
    return {name: sum(found.get(part, 0) for part in parts) for name, parts in COUNTED.items()}


class RocksMetrics:
    """The metrics of this process's open engines, for Prometheus."""

    def __init__(self) -> None:
        self._engines: weakref.WeakSet[Measured] = weakref.WeakSet()
        self._closed: dict[str, dict[str, float]] = {}
        """The counters of closed engines, per store: a counter never goes back."""

    def add(self, engine: Measured) -> None:
        self._engines.add(engine)

    def remove(self, engine: Measured) -> None:
        """Keeps the counters of an engine that is about to close."""
        if engine in self._engines:
            self._engines.discard(engine)
            with contextlib.suppress(HoldfastError):  # it never opened completely
                counted = [(store, engine.counts(store)) for store in engine.stores()]
                self._closed = _summed([*self._closed.items(), *counted])

    def collect(self) -> Iterator[Metric]:
        yield from _gauges(_summed(self._per_store(lambda engine, store: engine.properties(store))))
        counted = self._per_store(lambda engine, store: engine.counts(store))
        yield from _family_counters(_summed([*self._closed.items(), *counted]))
        statistics: dict[str, dict[str, int]] = {}
        for engine in list(self._engines):
            with contextlib.suppress(HoldfastError):
                statistics["+".join(sorted(engine.stores()))] = engine.statistics()
        yield from _counters(statistics)
        yield from _open_views()

    def _per_store(self, read: Callable[[Measured, str], Values]) -> Iterator[tuple[str, Values]]:
        for engine in list(self._engines):
            with contextlib.suppress(HoldfastError):  # it was closed meanwhile
                for store in engine.stores():
                    yield store, read(engine, store)


def _summed(values_per_store: Iterable[tuple[str, Values]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for store, values in values_per_store:
        total = found.setdefault(store, {})
        for name, value in values.items():
            total[name] = value if name in CACHE_PROPERTIES else total.get(name, 0) + value
    return found


def _family_counters(stores: Mapping[str, Values]) -> Iterator[Metric]:
    for name in rocksdb_families.COUNTED:
        what = name.removeprefix("store_").replace("_", " ")
        metric = CounterMetricFamily(f"holdfast_rocksdb_{name}", f"RocksDB's {what}, of one store.", labels=["store"])
        yield _filled(metric, stores, name)


def _gauges(stores: Mapping[str, Values]) -> Iterator[Metric]:
    for name in (*PROPERTIES, *CACHE_PROPERTIES):
        metric = GaugeMetricFamily(
            f"holdfast_rocksdb_{name.replace('-', '_')}", f"RocksDB's {name}, of one store.", labels=["store"]
        )
        yield _filled(metric, stores, name)


def _counters(databases: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    for name, parts in COUNTED.items():
        metric = CounterMetricFamily(
            f"holdfast_rocksdb_{name}", f"RocksDB's {', '.join(parts)}, of the stores of one task.", labels=["stores"]
        )
        yield _filled(metric, databases, name)


def _filled(
    metric: CounterMetricFamily | GaugeMetricFamily, values_by_label: Mapping[str, Values], name: str
) -> Metric:
    for label, values in values_by_label.items():
        metric.add_metric([label], values.get(name, 0))
    return metric


def _open_views() -> Iterator[Metric]:
    count = GaugeMetricFamily("holdfast_open_iterators", "Open views and scans of engines.", labels=["what"])
    count.add_metric(["view"], OPEN_VIEWS.count("view"))
    count.add_metric(["scan"], OPEN_VIEWS.count("scan"))
    yield count
    aged = OPEN_VIEWS.older_than(0)
    age = aged[0][1] if aged else 0
    yield GaugeMetricFamily(
        "holdfast_oldest_open_iterator_seconds", "How long the oldest of them has kept old state.", value=age
    )


ENGINES = RocksMetrics()
"""The open engines of this process."""

metrics.collected(ENGINES)
