"""RocksDB uses the options of profiles, settings and hooks: it records its options at each open."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rocksdict as rd

from holdfast.stores.engines.base import Changes, DiskUse, Mark, Resources
from holdfast.stores.engines.profiles import PROFILES, Profile
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.engines.rocksdb_errors import BadOptions, NoDirectIO, translated
from holdfast.stores.engines.rocksdb_options import DATABASE, Sections, written_options
from holdfast.stores.engines.tuning import Tunable
from holdfast.words import Version
from tests.stores.making import specs

MIB = 1 << 20
_COMPRESSION = {"lz4": "kLZ4Compression", "zstd": "kZSTD"}
_STYLE = {"level": "kCompactionStyleLevel", "universal": "kCompactionStyleUniversal"}


def opened(folder: Path, resources: Resources | None = None, **options: Any) -> RocksEngine:
    engine = open_engine("rocksdb", folder, specs(["scores"], **options), resources or Resources(64 * MIB))
    assert isinstance(engine, RocksEngine)
    return engine


def options_of(folder: Path, resources: Resources | None = None, **options: Any) -> Sections:
    opened(folder, resources, **options).close()
    return written_options(folder)


def text_of(value: bool) -> str:
    return str(value).lower()


def expected(profile: Profile) -> tuple[dict[str, str], dict[str, str]]:
    """The options of a family, and of its tables, of a profile in 64 MiB."""
    family = {
        "write_buffer_size": str(int(min(profile.write_buffer_bytes, 16 * MIB * profile.write_buffer_share))),
        "max_write_buffer_number": "3",
        "min_write_buffer_number_to_merge": "1",
        "compaction_style": _STYLE[profile.compaction],
        "level0_file_num_compaction_trigger": str(profile.files_before_compaction),
        "level0_slowdown_writes_trigger": str(profile.files_before_stop),
        "level0_stop_writes_trigger": str(profile.files_before_stop),
        "compression": "kLZ4Compression",
        "bottommost_compression": _COMPRESSION[profile.last_level_compression],
        "optimize_filters_for_hits": text_of(not profile.filter_on_last_level),
    }
    table = {
        "block_size": str(profile.block_bytes),
        "cache_index_and_filter_blocks": "true",
        "pin_l0_filter_and_index_blocks_in_cache": "true",
        "no_block_cache": "false",
        "data_block_index_type": "kDataBlockBinarySearch",
        "index_type": "kTwoLevelIndexSearch" if profile.partitioned_index else "kBinarySearch",
        "partition_filters": text_of(profile.partitioned_index),
    }
    return family, table


@pytest.mark.parametrize("name", PROFILES)
def test_rocksdb_uses_all_options_of_a_profile(tmp_path: Path, name: str) -> None:
    found = options_of(tmp_path, profile=name)
    family, table = expected(PROFILES[name])
    assert {option: found["CFOptions", "scores"][option] for option in family} == family
    assert {option: found["TableOptions/BlockBasedTable", "scores"][option] for option in table} == table


def filter_bytes(folder: Path, profile: str, rows: int = 50_000) -> float:
    """Bytes of filters per key, in a store with one table."""
    engine = opened(folder, profile=profile)
    keys = pa.array([b"\x01%08d" % n for n in range(rows)])
    engine.apply([("scores", Changes(keys, pa.array([b"v"] * rows)))], Mark(Version(1), "c1", "log"))
    engine.close()
    db = rd.Rdict(str(folder), rd.Options(raw_mode=True), {"scores": rd.Options(raw_mode=True)})
    text = db.get_column_family("scores").property_value("rocksdb.aggregated-table-properties") or ""
    db.close()
    return int(text.partition("filter block size=")[2].partition(";")[0]) / rows


def test_filters_have_the_bits_of_their_profile(tmp_path: Path) -> None:
    """The recorded options don't include the size of filters."""
    bits = PROFILES["balanced"].filter_bits
    assert filter_bytes(tmp_path, "balanced") == pytest.approx(bits / 8, rel=0.1)


def test_disk_options_are_those_of_the_database(tmp_path: Path) -> None:
    names = ("max_background_jobs", "use_direct_reads", "use_direct_io_for_flush_and_compaction")
    plain = options_of(tmp_path / "plain")
    assert [plain[DATABASE][name] for name in names] == ["2", "false", "false"]
    disk = DiskUse(background_jobs=6, direct_reads=True, direct_writes=True)
    found = options_of(tmp_path / "direct", Resources(64 * MIB, disk))
    assert [found[DATABASE][name] for name in names] == ["6", "true", "true"]


def test_direct_io_reads_what_it_wrote(tmp_path: Path) -> None:
    disk = DiskUse(direct_reads=True, direct_writes=True)
    keys, values = pa.array([b"\x01%05d" % n for n in range(5_000)]), pa.array([b"%050d" % n for n in range(5_000)])
    engine = opened(tmp_path, Resources(64 * MIB, disk))
    engine.apply([("scores", Changes(keys, values))], Mark(Version(1), "c1", "log"))
    engine.close()
    engine = opened(tmp_path, Resources(64 * MIB, disk))
    assert engine.get_many("scores", keys).equals(values)
    assert len(list(engine.view().scan("scores", b"", None))) == 5_000
    engine.close()


