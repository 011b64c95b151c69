"""Profiles: each on its own workload, against `balanced` on the same bytes in the same run.

    write-heavy     rewrites a store at random, a fortieth per version, until all compactions are done
    small-memory    fills a store: the most memory of its write buffers, plus that of its indexes and filters

`write-heavy` is measured by the clock, `small-memory` by its memory. Processor seconds include RocksDB's own threads:
if their ratio differs much from that of the clock, the disk or other processes influenced the run. Contenders take
turns, and the result is the median of several rounds. A ratio above 1 means the profile wins.
"""

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rocksdict as rd

from benchmarks.common import finish, median, scratch, show
from holdfast.stores.engines.base import Changes, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.engines.rocksdb import RocksEngine
from holdfast.stores.formats.cells import pack_many
from holdfast.stores.formats.keys import encode_keys
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import StoreSpec
from holdfast.words import Version

KEY = Schema.of(key="bigint")
MIB = 1 << 20
MEMORY = 64 * MIB
VERSION = 50_000
"""Entries per version."""
_TEXT = np.frombuffer(b"a value that looks like others of its kind, more or less....", np.uint8)
_NOISE = 60


@dataclass
class Spent:
    """The number of operations, and their seconds."""

    done: int = 0
    clock: float = 0.0
    processor: float = 0.0

    @contextmanager
    def measuring(self, done: int) -> Iterator[None]:
        clock, processor = time.perf_counter(), time.process_time()
        yield
        self.clock += time.perf_counter() - clock
        self.processor += time.process_time() - processor
        self.done += done


def opened(folder: Path, profile: str, memory: int = MEMORY) -> RocksEngine:
    spec = StoreSpec(name="bench", key=KEY, codec="bytes/1", profile=profile)
    engine = open_engine("rocksdb", folder, [spec], Resources(memory))
    assert isinstance(engine, RocksEngine)
    return engine


def changes(ids: npt.NDArray[np.int64], seed: int) -> Changes:
    """Cells for these keys: half of each value is random, half is a text that compresses."""
    values = np.empty((len(ids), _NOISE + len(_TEXT)), np.uint8)
    values[:, :_NOISE] = np.random.default_rng(seed).integers(0, 256, (len(ids), _NOISE), np.uint8)
    values[:, _NOISE:] = _TEXT
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(values.shape[1]), len(ids), [None, pa.py_buffer(values)])
    return Changes(encode_keys(KEY, [pa.array(ids)]), pack_many(fixed.cast(pa.binary())))


class Writer:
    """Versions for one engine, one after the other."""

    def __init__(self, engine: RocksEngine, version: int = 0) -> None:
        self._engine = engine
        self._version = version

    def apply(self, change: Changes) -> None:
        self._version += 1
        self._engine.apply([("bench", change)], Mark(Version(self._version), f"c{self._version}", "log"))


def all_keys(number: int, per_version: int = VERSION) -> list[Changes]:
    """All keys in random order, as versions."""
    order = np.random.default_rng(5).permutation(number)
    return [changes(np.sort(part), n) for n, part in enumerate(np.array_split(order, max(1, number // per_version)))]


def filled(folder: Path, profile: str, versions: Sequence[Changes]) -> RocksEngine:
    """A store with all its keys, after its compactions."""
    engine = opened(folder, profile)
    writer = Writer(engine)
    for change in versions:
        writer.apply(change)
    engine.flush()
    settle(engine)
    return engine


def settle(engine: RocksEngine) -> None:
    """Waits until all compactions are done."""
    quiet = 0
    while quiet < 5:
        found = engine.properties("bench")
        busy = found["num-running-compactions"] or found["compaction-pending"] or found["num-running-flushes"]
        quiet = 0 if busy else quiet + 1
        time.sleep(0.01)


def rewrite(folder: Path, names: Sequence[str], number: int) -> dict[str, Spent]:
    """Rewrites entries at random and waits for the compactions."""
    first, dice = all_keys(number), np.random.default_rng(9)
    versions = [changes(np.unique(dice.integers(0, number, number // 40)), n) for n in range(60)]
    found = {name: Spent() for name in names}
    for name, spent in found.items():
        engine = filled(folder / name, name, first)
        writer = Writer(engine, 1_000)
        with spent.measuring(sum(map(len, versions))):
            for change in versions:
                writer.apply(change)
            engine.flush()
            settle(engine)
        engine.close()
    return found


def in_memory(folder: Path, names: Sequence[str], number: int) -> dict[str, float]:
    """MiB: the most write buffers while a store is filled, plus the indexes and filters of all its tables."""
    versions = all_keys(number, 20_000)
    found: dict[str, float] = {}
    for name in names:
        engine = opened(folder / name, name)
        writer = Writer(engine)
        buffers = 0
        for change in versions:
            writer.apply(change)
            buffers = max(buffers, engine.properties("bench")["cur-size-all-mem-tables"])
        engine.flush()
        settle(engine)
        engine.close()
        found[name] = (buffers + lookup_bytes(folder / name)) / MIB
    return found


def lookup_bytes(folder: Path) -> int:
    """The size of the indexes and filters in the tables of a closed store."""
    db = rd.Rdict(str(folder), rd.Options(raw_mode=True), {"bench": rd.Options(raw_mode=True)})
    text = db.get_column_family("bench").property_value("rocksdb.aggregated-table-properties") or ""
    db.close()
    found = [re.search(rf"{part} block size[^=]*=(\d+)", text) for part in ("index", "filter")]
    return sum(int(each[1]) for each in found if each)


def timed(number: int, rounds: int) -> tuple[list[object], float]:
    """The table row of `write-heavy`, and its ratio by the clock."""
    rates: dict[str, list[float]] = {"balanced": [], "write-heavy": []}
    processor: dict[str, list[float]] = {"balanced": [], "write-heavy": []}
    for n in range(rounds):
        with scratch("profiles") as folder:
            for name, spent in rewrite(folder, sorted(rates, reverse=bool(n % 2)), number).items():
                rates[name].append(spent.done / spent.clock)
                processor[name].append(spent.done / spent.processor)
    mine, balanced = median(rates["write-heavy"]), median(rates["balanced"])
    by_processor = median(processor["write-heavy"]) / median(processor["balanced"])
    ratio = mine / balanced
    return ["write-heavy", "entries/s rewritten", f"{mine:,.0f}", f"{balanced:,.0f}", ratio, by_processor], ratio


def memory_used(number: int) -> tuple[list[object], float]:
    """The table row of `small-memory`, and its ratio. Memory needs no second round."""
    with scratch("profiles") as folder:
        found = in_memory(folder, ["balanced", "small-memory"], number)
    mine, balanced = found["small-memory"], found["balanced"]
    return ["small-memory", "MiB used", f"{mine:,.1f}", f"{balanced:,.1f}", balanced / mine, "-"], balanced / mine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer keys and rounds")
    parser.add_argument("--only", help="one profile")
    given = parser.parse_args()
    number, rounds = (400_000, 3) if given.quick else (1_000_000, 5)
    rows: list[list[object]] = []
    ratios: dict[str, float] = {}
    for profile in ("write-heavy", "small-memory"):
        if given.only in (None, profile):
            row, ratio = memory_used(number) if profile == "small-memory" else timed(number, rounds)
            rows.append(row)
            ratios[profile.replace("-", "_")] = ratio
    columns = ["profile", "workload", "profile's", "balanced's", "ratio by clock", "by processor"]
    show(f"{number:,} keys, {rounds} rounds", columns, rows)
    finish(**ratios, keys=number, quick=given.quick)


if __name__ == "__main__":
    main()
