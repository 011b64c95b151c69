"""Profiles: each on the workload it is for, against `balanced` on the same bytes in the same run.

    write-heavy     every version rewrites a part of a store at random, until compactions have settled; entries a second
    read-heavy      bulk lookups in a store larger than its cache, which is written to now and then; keys a second
    small-memory    a store that is written: MiB its write buffers took, and its indexes and filters want
    bulk-load       a store that is filled once, in no order; entries a second

Seconds are processor seconds, those of RocksDB's own threads among them where they belong to the work: this is what a
store leaves for the others. Contenders take turns, and the middle of several rounds counts. A ratio above 1 means the
profile wins its workload.
"""

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rocksdict as rd

from benchmarks.common import finish, median, scratch, show
from holdfast.stores.cells import pack_many
from holdfast.stores.engine import Changes, Mark, Resources
from holdfast.stores.keys import encode_keys
from holdfast.stores.registry import open_engine
from holdfast.stores.rocksdb import RocksEngine
from holdfast.stores.spec import StoreSpec
from holdfast.stores.types import Schema
from holdfast.words import Version

KEY = Schema.of(key="bigint")
MIB = 1 << 20
VALUE = 120
_POOL = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()


def spec(profile: str) -> StoreSpec:
    return StoreSpec(name="bench", key=KEY, codec="bytes/1", profile=profile)


def opened(folder: Path, profile: str, memory: int) -> RocksEngine:
    engine = open_engine("rocksdb", folder, [spec(profile)], Resources(memory))
    assert isinstance(engine, RocksEngine)
    return engine


