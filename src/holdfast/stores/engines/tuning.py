"""Profiles as RocksDB options, within one memory budget a process.

    three quarters      block caches, one a store, with the indexes and filters of its files in them (`cachebudget`)
    one quarter         write buffers of all stores together; beyond it the oldest are flushed

Write buffers may pass their quarter while they are being flushed, and the caches shrink by as much until they are.

A user's hook, `module:function`, is called with the store's name and a `Tunable` before each open, last of all, so what
it sets holds. It's what Kafka Streams calls a RocksDBConfigSetter.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import rocksdict as rd

from holdfast.errors import HoldfastError, TopologyError
from holdfast.stores.engines.base import DiskUse
from holdfast.stores.engines.cache_budget import CacheBudget
from holdfast.stores.engines.profiles import MIB, Compression, Profile, profile
from holdfast.stores.places import imported
from holdfast.stores.spec import StoreSpec

_COMPRESSION = {
    "lz4": rd.DBCompressionType.lz4,
    "zstd": rd.DBCompressionType.zstd,
}
_ARENA_BYTES = 256 * 1024
_METADATA_BYTES = 4 * 1024


@dataclass(frozen=True)
class Tunable:
    """What a user's hook may change: rocksdict's objects, with the profile already in them.

    `options` are the store's, `table` its blocks, filters and cache. `database` is shared by all stores of a task: what
    RocksDB has once a database (background jobs, direct I/O, open files) is set there.
    """

    options: rd.Options
    table: rd.BlockBasedOptions
    database: rd.Options


class Tuning:
    """The caches and the write-buffer budget of one process, and options made for them."""

    def __init__(self, memory_bytes: int, disk: DiskUse | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._disk = disk or DiskUse()
        self.write_bytes = max(MIB, memory_bytes // 4)
        self.writes = rd.WriteBufferManager(self.write_bytes, False)
        self.caches: CacheBudget[rd.Cache] = CacheBudget(self._for_caches(), rd.Cache)
        self._lock = threading.Lock()
        self._databases: dict[tuple[str, ...], rd.Options] = {}

    def _for_caches(self) -> int:
        return max(MIB, self._memory_bytes - max(self.write_bytes, self.writes.get_usage()))

    def rebalance(self) -> None:
        """Moves cache to where it is missed."""
        self.caches.rebalance(self._for_caches())

    def database(self, specs: Sequence[StoreSpec]) -> rd.Options:
        """The options of a database that has these stores; one object for all its tasks, which count in it together."""
        names = tuple(spec.name for spec in specs)
        with self._lock:
            if names not in self._databases:
                self._databases[names] = self._new_database()
            return self._databases[names]

    def families(self, specs: Sequence[StoreSpec]) -> dict[str, rd.Options]:
        """The options of each store, as its profile and its hook want them."""
        database = self.database(specs)
        return {spec.name: self._family(spec, database) for spec in specs}

    def plain(self) -> rd.Options:
        """Options for a family that nobody asked for."""
        return self._filled(Profile(), self._new_database())

    def _new_database(self) -> rd.Options:
        options = rd.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_write_buffer_manager(self.writes)
        options.set_max_background_jobs(self._disk.background_jobs)
        options.set_use_direct_reads(self._disk.direct_reads)
        options.set_use_direct_io_for_flush_and_compaction(self._disk.direct_writes)
        options.set_max_open_files(1_000)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(MIB)
        options.set_stats_dump_period_sec(0)
        options.enable_statistics()  # three pairs of runs: no dearer than their noise, which was a tenth
        return options

    def _family(self, spec: StoreSpec, database: rd.Options) -> rd.Options:
        chosen = profile(spec.profile)
        table = self._table(chosen, self.caches.cache(spec.name, chosen.cache_weight))
        options = self._filled(chosen, rd.Options(raw_mode=True))
        if spec.options_hook is not None:
            _tuned(spec.options_hook, spec.name, Tunable(options, table, database))
        options.set_block_based_table_factory(table)
        return options

    def _filled(self, chosen: Profile, options: rd.Options) -> rd.Options:
        options.create_if_missing(True)
        options.set_write_buffer_manager(self.writes)
        share = int(self.write_bytes * chosen.write_buffer_share)
        options.set_write_buffer_size(max(MIB, min(chosen.write_buffer_bytes, share)))
        # Three, and flushed one by one. With more, RocksDB slows writes down by sleeping in them. With fewer, they stop
        # as soon as one is being flushed. Several a flush would hang, which `rocksoptions` explains.
        options.set_max_write_buffer_number(3)
        options.set_arena_block_size(_ARENA_BYTES)
        options.set_level_zero_file_num_compaction_trigger(chosen.files_before_compaction)
        # RocksDB slows writes down by sleeping in them, so it isn't to slow down before it stops, where chunks wait in
        # Python. Larger than the other, this number would be taken for it: RocksDB never stops before it slows down.
        options.set_level_zero_slowdown_writes_trigger(chosen.files_before_stop)
        options.set_level_zero_stop_writes_trigger(chosen.files_before_stop)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_compression_type(rd.DBCompressionType.lz4())
        options.set_bottommost_compression_type(_compression(chosen.last_level_compression))
        options.set_optimize_filters_for_hits(not chosen.filter_on_last_level)
        if chosen.compaction == "universal":
            options.set_compaction_style(rd.DBCompactionStyle.universal())
        return options

    @staticmethod
    def _table(chosen: Profile, cache: rd.Cache) -> rd.BlockBasedOptions:
        table = rd.BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_block_size(chosen.block_bytes)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_bloom_filter(chosen.filter_bits, False)
        table.set_format_version(5)
        if chosen.partitioned_index:
            table.set_index_type(rd.BlockBasedIndexType.two_level_index_search())
            table.set_partition_filters(True)
            table.set_metadata_block_size(_METADATA_BYTES)
            table.set_pin_top_level_index_and_filter(True)
        return table


def _compression(name: Compression) -> rd.DBCompressionType:
    return _COMPRESSION[name]()


def _tuned(place: str, store: str, tunable: Tunable) -> None:
    hook = imported(place, f"the RocksDB options of store {store!r}")
    try:
        hook(store, tunable)
    except HoldfastError:
        raise
    except Exception as error:
        raise TopologyError(
            f"{place} failed for store {store!r}: {type(error).__name__}: {error}. It is called with the store's name "
            "and a holdfast.stores.engines.tuning.Tunable; see docs/tuning.md."
        ) from error
