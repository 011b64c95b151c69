"""Stores through their typed views against raw rocksdict with the same bytes, in the same run.

    put          entries set by key, collected as a task does, and written in sorted batches
    get          one key after the other
    multi-get    a thousand keys per call
    window       the last 60 windows of one key; "bounded" compares with a raw read in one call, with an upper bound
    session      an event merged into its key's session: one range read, one entry written
    scan         every entry, in order

"raw" is rocksdict with encoded keys and cells, and without decoding. The store uses the same rocksdict, so that the
difference is the store itself. Two more contenders show the costs around it. "by hand" is rocksdict with the few lines
of encoding and decoding that a user without stores would write. "on the engine" is the store on the engine of an
instance, which reads and writes Arrow columns, has views, and checks for damaged blocks. The databases of the first
three have the same options. The order of the contenders alternates, and the results are medians.
"""

import argparse
import gc
import random
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import rocksdict as rd

import holdfast as hf
from benchmarks.common import finish, median, scratch, show
from holdfast.stores.engines.base import Changes, Mark, Resources
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.formats.times import time_bytes
from holdfast.stores.formats.typed_keys import beginning_encoder
from holdfast.stores.kinds import view_of
from holdfast.stores.kinds.base import Store
from holdfast.stores.layouts.slices import slice_prefix
from holdfast.testing.stores import EngineBytes
from holdfast.words import Version

BATCH = 1_000
WINDOWS = 60
MINUTE = 60_000
START = 1_700_000_000_000
NOW = hf.Now(wall=START + WINDOWS * MINUTE, event=START + WINDOWS * MINUTE)


class Player(msgspec.Struct):
    name: str
    games: int
    best: float


