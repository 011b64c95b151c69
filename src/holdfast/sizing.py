"""How much memory, disk and log an app needs, and how many open files, by arithmetic that is printed with its result.

    holdfast size --keys 5e6 --value-bytes 200 --partitions 8 --stores 3 --standbys 1 --retention 7d --growth 2%/d

Every figure is a `Line`: what it is, the bytes, and the formula with its numbers, so that a reader can try others.
Tests compare state, filters, indexes and segments with real stores: small ones, and one with 5 million keys in an
instance (`make sizes`), whose memory and disk are measured during a restore. The space for compactions, the hot
fraction and the minimum memory are rules of thumb.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

from holdfast.errors import SettingsError
from holdfast.settings.units import shown_size
from holdfast.stores.engines.open_files import FEWEST_MERGED, files_needed, files_of_database
from holdfast.stores.engines.profiles import MIB, Profile
from holdfast.stores.formats.cells import HEADER_BYTES

KEY_OVERHEAD = 3
"""Bytes that the order-preserving encoding adds to a text: one for the area, two at the end."""
ENTRY_OVERHEAD = 8
"""Bytes that RocksDB adds to an entry: sequence number and lengths, less the prefix shared with the previous key."""
LEVELS = 1.1
"""Levels above the last one have up to a tenth of its size."""
INDEX_OVERHEAD = 12
"""Bytes of an index entry besides the key: the position and the length of the block."""
SEGMENT_OVERHEAD = 9
"""Bytes of Arrow's offsets and validity per key and value."""
SNAPSHOTS = 2
"""The log keeps the two newest snapshots per task."""
SPARE_SPACE = 2.0
"""Compactions write new files before they delete old ones, and RocksDB checkpoints keep some deleted ones. A restore
that replays the log merges nearly everything at once: 1.75 times the state, measured with 5 million keys in 8 tasks."""
ENGINES_SHARE, CACHES_SHARE = 0.32, 0.75
"""RocksDB's share of an instance's memory limit, and the caches' share of that."""
OPEN_FILES = "open files, at most per instance"
MIN_MEMORY = 512 * MIB
"""Python, Arrow and requests need this much for any state."""