def test_a_file_system_without_direct_io_is_not_reported_as_damage(tmp_path: Path) -> None:
    """RocksDB's message on a ramfs, which only root can make."""
    with pytest.raises(NoDirectIO, match=r"state\.direct_reads"), translated(tmp_path, opening=True):
        raise Exception("Invalid argument: Direct I/O is not supported by the specified DB.")


def many(store: str, rocks: Tunable) -> None:
    """Options of each kind that docs/tuning.md says a hook can set."""
    rocks.options.set_write_buffer_size(3 * MIB)
    rocks.options.set_compression_type(rd.DBCompressionType.zstd())
    rocks.options.set_compaction_style(rd.DBCompactionStyle.universal())
    rocks.options.set_max_bytes_for_level_base(99 * MIB)
    rocks.table.set_block_size(8_192)
    rocks.table.set_cache_index_and_filter_blocks(False)
    rocks.table.set_block_cache(rd.Cache(5 * MIB))
    rocks.database.set_max_background_jobs(4)
    rocks.database.set_use_direct_reads(True)


def test_rocksdb_uses_the_options_that_a_hook_sets(tmp_path: Path) -> None:
    engine = opened(tmp_path, options_hook="tests.stores.engines.test_rocksdb_options:many")
    found = written_options(tmp_path)
    family, table = found["CFOptions", "scores"], found["TableOptions/BlockBasedTable", "scores"]
    assert (family["write_buffer_size"], family["max_bytes_for_level_base"]) == (str(3 * MIB), str(99 * MIB))
    assert (family["compression"], family["compaction_style"]) == ("kZSTD", "kCompactionStyleUniversal")
    assert (table["block_size"], table["cache_index_and_filter_blocks"]) == ("8192", "false")
    assert (found[DATABASE]["max_background_jobs"], found[DATABASE]["use_direct_reads"]) == ("4", "true")
    assert engine.properties("scores")["block-cache-capacity"] == 5 * MIB
    engine.close()


def merges(store: str, rocks: Tunable) -> None:
    rocks.options.set_max_write_buffer_number(4)
    rocks.options.set_min_write_buffer_number_to_merge(2)


def fifo(store: str, rocks: Tunable) -> None:
    rocks.options.set_compaction_style(rd.DBCompactionStyle.fifo())
    rocks.database.set_max_open_files(-1)


def fifo_rejected_by_rocksdb(store: str, rocks: Tunable) -> None:
    rocks.options.set_compaction_style(rd.DBCompactionStyle.fifo())


def in_place(store: str, rocks: Tunable) -> None:
    rocks.options.set_inplace_update_support(True)
    rocks.database.set_allow_concurrent_memtable_write(False)


def prefixed(store: str, rocks: Tunable) -> None:
    rocks.options.set_prefix_extractor(rd.SliceTransform.create_fixed_prefix(3))


def unordered(store: str, rocks: Tunable) -> None:
    rocks.database.set_unordered_write(True)


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ("merges", "min_write_buffer_number_to_merge=2 of store 'scores': .*Fix the hook"),
        ("fifo", "compaction_style=kCompactionStyleFIFO of store 'scores'"),
        ("fifo_rejected_by_rocksdb", "Not implemented: FIFO .*Fix the hook"),  # RocksDB's own error
        ("in_place", "inplace_update_support=true of store 'scores'"),
        ("prefixed", "prefix_extractor=.* of store 'scores'"),
        ("unordered", "unordered_write=true: views"),
    ],
)
def test_options_that_break_an_engine_are_rejected(tmp_path: Path, hook: str, says: str) -> None:
    engine = opened(tmp_path)
    engine.apply([("scores", Changes(pa.array([b"\x01a"]), pa.array([b"1"])))], Mark(Version(1), "c1", "log"))
    engine.close()
    with pytest.raises(BadOptions, match=says):
        opened(tmp_path, options_hook=f"tests.stores.engines.test_rocksdb_options:{hook}")
    engine = opened(tmp_path)  # the state is unchanged and can be opened
    assert engine.get_many("scores", pa.array([b"\x01a"])).to_pylist() == [b"1"]
    engine.close()


def two(store: str, rocks: Tunable) -> None:
    rocks.options.set_max_write_buffer_number(2)


def test_two_write_buffers_work(tmp_path: Path) -> None:
    engine = opened(tmp_path, Resources(4 * MIB), options_hook="tests.stores.engines.test_rocksdb_options:two")
    keys = pa.array([b"\x01%06d" % n for n in range(20_000)])
    for version in range(1, 11):
        change = Changes(keys, pa.array([b"%0100d" % version] * len(keys)))
        engine.apply([("scores", change)], Mark(Version(version), f"c{version}", "log"))
        engine.flush()
    assert set(engine.get_many("scores", keys).to_pylist()) == {b"%0100d" % 10}
    engine.close()
