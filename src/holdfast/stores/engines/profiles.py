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

Compression = Literal["lz4", "zstd"]


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
    last_level_compression: Compression = "lz4"
    """Nine tenths of the data are in the last level."""
    block_bytes: int = 4 * KIB
    filter_bits: int = 10
    """Bits per key in the filters; with 10 one lookup in a hundred reads a block in vain."""
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
    "small-memory": Profile(
        write_buffer_bytes=2 * MIB,
        last_level_compression="zstd",
        block_bytes=16 * KIB,
        filter_on_last_level=False,
        partitioned_index=True,
        cache_weight=0.25,
    ),
}


def profile(name: str) -> Profile:
    """The profile of that name.

    >>> profile("small-memory").partitioned_index
    True
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise TopologyError(f"there is no profile {name!r}. Use one of {', '.join(PROFILES)}.") from None
