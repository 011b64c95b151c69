"""A program whose third version meets a stalled RocksDB. Its other threads run meanwhile."""

import random
import sys
import threading
from pathlib import Path

import pyarrow as pa

from holdfast.engines import Tunable
from holdfast.stores.engines import rocksdb
from holdfast.stores.engines.base import Changes, Mark, Resources
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.engines.rocksdb_errors import is_write_stall
from holdfast.words import Version
from tests.stores.making import specs

KEY = pa.array([b"\x01k"])


def stop_early(_store: str, tunable: Tunable) -> None:
    """Writes stop at the second file until it is compacted, which takes about a second for a MiB."""
    tunable.options.set_level_zero_file_num_compaction_trigger(2)
    tunable.options.set_level_zero_slowdown_writes_trigger(2)
    tunable.options.set_level_zero_stop_writes_trigger(2)
    tunable.database.set_ratelimiter(1 << 20, 100_000, 10)


def apply(engine: RocksEngine, version: int) -> None:
    change = Changes(KEY, pa.array([b"v%d" % version + random.Random(version).randbytes(1 << 19)]))
    engine.apply([("a", change)], Mark(Version(version), f"commit-{version}", "log"))


def main(folder: Path) -> None:
    stores = specs(["a"], options_hook="tests.stores.stalled_write:stop_early")
    engine = RocksEngine(folder, stores, Resources(64 << 20))
    for version in (1, 2):
        apply(engine, version)
        engine.flush()
    stalled = threading.Event()

    def seen(error: Exception) -> bool:
        stalled.set()
        return is_write_stall(error)

    rocksdb.is_write_stall = seen  # type: ignore[attr-defined]
    writer = threading.Thread(target=apply, args=(engine, 3))
    writer.start()
    stalled.wait()
    print("other threads run")
    writer.join()
    mark = engine.mark()
    assert mark is not None
    print(engine.get_many("a", KEY)[0].as_py()[:2].decode(), "at version", mark.version)
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
