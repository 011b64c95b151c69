"""Retention: the time to drop a slice of an hour, and how much it delays readers of another slice.

A window store on RocksDB has two slices. One is dropped with a range delete and compacted in the background, while a
reader looks up keys of the other slice. The comparison is to delete the same entries one by one.
"""

import argparse
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.progress import track

from benchmarks.common import console, finish, scratch, show
from holdfast.stores.engines.base import Changes, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.types import Schema
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

SPEC = StoreSpec(name="windows", kind="window", key=Schema.of(key="bigint"), codec="bytes/1", slice_ms=3_600_000)
MIB = 1 << 20
CHUNK = 100_000
_VALUES = [np.random.default_rng(n).bytes(40) for n in range(1_000)]


def keys_of(slice_: int, first: int, number: int) -> list[bytes]:
    head = slice_prefix(slice_) + b"\x01"
    return [head + n.to_bytes(8, "big") for n in range(first, first + number)]


class Store:
    """The engine of one task."""

    def __init__(self, folder: Path) -> None:
        engine = open_engine("rocksdb", folder, [SPEC], Resources(128 * MIB))
        assert isinstance(engine, RocksEngine)
        self.engine = engine
        self._version = 0

    def apply(self, keys: list[bytes], values: list[bytes] | None) -> None:
        self._version += 1
        cells = pa.nulls(len(keys), pa.binary()) if values is None else pack_many(pa.array(values, pa.binary()))
        mark = Mark(Version(self._version), f"c{self._version}", "log")
        self.engine.apply([("windows", Changes(pa.array(keys, pa.binary()), cells))], mark)

    def fill(self, slice_: int, entries: int) -> None:
        values = [_VALUES[n % len(_VALUES)] for n in range(CHUNK)]
        for first in track(range(0, entries, CHUNK), description=f"slice {slice_}", console=console, transient=True):
            self.apply(keys_of(slice_, first, CHUNK), values)


class Reader(threading.Thread):
    """Looks up one key after the other in the slice that isn't dropped."""

    def __init__(self, engine: RocksEngine, slice_: int, entries: int) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.seconds: list[float] = []
        self._engine, self._slice, self._entries = engine, slice_, entries
        self._dice = np.random.default_rng(4)

    def run(self) -> None:
        while not self.stopped.wait(0.0005):
            key = keys_of(self._slice, int(self._dice.integers(0, self._entries)), 1)
            began = time.perf_counter()
            found = self._engine.get_many("windows", pa.array(key))
            self.seconds.append(time.perf_counter() - began)
            assert found.null_count == 0

    def p99(self) -> float:
        self.stopped.set()
        self.join()
        return float(np.percentile(self.seconds, 99)) * 1_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a fifth of the entries")
    quick = parser.parse_args().quick
    entries, live = (1_000_000, 200_000) if quick else (5_000_000, 500_000)
    with scratch("retention") as folder:
        store = Store(folder / "state")
        store.fill(1, entries)
        store.fill(2, live)
        store.engine.flush()
        disk = store.engine.disk_bytes()

        quiet = Reader(store.engine, 2, live)
        quiet.start()
        time.sleep(2)
        before = quiet.p99()

        reader = Reader(store.engine, 2, live)
        reader.start()
        began = time.perf_counter()
        dropped = slice_prefix(1), slice_prefix(2)
        store.engine.drop("windows", *dropped)
        drop_ms = (time.perf_counter() - began) * 1_000
        assert next(store.engine.view().scan("windows", *dropped), None) is None
        store.engine.wait_until_reclaimed()
        reclaimed = time.perf_counter() - began
        during = reader.p99()
        left = store.engine.disk_bytes()

        # The comparison: a tenth of the live slice is deleted row by row, and the time extrapolated.
        tenth = live // 10 // CHUNK * CHUNK or live // 10
        began = time.perf_counter()
        store.apply(keys_of(2, 0, tenth), None)
        row_by_row_ms = (time.perf_counter() - began) * 1_000 * entries / tenth
        store.engine.close()
    show(
        f"a slice of {entries:,} entries, and another one of {live:,}",
        ["what", "figure"],
        [
            ["drop, ms", drop_ms],
            ["deletion row by row (extrapolated), ms", row_by_row_ms],
            ["until its disk space was free, s", reclaimed],
            ["disk before and after, MiB", f"{disk / MIB:,.0f}, {left / MIB:,.0f}"],
            ["concurrent lookup, p99 ms", during],
            ["lookup without a drop, p99 ms", before],
        ],
    )
    finish(
        drop_ms=drop_ms,
        read_p99_ms=during,
        quiet_read_p99_ms=before,
        reclaim_s=reclaimed,
        row_by_row_ms=row_by_row_ms,
        entries=entries,
        quick=quick,
    )


if __name__ == "__main__":
    main()
