"""Profiles: named sets of RocksDB options, each for one kind of workload.

A profile is only numbers, so that it can be shown, compared and tested without a database; `tuning` turns it into
options. A store may change its profile from one start to the next: any profile can read the files of any other.
docs/tuning.md says which profile is for which workload, and `make bench NAME=profiles` compares each with `balanced`.
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
    """The largest size of a write buffer; smaller if the instance's budget is small."""
    write_buffer_share: float = 0.5
    """Its largest share of the budget for all write buffers. A larger buffer is flushed less often, to larger files."""
    compaction: Literal["level", "universal"] = "level"
    files_before_compaction: int = 4
    """Files of flushed buffers that a read may have to check before they are merged."""
    files_before_stop: int = 36
    """Writes wait while there are this many unmerged files."""
    last_level_compression: Compression = "lz4"
    """The last level has nine tenths of the data."""
    block_bytes: int = 4 * KIB
    filter_bits: int = 10
    """Bits per key in the filters. With 10, one lookup of an absent key in a hundred reads a block."""
    filter_on_last_level: bool = True
    """Without it, every lookup of an absent key reads a block."""
    partitioned_index: bool = False
    """Index and filter are divided into blocks, so that the cache needs only those in use."""
    cache_weight: float = 1.0
    """The weight of a read when stores compete for cache."""


PROFILES: dict[str, Profile] = {
    "balanced": Profile(),
    "write-heavy": Profile(
        write_buffer_share=0.875, compaction="universal", files_before_compaction=12, files_before_stop=96
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
