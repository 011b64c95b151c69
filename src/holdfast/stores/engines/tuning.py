"""Profiles as RocksDB options, within one memory budget per process.

    three quarters      block caches, one per store, with the indexes and filters of its files (`cache_budget`)
    one quarter         write buffers of all stores; beyond it the oldest are flushed

Write buffers may exceed their quarter while they are being flushed; meanwhile the caches are smaller by as much.

A user's hook, `module:function`, is called before each open with the store's name and a `Tunable`. It is called last,
so its options win. Kafka Streams calls it a RocksDBConfigSetter.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import rocksdict as rd

from holdfast.errors import USER_ERRORS, HoldfastError, TopologyError
from holdfast.stores.engines.base import DiskUse
from holdfast.stores.engines.cache_budget import CacheBudget
from holdfast.stores.engines.open_files import FileShare
from holdfast.stores.engines.profiles import MIB, Compression, Profile, profile
from holdfast.stores.places import imported
from holdfast.stores.spec import StoreSpec

_COMPRESSION: dict[Compression, Callable[[], rd.DBCompressionType]] = {
    "lz4": rd.DBCompressionType.lz4,
    "zstd": rd.DBCompressionType.zstd,
}
_ARENA_BYTES = 256 * 1024
_METADATA_BYTES = 4 * 1024
_MARKS_BYTES = 64 * 1024


@dataclass(frozen=True)
class Tunable:
    """rocksdict's objects that a user's hook may change. They have the profile's values.

    `options` are the store's; `table` has its blocks, filters and cache. `database` has the options that RocksDB has
    once per database (background jobs, direct I/O, open files); all stores of a task share it.
    """

    options: rd.Options
    table: rd.BlockBasedOptions
    database: rd.Options


class Tuning:
    """The caches and the write-buffer budget of one process, and the options of its databases."""

    def __init__(
        self, memory_bytes: int, disk: DiskUse | None = None, files: Callable[[], FileShare] = FileShare
    ) -> None:
        """`files` says how many files a database that is opened now may have open."""
        self._memory_bytes = memory_bytes
        self._disk = disk or DiskUse()
        self.files = files
        self.write_bytes = max(MIB, memory_bytes // 4)
        self.writes = rd.WriteBufferManager(self.write_bytes, False)
        self.caches: CacheBudget[rd.Cache] = CacheBudget(self._cache_bytes(), rd.Cache)
        self._lock = threading.Lock()
        self._databases: dict[tuple[str, ...], rd.Options] = {}
        self.marks = self._for_marks()
        """The options of a database's default family, which has one entry."""

    def _cache_bytes(self) -> int:
        return max(MIB, self._memory_bytes - max(self.write_bytes, self.writes.get_usage()))

    def rebalance(self) -> None:
        self.caches.rebalance(self._cache_bytes())

    def database(self, specs: Sequence[StoreSpec]) -> rd.Options:
        """The options of a database with these stores. All its tasks share one object, and so one set of counters."""
        names = tuple(spec.name for spec in specs)
        with self._lock:
            if names not in self._databases:
                self._databases[names] = self._new_database()
            found, files = self._databases[names], self.files()
        found.set_max_open_files(files.cached)
        found.set_table_cache_num_shard_bits(files.cache_shards)
        return found

    def families(self, specs: Sequence[StoreSpec]) -> dict[str, rd.Options]:
        """The options of each store, from its profile and its hook."""
        database = self.database(specs)
        return {spec.name: self._family(spec, database, len(specs)) for spec in specs}

    def plain(self) -> rd.Options:
        """Options for a family that is no longer a store."""
        return self._filled(Profile(), self._new_database(), 1)

    def _new_database(self) -> rd.Options:
        options = rd.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_write_buffer_manager(self.writes)
        options.set_max_background_jobs(self._disk.background_jobs)
        options.set_use_direct_reads(self._disk.direct_reads)
        options.set_use_direct_io_for_flush_and_compaction(self._disk.direct_writes)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(MIB)
        options.set_stats_dump_period_sec(0)
        options.enable_statistics()  # no measurable cost: three pairs of runs differed by less than their noise of 10%
        return options

    def _for_marks(self) -> rd.Options:
        options = rd.Options(raw_mode=True)
        options.set_write_buffer_manager(self.writes)
        options.set_write_buffer_size(_MARKS_BYTES)
        options.set_arena_block_size(_METADATA_BYTES)
        table = rd.BlockBasedOptions()
        table.disable_cache()
        options.set_block_based_table_factory(table)
        return options

    def _family(self, spec: StoreSpec, database: rd.Options, stores: int) -> rd.Options:
        chosen = profile(spec.profile)
        table = self._table(chosen, self.caches.cache(spec.name, chosen.cache_weight))
        options = self._filled(chosen, rd.Options(raw_mode=True), stores)
        if spec.options_hook is not None:
            _call_hook(spec.options_hook, spec.name, Tunable(options, table, database))
        options.set_block_based_table_factory(table)
        return options

    def _filled(self, chosen: Profile, options: rd.Options, stores: int) -> rd.Options:
        files, wanted = self.files(), chosen.files_before_compaction
        merged = files.before_merge(wanted, stores)
        stop = files.before_stop(chosen.files_before_stop, merged, wanted)
        options.create_if_missing(True)
        options.set_write_buffer_manager(self.writes)
        share = int(self.write_bytes * chosen.write_buffer_share)
        options.set_write_buffer_size(max(MIB, min(chosen.write_buffer_bytes, share)))
        # Three buffers, flushed one by one. With more, RocksDB delays writes by sleeping in them. With fewer, writes
        # stop as soon as one buffer is being flushed. Merging several per flush hangs (see `rocksdb_options`).
        options.set_max_write_buffer_number(3)
        options.set_arena_block_size(_ARENA_BYTES)
        options.set_level_zero_file_num_compaction_trigger(merged)
        # Both triggers are equal, so RocksDB never sleeps in a write: when it would, writes are stopped, and chunks
        # wait in Python. A larger slowdown trigger would also raise the stop trigger.
        options.set_level_zero_slowdown_writes_trigger(stop)
        options.set_level_zero_stop_writes_trigger(stop)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_compression_type(rd.DBCompressionType.lz4())
        options.set_bottommost_compression_type(_COMPRESSION[chosen.last_level_compression]())
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


def _call_hook(place: str, store: str, tunable: Tunable) -> None:
    hook = imported(place, f"the RocksDB options of store {store!r}")
    try:
        hook(store, tunable)
    except HoldfastError:
        raise
    except USER_ERRORS as error:
        raise TopologyError(
            f"{place} failed for store {store!r}: {type(error).__name__}: {error}. It is called with the store's name "
            "and a holdfast.engines.Tunable; see docs/tuning.md."
        ) from error
