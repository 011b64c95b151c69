"""What RocksDB tells about itself, as metrics, under the names Kafka Streams' users know.

Properties belong to a store and are summed over the tasks of this process: `holdfast_rocksdb_estimate_num_keys`. So do
counts of flushes, compactions and waits (`rocksfamilies`). What else RocksDB counts (hits, bytes, misses) it counts
once a database, and a task's stores share one, so those carry the names of all of them: `{stores="audit+sessions"}`. A
store that is alone in its task has its own.

Nothing is measured before someone asks: a scrape of `/metrics` reads it all.
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
from holdfast.stores.engines import rocksdb_families as rocksfamilies
from holdfast.stores.engines.open_views import OPEN

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
"""RocksDB's own names, without their `rocksdb.` in front."""

CACHE_PROPERTIES = ("block-cache-capacity", "block-cache-usage", "block-cache-pinned-usage")
"""Those of a store's one cache, which its tasks share: not summed."""

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
"""What is counted: our name, and the counters of RocksDB that it is the sum of."""

Values = Mapping[str, float]

_LINE = re.compile(r"^rocksdb\.(\S+) COUNT : (\d+)$", re.MULTILINE)


class Measured(Protocol):
    """An engine that can be asked."""

    def stores(self) -> Sequence[str]: ...

    def properties(self, family: str) -> dict[str, int]: ...

    def counts(self, family: str) -> dict[str, float]: ...

    def statistics(self) -> dict[str, int]: ...


def counted(text: str) -> dict[str, int]:
    """RocksDB's statistics from its own text.

    >>> counted("rocksdb.memtable.hit COUNT : 7\\nrocksdb.memtable.miss COUNT : 2\\n")["memtable_hit"]
    7
    """
    found = {name: int(number) for name, number in _LINE.findall(text)}
    return {name: sum(found.get(part, 0) for part in parts) for name, parts in COUNTED.items()}


class RocksMetrics:
    """The engines of this process that are open, as Prometheus sees them."""

    def __init__(self) -> None:
        self._engines: weakref.WeakSet[Measured] = weakref.WeakSet()
        self._closed: dict[str, dict[str, float]] = {}
        """What stores counted in engines that are closed: a counter never goes back."""

    def add(self, engine: Measured) -> None:
        self._engines.add(engine)

    def closing(self, engine: Measured) -> None:
        """Keeps what an engine has counted by store, of which nobody can ask it any more."""
        if engine in self._engines:
            self._engines.discard(engine)
            with contextlib.suppress(HoldfastError):  # it was never whole
                counted = [(store, engine.counts(store)) for store in engine.stores()]
                self._closed = _summed([*self._closed.items(), *counted])

    def collect(self) -> Iterator[Metric]:
        yield from _gauges(_summed(self._asked(lambda engine, store: engine.properties(store))))
        counted = self._asked(lambda engine, store: engine.counts(store))
        yield from _family_counters(_summed([*self._closed.items(), *counted]))
        statistics: dict[str, dict[str, int]] = {}
        for engine in list(self._engines):
            with contextlib.suppress(HoldfastError):
                statistics["+".join(sorted(engine.stores()))] = engine.statistics()
        yield from _counters(statistics)
        yield from _open_ones()

    def _asked(self, ask: Callable[[Measured, str], Values]) -> Iterator[tuple[str, Values]]:
        for engine in list(self._engines):
            with contextlib.suppress(HoldfastError):  # it was closed meanwhile
                for store in engine.stores():
                    yield store, ask(engine, store)


def _summed(asked: Iterable[tuple[str, Values]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for store, values in asked:
        total = found.setdefault(store, {})
        for name, value in values.items():
            total[name] = value if name in CACHE_PROPERTIES else total.get(name, 0) + value
    return found


def _family_counters(stores: Mapping[str, Values]) -> Iterator[Metric]:
    for name in rocksfamilies.COUNTED:
        what = name.removeprefix("store_").replace("_", " ")
        family = CounterMetricFamily(f"holdfast_rocksdb_{name}", f"RocksDB's {what}, of one store.", labels=["store"])
        for store, values in stores.items():
            family.add_metric([store], values.get(name, 0))
        yield family


def _gauges(stores: Mapping[str, Values]) -> Iterator[Metric]:
    for name in (*PROPERTIES, *CACHE_PROPERTIES):
        family = GaugeMetricFamily(
            f"holdfast_rocksdb_{name.replace('-', '_')}", f"RocksDB's {name}, of one store.", labels=["store"]
        )
        for store, values in stores.items():
            family.add_metric([store], values.get(name, 0))
        yield family


def _counters(databases: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    for name, parts in COUNTED.items():
        family = CounterMetricFamily(
            f"holdfast_rocksdb_{name}", f"RocksDB's {', '.join(parts)}, of the stores of one task.", labels=["stores"]
        )
        for stores, values in databases.items():
            family.add_metric([stores], values[name])
        yield family


def _open_ones() -> Iterator[Metric]:
    family = GaugeMetricFamily("holdfast_open_iterators", "Views and scans of engines that are open.", labels=["what"])
    family.add_metric(["view"], OPEN.count("view"))
    family.add_metric(["scan"], OPEN.count("scan"))
    yield family
    longest = OPEN.long_open(0)
    oldest = GaugeMetricFamily(
        "holdfast_oldest_open_iterator_seconds", "How long the longest of them has kept old state."
    )
    oldest.add_metric([], longest[0][1] if longest else 0)
    yield oldest


ENGINES = RocksMetrics()
"""Those of this process."""

metrics.collected(ENGINES)