_BALANCED = Profile()
_GROWTH = re.compile(r"\s*([0-9.]+)\s*%\s*/\s*(h|d|w)\s*")
_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is stored. `keys` is the current number per store, in all partitions."""

    keys: float
    value_bytes: int
    key_bytes: int = 16
    partitions: int = 4
    """For the open files, and the comparison with Kafka Streams. In Holdfast all tasks of an instance share one budget
    for caches and one for write buffers; a task itself needs half a MiB of memory and 150 KiB of disk."""
    stores: int = 1
    standbys: int = 0
    instances: int = 0
    """0: one per replica of a task."""
    retention: timedelta = timedelta(days=1)
    """How long the log keeps segments, and the time span for the growth."""
    growth_per_day: float = 0.0
    changes_per_day: float = 1.0
    """Changes per key and day."""
    compressed: float = 1.0
    """Compressed size of a value as a fraction: 1.0 for incompressible values, about 0.5 for JSON."""
    hot: float = 0.05
    """The fraction of the data that is read often and should fit into the caches."""

    def __post_init__(self) -> None:
        for name in ("keys", "value_bytes", "key_bytes", "partitions", "stores"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name}={getattr(self, name)} is not allowed. Use a number above 0.")
        for name in ("standbys", "instances", "growth_per_day", "changes_per_day"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}={getattr(self, name)} is not allowed. Use 0 or more.")
        for name in ("compressed", "hot"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name}={getattr(self, name)} is not a fraction. Use a number from 0 to 1.")


@dataclass(frozen=True)
class Line:
    """One figure and its formula."""

    what: str
    bytes: float
    formula: str


@dataclass(frozen=True)
class Estimate:
    """What a load needs: `disk` and `memory` per instance, `log` for the whole app."""

    entries: float
    state: Line
    disk: Line
    in_cache: Line
    memory: Line
    log: Line
    files: int
    """How many files an instance may have to open: all tasks may come to it, here those of one sub-topology."""
    files_formula: str

    def lines(self) -> list[Line]:
        return [self.state, self.disk, self.in_cache, self.memory, self.log]


def parse_growth(text: str) -> float:
    """Growth per day, from a text.

    >>> round(parse_growth("2%/d"), 6), round(parse_growth("7%/w"), 6)
    (0.02, 0.009712)
    """
    found = _GROWTH.fullmatch(text)
    if found is None:
        raise SettingsError(f'{text!r} is not a growth rate. Write a percentage per time, such as "2%/d" or "10%/w".')
    return float((1 + float(found[1]) / 100) ** (1 / _DAYS[found[2]])) - 1


def estimate(load: Load, profile: Profile = _BALANCED) -> Estimate:
    """What a load needs.

    >>> size = estimate(Load(keys=5e6, value_bytes=200, stores=3, standbys=1))
    >>> shown_size(size.state.bytes), shown_size(size.memory.bytes)
    ('3.79 GiB', '911.75 MiB')
    """
    days = load.retention / timedelta(days=1)
    grown = (1 + load.growth_per_day) ** days
    entries = load.keys * load.stores * grown
    key = load.key_bytes + KEY_OVERHEAD
    entry = key + HEADER_BYTES + load.value_bytes
    stored = (key + HEADER_BYTES + ENTRY_OVERHEAD + load.value_bytes * load.compressed) * LEVELS
    index = (key + INDEX_OVERHEAD) * (entry + ENTRY_OVERHEAD) / profile.block_bytes
    lookup = profile.filter_bits / 8 + index
    state = entries * (stored + lookup)
    replicas = 1 + load.standbys
    instances = load.instances or replicas
    share = replicas / instances
    caches = share * entries * (lookup + load.hot * (entry + ENTRY_OVERHEAD))
    memory = max(MIN_MEMORY, caches / CACHES_SHARE / ENGINES_SHARE)
    segments = (
        entries
        * load.changes_per_day
        * days
        * (key + HEADER_BYTES + SEGMENT_OVERHEAD + load.value_bytes * load.compressed)
    )
    number = f"{load.keys:,.0f} keys x {load.stores} stores x {grown:.3f} growth"
    return Estimate(
        entries,
        Line(
            "state, one replica of all tasks",
            state,
            f"{number} x (({key} key + {HEADER_BYTES} header + {ENTRY_OVERHEAD} + {load.value_bytes} value x "
            f"{load.compressed:g}) x {LEVELS} + {lookup:.2f} filter and index)",
        ),
        Line(
            "disk, per instance",
            state * share * SPARE_SPACE,
            f"state x {replicas} replicas / {instances} instances x {SPARE_SPACE:g} space for compactions",
        ),
        Line(
            "caches, per instance",
            caches,
            f"entries x {share:g} x ({lookup:.2f} filter and index + {load.hot:.0%} of {entry + ENTRY_OVERHEAD} hot)",
        ),
        Line(
            "memory limit, per instance",
            memory,
            f"caches / {CACHES_SHARE} (the rest is for write buffers) / {ENGINES_SHARE} (RocksDB's share), at least "
            f"{shown_size(MIN_MEMORY)}",
        ),
        Line(
            "log",
            segments + SNAPSHOTS * state,
            f"{load.changes_per_day:g} changes per day x {days:g} days x entries x ({key} key + {HEADER_BYTES} "
            f"header + {SEGMENT_OVERHEAD} + {load.value_bytes} value x {load.compressed:g}) + "
            f"{SNAPSHOTS} snapshots x state",
        ),
        files_needed([load.stores] * load.partitions),
        f"{load.partitions} partitions x ({files_of_database(0, 0)} + {FEWEST_MERGED} x ({load.stores} stores + 1)), "
        f"and a ninth more, or {files_needed([])}, for the rest; the limit is ulimit -n or LimitNOFILE",
    )


def kafka_streams_rule(partitions: int, stores: int) -> float:
    """Memory by the usual rule for Kafka Streams: a RocksDB per store and partition, with 3 write buffers and a cache.

    >>> shown_size(kafka_streams_rule(8, 3))
    '4.88 GiB'
    """
    return partitions * stores * (3 * 64 + 16) * MIB
