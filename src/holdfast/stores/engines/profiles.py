"""Profiles: what a store's RocksDB is tuned for, by name.

A profile is numbers and nothing else, so that it can be shown, compared and tested without a database; `tuning` turns
it into options. A store may change its profile from one start to the next: no profile writes files another can't read.
docs/tuning.md says when to take which, and `make bench NAME=profiles` holds each against `balanced` on its own
workload.
"""

from dataclasses import dataclass
from typing import Literal

from holdfast.errors import TopologyError

KIB = 1024
MIB = 1024 * KIB

Compression = Literal["none", "lz4", "zstd"]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How one store uses memory, disk and processor. The defaults are `balanced`."""

    write_buffer_bytes: int = 64 * MIB
    """The most one write buffer takes; less, where the instance's budget is small."""
    write_buffer_share: float = 0.5
    """The most it takes of the budget for all write buffers. A larger one is flushed less often, in larger files."""
    compaction: Literal["level", "universal"] = "level"
    files_before_compaction: int = 4
    """Files of flushed buffers that a read may have to look at before they are merged."""
    files_before_stop: int = 36
    """Writes wait when so many haven't been merged."""
    compression: Compression = "lz4"
    last_level_compression: Compression = "lz4"
    """Nine tenths of the data are in the last level."""
    block_bytes: int = 4 * KIB
    block_hash_index: bool = False
    """A hash table in each block: quicker lookups of one key, a little more room."""
    filter_bits: int = 10
    """Bits a key in the filters; 10 let one lookup in a hundred through in vain, 16 one in two thousand."""
    filter_on_last_level: bool = True
    """Without it, a lookup of a key that isn't there reads a block."""
    partitioned_index: bool = False
    """Index and filter in pieces, so that the cache needs only those in use."""
    cache_weight: float = 1.0
    """How much a read counts when stores compete for cache."""


PROFILES: dict[str, Profile] = {
    "balanced": Profile(),
    "write-heavy": Profile(
        write_buffer_share=0.875,
        compaction="universal",
        files_before_compaction=12,
        files_before_stop=96,
    ),
    "read-heavy": Profile(
        files_before_compaction=2,
        compression="none",
        last_level_compression="none",
        block_bytes=2 * KIB,
        block_hash_index=True,
        filter_bits=16,
        cache_weight=2.0,
    ),
    "small-memory": Profile(
        write_buffer_bytes=2 * MIB,
        last_level_compression="zstd",
        block_bytes=16 * KIB,
        filter_on_last_level=False,
        partitioned_index=True,
        cache_weight=0.25,
    ),
    "bulk-load": Profile(
        compaction="universal",
        files_before_compaction=32,
        files_before_stop=1_000,
        compression="none",
    ),
}


def profile(name: str) -> Profile:
    """The profile of that name.

    >>> profile("read-heavy").filter_bits
    16
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise TopologyError(f"there is no profile {name!r}. Use one of {', '.join(PROFILES)}.") from None
