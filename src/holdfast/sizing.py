"""How much memory, disk and log an app needs, by arithmetic that is printed with its result.

    holdfast size --keys 5e6 --value-bytes 200 --partitions 8 --stores 3 --standbys 1 --retention 7d --growth 2%/d

Every figure is a `Line`: what it is, the bytes, and the formula with the numbers in it, so that whoever doubts one can
put in his own. Tests hold state, filters, indexes and segments against real stores, small ones and one of 5 million
keys in an instance (`make sizes`), whose memory and disk are watched while it restores. The room for
compactions, the hot part and the least memory are rules of thumb.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

from holdfast.errors import SettingsError
from holdfast.stores.engines.profiles import KIB, MIB, Profile
from holdfast.stores.formats.cells import HEADER_BYTES

KEY_OVERHEAD = 3
"""What the order-preserving encoding adds to a text: the area's byte in front, two at the end."""
ENTRY_OVERHEAD = 8
"""What a RocksDB table adds to an entry: sequence number and lengths, less what a key shares with the one before."""
LEVELS = 1.1
"""Levels above the last one hold up to a tenth of it again."""
INDEX_OVERHEAD = 12
"""What an index entry has beside a key: where the block is, how long."""
SEGMENT_OVERHEAD = 9
"""Arrow's offsets and validity, for a key and a value."""
SNAPSHOTS = 2
"""The log keeps the two newest snapshots of a task."""
ROOM = 2.0
"""Compactions write new files before old ones go, and checkpoints hold some that are gone already. A restore that
replays the log merges nearly everything at once: 1.75 times the state, measured with 5 million keys over 8 tasks."""
ENGINES_SHARE, CACHES_SHARE = 0.32, 0.75
"""RocksDB's part of an instance's memory limit, and the caches' part of that."""
LEAST_MEMORY = 512 * MIB
"""Python, Arrow and requests want this much whatever the state."""

_BALANCED = Profile()
_GROWTH = re.compile(r"\s*([0-9.]+)\s*%\s*/\s*(h|d|w)\s*")
_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is to be stored. `keys` are those of one store, over all partitions, today."""

    keys: float
    value_bytes: int
    key_bytes: int = 16
    partitions: int = 8
    """Counts in the comparison with Kafka Streams alone. Here all tasks of an instance share one budget for caches and
    one for write buffers, and a task by itself comes to half a MiB of memory and 150 KiB of disk."""
    stores: int = 1
    standbys: int = 0
    instances: int = 0
    """0: as many as there are replicas of a task."""
    retention: timedelta = timedelta(days=1)
    """How long the log keeps segments, and for how long the growth is looked ahead."""
    growth_a_day: float = 0.0
    changes_a_day: float = 1.0
    """How often a key's value changes in a day."""
    compressed: float = 1.0
    """What compression leaves of a value; 1.0 for what can't be compressed, about 0.5 for JSON."""
    hot: float = 0.05
    """The part of the data that is read again and again and should be in memory."""

    def __post_init__(self) -> None:
        for name in ("keys", "value_bytes", "key_bytes", "partitions", "stores"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name}={getattr(self, name)} is not possible. Take a number above 0.")
        for name in ("standbys", "instances", "growth_a_day", "changes_a_day"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}={getattr(self, name)} is not possible. Take 0 or more.")
        for name in ("compressed", "hot"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name}={getattr(self, name)} is no share. Take a number from 0 to 1.")


@dataclass(frozen=True)
class Line:
    """One figure, and how it comes about."""

    what: str
    bytes: float
    formula: str


@dataclass(frozen=True)
class Estimate:
    """What a load needs. `disk` is an instance's, `memory` its limit, `log` the whole app's."""

    entries: float
    state: Line
    disk: Line
    in_cache: Line
    memory: Line
    log: Line

    def lines(self) -> list[Line]:
        return [self.state, self.disk, self.in_cache, self.memory, self.log]


def parse_growth(text: str) -> float:
    """Growth a day, from a text.

    >>> round(parse_growth("2%/d"), 6), round(parse_growth("7%/w"), 6)
    (0.02, 0.009712)
    """
    found = _GROWTH.fullmatch(text)
    if found is None:
        raise SettingsError(f'{text!r} is no growth. Write a percentage and a time, such as "2%/d" or "10%/w".')
    return float((1 + float(found[1]) / 100) ** (1 / _DAYS[found[2]])) - 1


def estimate(load: Load, profile: Profile = _BALANCED) -> Estimate:
    """What a load needs.

    >>> size = estimate(Load(keys=5e6, value_bytes=200, stores=3, standbys=1))
    >>> shown(size.state.bytes), shown(size.memory.bytes)
    ('3.79 GiB', '911.75 MiB')
    """
    days = load.retention / timedelta(days=1)
    grown = (1 + load.growth_a_day) ** days
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
    memory = max(LEAST_MEMORY, caches / CACHES_SHARE / ENGINES_SHARE)
    segments = (
        entries
        * load.changes_a_day
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
            "disk, of each instance",
            state * share * ROOM,
            f"state x {replicas} replicas / {instances} instances x {ROOM:g} room for compactions",
        ),
        Line(
            "caches, of each instance",
            caches,
            f"entries x {share:g} x ({lookup:.2f} filter and index + {load.hot:.0%} of {entry + ENTRY_OVERHEAD} hot)",
        ),
        Line(
            "memory limit, of each instance",
            memory,
            f"caches / {CACHES_SHARE} (write buffers have the rest) / {ENGINES_SHARE} (RocksDB's part), at least "
            f"{shown(LEAST_MEMORY)}",
        ),
        Line(
            "log",
            segments + SNAPSHOTS * state,
            f"{load.changes_a_day:g} changes a day x {days:g} days x entries x ({key} key + {HEADER_BYTES} header + "
            f"{SEGMENT_OVERHEAD} + {load.value_bytes} value x {load.compressed:g}) + "
            f"{SNAPSHOTS} snapshots x state",
        ),
    )


def kafka_streams_rule(
    partitions: int, stores: int, *, buffer_mib: int = 64, buffers: int = 3, cache_mib: int = 16
) -> float:
    """Bytes of the usual rule for Kafka Streams, where every store of every partition is a RocksDB with its own memory.

    >>> shown(kafka_streams_rule(8, 3))
    '4.88 GiB'
    """
    return partitions * stores * (buffers * buffer_mib + cache_mib) * MIB


def shown(size: float) -> str:
    """A number of bytes to be read.

    >>> shown(1536), shown(5 << 30), shown(12)
    ('1.50 KiB', '5.00 GiB', '12 B')
    """
    for unit, one in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", MIB), ("KiB", KIB)):
        if size >= one:
            return f"{size / one:,.2f} {unit}"
    return f"{size:,.0f} B"
