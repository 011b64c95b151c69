"""Profiles: each on the workload it is for, against `balanced` on the same bytes in the same run.

    write-heavy     a store is rewritten at random, a fortieth a version; until its compactions have nothing left to do
    small-memory    a store is filled: MiB that its write buffers took at most, and its indexes and filters want

What counts is the clock, and for `small-memory` the memory held. Processor seconds, with those of RocksDB's own
threads, stand beside it: where the two ratios are far apart, the disk or somebody else had a hand in it. Contenders
take turns, and the middle of several rounds counts. A ratio above 1 means the profile wins its workload.
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
"""Entries a version."""
_TEXT = np.frombuffer(b"a value that looks like others of its kind, more or less....", np.uint8)
_NOISE = 60


@dataclass
class Spent:
    """What was done, and in how many seconds."""

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
    """Cells for these keys: half of each value is noise, half a text that compresses."""
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


def whole(number: int, each: int = VERSION) -> list[Changes]:
    """All keys in no order, a version at a time."""
    order = np.random.default_rng(5).permutation(number)
    return [changes(np.sort(part), n) for n, part in enumerate(np.array_split(order, max(1, number // each)))]


def filled(folder: Path, profile: str, versions: Sequence[Changes]) -> RocksEngine:
    """A store with all its keys, compacted as its profile likes it."""
    engine = opened(folder, profile)
    writer = Writer(engine)
    for change in versions:
        writer.apply(change)
    engine.flush()
    settle(engine)
    return engine


def settle(engine: RocksEngine) -> None:
    """Waits until compactions have nothing left to do."""
    quiet = 0
    while quiet < 5:
        found = engine.properties("bench")
        busy = found["num-running-compactions"] or found["compaction-pending"] or found["num-running-flushes"]
        quiet = 0 if busy else quiet + 1
        time.sleep(0.01)


def rewrite(folder: Path, names: Sequence[str], number: int) -> dict[str, Spent]:
    """Entries rewritten at random, until the compactions they cause are done."""
    first, dice = whole(number), np.random.default_rng(9)
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
    """MiB of write buffers at most while a store is filled, and of the indexes and filters of all its tables."""
    versions = whole(number, 20_000)
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
    """What the tables of a closed store have as index and as filter."""
    db = rd.Rdict(str(folder), rd.Options(raw_mode=True), {"bench": rd.Options(raw_mode=True)})
    text = db.get_column_family("bench").property_value("rocksdb.aggregated-table-properties") or ""
    db.close()
    found = [re.search(rf"{part} block size[^=]*=(\d+)", text) for part in ("index", "filter")]
    return sum(int(each[1]) for each in found if each)


def timed(number: int, rounds: int) -> tuple[list[object], float]:
    """A row of the table, and the ratio by the clock."""
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


def held(number: int) -> tuple[list[object], float]:
    """The same for the memory held, which needs no second round."""
    with scratch("profiles") as folder:
        found = in_memory(folder, ["balanced", "small-memory"], number)
    mine, balanced = found["small-memory"], found["balanced"]
    return ["small-memory", "MiB held", f"{mine:,.1f}", f"{balanced:,.1f}", balanced / mine, "-"], balanced / mine


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
            row, ratio = held(number) if profile == "small-memory" else timed(number, rounds)
            rows.append(row)
            ratios[profile.replace("-", "_")] = ratio
    columns = ["profile", "workload", "it", "balanced", "by the clock", "by processor"]
    show(f"{number:,} keys, {rounds} rounds", columns, rows)
    finish(**ratios, keys=number, quick=given.quick)


if __name__ == "__main__":
    main()