def changes(keys: npt.NDArray[np.int64], seed: int) -> Changes:
    """Cells for these keys: half of each value is noise, half a text that compresses."""
    starts = np.random.default_rng(seed).integers(0, len(_POOL) - VALUE, len(keys))
    text = b"a value that looks like others of its kind, more or less...."
    values = [_POOL[at : at + VALUE // 2] + text for at in starts.tolist()]
    return Changes(encode_keys(KEY, [pa.array(keys)]), pack_many(pa.array(values, pa.binary())))


class Writer:
    """Versions for one engine, one after the other."""

    def __init__(self, engine: RocksEngine, version: int = 0) -> None:
        self._engine = engine
        self._version = version

    def apply(self, change: Changes) -> None:
        self._version += 1
        self._engine.apply([("bench", change)], Mark(Version(self._version), f"c{self._version}", "log"))


def filled(folder: Path, profile: str, memory: int, keys: int) -> RocksEngine:
    """A store with all its keys, compacted as its profile likes it."""
    engine = opened(folder, profile, memory)
    writer = Writer(engine)
    order = np.random.default_rng(5).permutation(keys)
    for n, part in enumerate(np.array_split(order, max(1, keys // 50_000))):
        writer.apply(changes(np.sort(part), n))
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
        time.sleep(0.05)


def rewrite(folder: Path, profile: str, keys: int) -> float:
    """Entries a second while a store is rewritten at random, a part a version."""
    engine = filled(folder, profile, 64 * MIB, keys)
    dice = np.random.default_rng(9)
    versions = [changes(np.unique(dice.integers(0, keys, keys // 20)), n) for n in range(40)]
    writer = Writer(engine, 1_000)
    began = time.process_time()
    for change in versions:
        writer.apply(change)
    engine.flush()
    settle(engine)
    seconds = time.process_time() - began
    engine.close()
    return sum(map(len, versions)) / seconds


def load(folder: Path, profile: str, keys: int) -> float:
    """Entries a second while a store is filled once, in no order."""
    order = np.random.default_rng(5).permutation(keys)
    versions = [changes(part, n) for n, part in enumerate(np.array_split(order, max(1, keys // 50_000)))]
    engine = opened(folder, profile, 64 * MIB)
    writer = Writer(engine)
    began = time.process_time()
    for change in versions:
        writer.apply(change)
    engine.flush()
    settle(engine)
    seconds = time.process_time() - began
    engine.close()
    return keys / seconds


def look_up(folder: Path, names: Sequence[str], keys: int) -> dict[str, float]:
    """Keys a second in bulk lookups, sorted, as tasks make them, with a version applied now and then.

    All contenders are asked the same in turn; the seconds are those of the thread that asks.
    """
    engines: dict[str, RocksEngine] = {}
    for name in names:
        filled(folder / name, name, 64 * MIB, keys).close()
        engines[name] = opened(folder / name, name, 32 * MIB)
    writers = {name: Writer(engine, 1_000) for name, engine in engines.items()}
    dice = np.random.default_rng(11)
    seen: dict[str, list[float]] = {name: [] for name in names}
    for n in range(16):
        changed = changes(np.unique(dice.integers(0, keys, keys // 20)), n)
        asked = [encode_keys(KEY, [pa.array(np.unique(dice.integers(0, keys, 5_000)))]) for _ in range(6)]
        for name in names if n % 2 else reversed(names):
            writers[name].apply(changed)
            engines[name].flush()
            began = time.thread_time()
            for each in asked:
                assert engines[name].get_many("bench", each).null_count == 0
            seen[name].append(sum(map(len, asked)) / (time.thread_time() - began))
    for engine in engines.values():
        engine.close()
    return {name: median(figures) for name, figures in seen.items()}


def in_memory(folder: Path, profile: str, keys: int) -> float:
    """MiB of write buffers at most while a store is filled, and of the indexes and filters of all its tables."""
    engine = opened(folder, profile, 64 * MIB)
    writer = Writer(engine)
    buffers = 0
    for n, part in enumerate(np.array_split(np.random.default_rng(5).permutation(keys), max(1, keys // 20_000))):
        writer.apply(changes(part, n))
        buffers = max(buffers, engine.properties("bench")["cur-size-all-mem-tables"])
    engine.flush()
    settle(engine)
    engine.close()
    return (buffers + lookup_bytes(folder)) / MIB


def lookup_bytes(folder: Path) -> int:
    """What the tables of a closed store have as index and as filter."""
    db = rd.Rdict(str(folder), rd.Options(raw_mode=True), {"bench": rd.Options(raw_mode=True)})
    text = db.get_column_family("bench").property_value("rocksdb.aggregated-table-properties") or ""
    db.close()
    found = [re.search(rf"{part} block size[^=]*=(\d+)", text) for part in ("index", "filter")]
    return sum(int(each[1]) for each in found if each)


@dataclass(frozen=True)
class Workload:
    profile: str
    about: str
    run: Callable[[Path, Sequence[str]], dict[str, float]]


def in_turn(run: Callable[[Path, str], float]) -> Callable[[Path, Sequence[str]], dict[str, float]]:
    """A workload for which each contender has the machine to itself."""
    return lambda folder, names: {name: run(folder / name, name) for name in names}


def workloads(keys: int) -> list[Workload]:
    return [
        Workload("write-heavy", "entries/s rewritten", in_turn(lambda folder, name: rewrite(folder, name, keys))),
        Workload("read-heavy", "keys/s looked up", lambda folder, names: look_up(folder, names, keys)),
        Workload(
            "small-memory", "stores in a GiB", in_turn(lambda folder, name: 1_024 / in_memory(folder, name, keys))
        ),
        Workload("bulk-load", "entries/s loaded", in_turn(lambda folder, name: load(folder, name, keys))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a fifth of the keys, one round")
    parser.add_argument("--only", help="one profile")
    given = parser.parse_args()
    keys, rounds = (400_000, 1) if given.quick else (2_000_000, 3)
    rows: list[list[object]] = []
    ratios: dict[str, float] = {}
    for workload in workloads(keys):
        if given.only not in (None, workload.profile):
            continue
        seen: dict[str, list[float]] = {"balanced": [], workload.profile: []}
        for n in range(rounds):
            with scratch("profiles") as folder:
                for name, figure in workload.run(folder, sorted(seen, reverse=bool(n % 2))).items():
                    seen[name].append(figure)
        mine, balanced = median(seen[workload.profile]), median(seen["balanced"])
        ratios[workload.profile.replace("-", "_")] = mine / balanced
        rows.append([workload.profile, workload.about, f"{mine:,.0f}", f"{balanced:,.0f}", mine / balanced])
    show(f"{keys:,} keys, {rounds} rounds", ["profile", "workload", "it", "balanced", "ratio"], rows)
    finish(**ratios, keys=keys, quick=given.quick)


if __name__ == "__main__":
    main()