class Database:
    """A RocksDB database as ordered bytes. Writes wait for `flush`, as those of a task wait for the version's end."""

    def __init__(self, folder: Path) -> None:
        options = rd.Options(raw_mode=True)
        options.create_if_missing(True)
        self.db = rd.Rdict(str(folder), options)
        self._write = rd.WriteOptions()
        self._write.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub is wrong: an attribute
        self.changes: dict[bytes, bytes | None] = {}
        self._stops: dict[bytes, bytes] = {}
        """The upper bounds of scans, kept because rocksdict reads these bytes while it iterates."""

    def get(self, key: bytes) -> bytes | None:
        if key in self.changes:
            return self.changes[key]
        found: bytes | None = self.db.get(key)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], self.db.get(cast(Any, keys)))

    def scan(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        bounds = rd.ReadOptions()
        if stop is not None:
            bounds.set_iterate_upper_bound(self._stops.setdefault(stop, stop))
        return self.db.items(from_key=start, read_opt=bounds)  # type: ignore[return-value]

    def raw_scan(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """A range scan as a user of rocksdict writes it."""
        found = []
        for key, value in cast(Any, self.db.items(from_key=start)):
            if key >= stop:
                break
            found.append((key, value))
        return found

    def approximate_count(self) -> int:
        return 0

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.changes.update(zip(keys, values, strict=True))

    def delete(self, key: bytes) -> None:
        self.changes[key] = None

    def hold(self, entries: int, size: int) -> None:
        """Does nothing: this database has no limit."""

    def flush(self) -> None:
        self.write(self.changes)
        self.changes = {}

    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """Writes sorted batches."""
        keys = sorted(changes)
        for start in range(0, len(keys), BATCH):
            batch = rd.WriteBatch(raw_mode=True)
            for key in keys[start : start + BATCH]:
                value = changes[key]
                if value is None:
                    del batch[key]
                else:
                    batch[key] = value
            self.db.write(batch, self._write)

    def settle(self) -> None:
        """Flushes and compacts to one level, so that all contenders read the same structure."""
        self.db.flush()
        self.db.compact_range(None, None)


class OnEngine:
    """A store's bytes in the engine of an instance, and a view of them."""

    def __init__(self, folder: Path, store: Store[Any, Any]) -> None:
        spec = store.spec()
        self.name, self.version = spec.name, 0
        self.engine = open_engine("rocksdb", folder, [spec], Resources(512 << 20))

    def apply(self, entries: Mapping[bytes, bytes]) -> None:
        keys, values = pa.array(list(entries), pa.binary()), pa.array(list(entries.values()), pa.binary())
        self.version += 1
        mark = Mark(Version(self.version), f"c{self.version}", "log")
        self.engine.apply([(self.name, Changes(keys, values))], mark)

    def reading(self) -> EngineBytes:
        """The current entries, after a flush and compaction to one level."""
        self.engine.flush()
        self.engine._families[self.name].compact_range(None, None)  # type: ignore[attr-defined]  # as `settle` does
        return EngineBytes(self.engine, self.engine.view(), self.name)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Points:
    """A key-value store of players."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.entries = entries
        self.names = [f"player-{n:07d}" for n in range(entries)]
        self.players = [Player(name, n, n / 3) for n, name in enumerate(self.names)]
        self.asked = random.Random(7).sample(self.names, min(entries, 50_000))
        self.typed, self.raw = Database(folder / "typed"), Database(folder / "raw")
        self.store = hf.KeyValueStore("players", value=Player).bind(self.typed, NOW)
        self.store.update(zip(self.names[:1], self.players[:1], strict=True))
        cells = hf.KeyValueStore("players", value=Player).bind(collected := Database(folder / "bytes"), NOW)
        cells.update(zip(self.names, self.players, strict=True))
        self.bytes = dict(collected.changes)
        self.keys = [b"\x01" + name.encode() for name in self.asked]
        self.on_engine = OnEngine(folder / "engine", hf.KeyValueStore("players", value=Player))

    def engine_put(self) -> None:
        waiting = hf.DictBytes()
        store = hf.KeyValueStore("players", value=Player).bind(waiting, NOW)
        for start in range(0, self.entries, 50 * BATCH):
            names, players = self.names[start : start + 50 * BATCH], self.players[start : start + 50 * BATCH]
            store.update(zip(names, players, strict=True))
            self.on_engine.apply(waiting.entries)
            waiting.entries.clear()

    def engine_settle(self) -> None:
        spec = hf.KeyValueStore("players", value=Player).spec()
        self.engine_store: Any = view_of(spec, self.on_engine.reading(), NOW, value=Player)

    def engine_many(self) -> None:
        for start in range(0, len(self.asked), BATCH):
            self.engine_store.get_many(self.asked[start : start + BATCH])

    def engine_scan(self) -> None:
        for _ in self.engine_store.scan():
            pass

    def typed_put(self) -> None:
        store, typed = self.store, self.typed
        for start in range(0, self.entries, 50 * BATCH):
            names, players = self.names[start : start + 50 * BATCH], self.players[start : start + 50 * BATCH]
            store.update(zip(names, players, strict=True))
            typed.flush()

    def raw_put(self) -> None:
        pairs = list(self.bytes.items())
        for start in range(0, self.entries, 50 * BATCH):
            self.raw.write(dict(pairs[start : start + 50 * BATCH]))

    def typed_get(self) -> None:
        get = self.store.get
        for name in self.asked:
            get(name)

    def raw_get(self) -> None:
        get = self.raw.db.get
        for key in self.keys:
            get(key)

    def typed_many(self) -> None:
        for start in range(0, len(self.asked), BATCH):
            self.store.get_many(self.asked[start : start + BATCH])

    def raw_many(self) -> None:
        for start in range(0, len(self.keys), BATCH):
            self.raw.get_many(self.keys[start : start + BATCH])

    def hand_many(self) -> None:
        decode = msgspec.msgpack.Decoder(Player).decode
        for start in range(0, len(self.asked), BATCH):
            found = self.raw.get_many([b"\x01" + name.encode() for name in self.asked[start : start + BATCH]])
            [None if cell is None else decode(cell[17:]) for cell in found]

    def typed_scan(self) -> None:
        for _ in self.store.scan():
            pass

    def raw_scan(self) -> None:
        for _ in self.raw.raw_scan(b"\x01", b"\x02"):
            pass


class Windows:
    """A window store of counts: `WINDOWS` windows of one minute per key."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.names = [f"player-{n:05d}" for n in range(keys)]
        self.database = Database(folder / "windows")
        declared = hf.WindowStore("plays", value=int, size="1m")
        self.store = declared.bind(self.database, NOW)
        for n, name in enumerate(self.names):
            for window in range(WINDOWS):
                self.store.put(name, n + window, START + window * MINUTE)
        on_engine = OnEngine(folder / "windows-on-engine", declared)
        on_engine.apply({key: value for key, value in self.database.changes.items() if value is not None})
        self.engine_store: Any = view_of(declared.spec(), on_engine.reading(), NOW, value=int)
        self.database.flush()
        self.database.settle()
        self.store = declared.bind(self.database, NOW)
        encode, slice_ms = beginning_encoder(declared.spec().key), declared.spec().slice_ms
        first, last = START, START + (WINDOWS - 1) * MINUTE
        self.ranges = [
            [
                (
                    slice_prefix(number) + encode(name) + time_bytes(first),
                    slice_prefix(number) + encode(name) + time_bytes(last + 1),
                )
                for number in range(first // slice_ms, last // slice_ms + 1)
            ]
            for name in self.names
        ]

    def typed_fetch(self) -> None:
        for name in self.names:
            found = list(self.store.fetch(name, from_=START, to=START + (WINDOWS - 1) * MINUTE))
            assert len(found) == WINDOWS

    def engine_fetch(self) -> None:
        for name in self.names:
            found = list(self.engine_store.fetch(name, from_=START, to=START + (WINDOWS - 1) * MINUTE))
            assert len(found) == WINDOWS

    def raw_fetch(self) -> None:
        for ranges in self.ranges:
            found: list[tuple[bytes, bytes]] = []
            for start, stop in ranges:
                found += self.database.raw_scan(start, stop)
            assert len(found) == WINDOWS

    def bounded_fetch(self) -> None:
        """Raw as fast as rocksdict can: with an upper bound, and all rows in one call."""
        items = self.database.db.items
        for ranges in self.ranges:
            found: list[Any] = []
            for start, stop in ranges:
                bounds = rd.ReadOptions()
                bounds.set_iterate_upper_bound(stop)
                found += items(from_key=start, read_opt=bounds)
            assert len(found) == WINDOWS

    def hand_fetch(self) -> None:
        decode, number = msgspec.msgpack.Decoder(int).decode, struct.Struct(">Q").unpack_from
        for ranges in self.ranges:
            found: list[tuple[int, int]] = []
            for start, stop in ranges:
                for key, cell in cast(Any, self.database.db.items(from_key=start)):
                    if key >= stop:
                        break
                    found.append((number(key, -8)[0] - 2**63, decode(cell[17:])))
            assert len(found) == WINDOWS


class Sessions:
    """A session store of counts. Each event comes one second after the last and extends its key's session."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.names = [f"player-{n:05d}" for n in range(keys)]
        self.typed, self.raw = Database(folder / "sessions"), Database(folder / "raw-sessions")
        self.declared = hf.SessionStore("visits", value=int, gap="30s")
        self.time = START
        self.encode = beginning_encoder(self.declared.spec().key)
        self.cell = b"\x01" + (-(2**63)).to_bytes(8, "big", signed=True) + bytes(8) + b"\x01"
        self.typed_merge()
        self.raw_merge()

    def typed_merge(self) -> None:
        self.time += 1_000
        store = self.declared.bind(self.typed, NOW)
        for name in self.names:
            store.merge(name, self.time, None, lambda one, other: (one + other) % 100, 1)
        self.typed.flush()

    def raw_merge(self) -> None:
        number = slice_prefix(self.time // self.declared.spec().slice_ms)
        changes: dict[bytes, bytes | None] = {}
        after = time_bytes(self.time - 30_000)
        for name in self.names:
            own = number + self.encode(name)
            for key, _ in self.raw.raw_scan(own + after, own + b"\xff" * 17):
                changes[key] = None
            changes[own + time_bytes(self.time) + time_bytes(START)] = self.cell
        self.raw.write(changes)


Contenders = Mapping[str, Callable[[], object]]
"""What runs the same operations: "store", "raw" and, for some operations, others."""

STORE, RAW, BY_HAND, ON_ENGINE = "store", "raw", "by hand", "on the engine"


def measured(
    contests: Mapping[str, tuple[int, Contenders]], repeats: int, *, reads: bool = False
) -> dict[str, dict[str, float]]:
    """Operations per second of each contender, by contest, as medians over the repeats.

    Reads run once before they are measured. Otherwise the first contender would fill the processor's caches for the
    next one, and with an odd number of repeats the first one is mostly the store.
    """
    taken: dict[str, dict[str, list[float]]] = {name: {side: [] for side in who} for name, (_, who) in contests.items()}
    for repeat in range(repeats):
        for name, (operations, who) in contests.items():
            for work in who.values() if reads else ():
                work()
            order = list(who.items())
            for side, work in order if repeat % 2 == 0 else order[::-1]:
                taken[name][side].append(operations / seconds(work))
    return {name: {side: median(rates) for side, rates in sides.items()} for name, sides in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer entries and three repeats")
    arguments = parser.parse_args()
    entries, keys, repeats = (50_000, 300, 3) if arguments.quick else (500_000, 2_000, 7)
    with scratch("stores") as folder:
        points, windows, sessions = Points(folder, entries), Windows(folder, keys), Sessions(folder, keys)
        puts = {STORE: points.typed_put, RAW: points.raw_put, ON_ENGINE: points.engine_put}
        merges = {STORE: sessions.typed_merge, RAW: sessions.raw_merge}
        found = measured({"put": (entries, puts), "session": (keys, merges)}, repeats)
        points.typed.settle()
        points.raw.settle()
        points.engine_settle()
        gc.freeze()  # collections must not traverse the benchmark's own data again and again
        asked = len(points.asked)
        many = {
            STORE: points.typed_many,
            RAW: points.raw_many,
            BY_HAND: points.hand_many,
            ON_ENGINE: points.engine_many,
        }
        fetches = {
            STORE: windows.typed_fetch,
            RAW: windows.raw_fetch,
            BY_HAND: windows.hand_fetch,
            ON_ENGINE: windows.engine_fetch,
        }
        found |= measured(
            {
                "get": (asked, {STORE: points.typed_get, RAW: points.raw_get}),
                "multi_get": (asked, many),
                "scan": (
                    entries,
                    {STORE: points.typed_scan, RAW: points.raw_scan, ON_ENGINE: points.engine_scan},
                ),
                "window": (keys, fetches),
                "window_bounded": (keys, {STORE: windows.typed_fetch, RAW: windows.bounded_fetch}),
            },
            repeats,
            reads=True,
        )
    others = (STORE, RAW, BY_HAND, ON_ENGINE)
    show(
        f"{entries:,} entries, {keys:,} keys with {WINDOWS} windows each",
        ["operation", *(f"{side}/s" for side in others), "of raw"],
        [
            [name, *(f"{rates[side]:,.0f}" if side in rates else "" for side in others), rates[STORE] / rates[RAW]]
            for name, rates in found.items()
        ],
    )
    ratio = {name: rates[STORE] / rates[RAW] for name, rates in found.items()}
    finish(
        point_vs_raw=min(ratio["put"], ratio["multi_get"]),
        window_vs_raw=ratio["window"],
        **{f"{name}_vs_raw": value for name, value in ratio.items() if name != "window"},
        **{f"{name}_vs_by_hand": rates[STORE] / rates[BY_HAND] for name, rates in found.items() if BY_HAND in rates},
        **{f"{name}_on_engine_vs_raw": r[ON_ENGINE] / r[RAW] for name, r in found.items() if ON_ENGINE in r},
        **{f"{name}_per_s": rates[STORE] for name, rates in found.items()},
        quick=arguments.quick,
    )


if __name__ == "__main__":
    main()
